# SPDX-License-Identifier: Apache-2.0
"""`OnnxReader`: reads untrusted ONNX files in a separate process with time and memory limits."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

from nni_latency.datasets import GraphDocument
from nni_latency.errors import InvalidValueError, LatencyError, MeasurementError
from nni_latency.measurement import CandidateError, WorkerProcess
from nni_latency.operators import Graph, Inputs, InputShape
from nni_latency_service._limits import ServiceLimits
from nni_latency_service._reading import Reading, empty
from nni_latency_service.query import Question


class OnnxReader:
    """Reads ONNX files in worker processes. Thread-safe.

    The effects of a file are confined to the process: a process that exceeds its time or memory limit is stopped, and
    one that crashes is restarted.

    Parameters
    ----------
    limits : ServiceLimits
        Limits of time, memory and sizes.
    processes : int, default=2
        Number of files read in parallel.
    """

    def __init__(self, limits: ServiceLimits, processes: int = 2) -> None:
        self._limits = limits
        self._idle: queue.Queue[WorkerProcess | None] = queue.Queue()
        for _ in range(processes):
            self._idle.put(None)

    def read(self, content: bytes, name: str, shapes: list[InputShape] | None = None, batch: int | None = None) -> Any:
        """Return the `Question` of a file; shapes and the batch size are for inputs of dynamic size.

        Raises
        ------
        InvalidValueError
            If it cannot be read, or exceeds the limits.
        """
        with self._worker() as worker:
            try:
                kind, found = worker.ask(("read", (content, name, shapes, batch), {}), self._limits.read_time)
            except CandidateError as error:
                raise InvalidValueError(f"{name!r} cannot be read: {error}.") from error
        if kind != "ok":
            raise found if isinstance(found, LatencyError) else InvalidValueError(f"{name!r} cannot be read: {found}.")
        light, graph, inputs = found
        return Question.of_graph(_graph_of(graph), light, _inputs_of(json.loads(inputs)), name)

    def start(self) -> None:
        """Start a process in the background before the first file arrives."""
        threading.Thread(target=self._start, daemon=True).start()

    def _start(self) -> None:
        with contextlib.suppress(LatencyError), self._worker():
            pass

    def close(self) -> None:
        """Stop the processes; they are restarted on demand."""
        for _ in range(self._idle.qsize()):
            worker = self._idle.get()
            if worker is not None:
                worker.stop()
            self._idle.put(None)

    @contextlib.contextmanager
    def _worker(self) -> Iterator[WorkerProcess]:
        worker = self._idle.get()
        try:
            if worker is None:
                worker = WorkerProcess.of(
                    partial(contextlib.nullcontext, Reading(self._limits.numbers)), self._limits.read
                )
            yield worker
        except LatencyError:
            # The process hangs, has died or failed to start.
            if worker is not None:
                worker.stop()
            worker = None
            raise
        finally:
            self._idle.put(worker)


def _graph_of(text: str) -> Graph:
    try:
        return GraphDocument.model_validate_json(text).to_graph()
    except (ValueError, LookupError) as error:
        raise MeasurementError(f"What was read is no graph: {type(error).__name__}.") from error


def _inputs_of(described: list[tuple[list[int], str]]) -> Inputs:
    return Inputs(tuple(empty(shape, dtype) for shape, dtype in described))
