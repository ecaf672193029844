# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime as an adapter: it runs in this process, or is sent to a device. Imports numpy and onnxruntime alone.

Python 3.8 and ONNX Runtime 1.17 or later.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnxruntime

#: Runs whose profile is thrown away: the first ones of a session are slower.
_COLD = 2


class Adapter:
    """Loads networks in ONNX.

    Parameters
    ----------
    settings : dict
        ``threads``, and the execution ``provider`` by its full name.
    """

    name = "ONNX Runtime"

    def __init__(self, settings: dict[str, Any]) -> None:
        self.threads, self.provider = settings["threads"], settings["provider"]

    def facts(self) -> dict[str, Any]:
        """Return its version, and the providers of this installation."""
        return {"version": str(onnxruntime.__version__), "providers": list(onnxruntime.get_available_providers())}

    def load(self, data: bytes) -> Network:
        """Load a network."""
        return Network(data, self.provider, self.threads)


class Network:
    """A network in a session, and another session for every profile."""

    def __init__(self, data: bytes, provider: str, threads: int) -> None:
        self._data, self._provider, self._threads = data, provider, threads
        self._optimised: bytes | None = None
        self._session = self._load(self._options())
        self._names = [item.name for item in self._session.get_inputs()]

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """Run it once."""
        return [np.asarray(item) for item in self._session.run(None, dict(zip(self._names, arrays)))]

    def profile(self, feed: Callable[[], Sequence[Any]], runs: int) -> dict[str, Any]:
        """Run it several times in a session that writes a profile.

        Returns
        -------
        dict
            ``nodes``: of every node its name, kind, provider and the type of its first input; ``runs``: of every run
            its time [s], which nodes ran, when each began, and what each took [us].
        """
        folder = tempfile.mkdtemp()
        try:
            options = self._options()
            options.enable_profiling, options.profile_file_prefix = True, os.path.join(folder, "profile")
            if self._optimised is None:
                self._write_optimised_to(options, folder)
            session = self._load(options)
            took = [self._timed(session, feed()) for _ in range(_COLD + runs)]
            with open(session.end_profiling(), encoding="utf-8") as file:
                events = json.load(file)
            if self._optimised is None:
                self._optimised = _content(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return _summary(events, took, runs)

    def optimised(self) -> bytes:
        """Return the network as it is run, without weights; empty where the provider has none that can be written."""
        if self._optimised is None:
            folder = tempfile.mkdtemp()
            try:
                options = self._options()
                self._write_optimised_to(options, folder)
                self._load(options)
                self._optimised = _content(folder)
            except Exception:
                # A provider that compiles nodes, such as TensorRT.
                self._optimised = b""
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        return self._optimised

    def _write_optimised_to(self, options: Any, folder: str) -> None:
        if self._provider == "TensorrtExecutionProvider":
            self._optimised = b""
            return
        options.optimized_model_filepath = os.path.join(folder, "optimised.onnx")
        # An older ONNX Runtime does not know them, and writes the weights as well.
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights")
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1")

    def _timed(self, session: Any, arrays: Sequence[Any]) -> float:
        given = dict(zip(self._names, arrays))
        begin = time.perf_counter()
        session.run(None, given)
        return time.perf_counter() - begin

    def _options(self) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self._threads, 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = 3
        # As the session does it for its own thread.
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
        return options

    def _load(self, options: Any) -> Any:
        return onnxruntime.InferenceSession(self._data, options, providers=[self._provider])


def _content(folder: str) -> bytes:
    path = os.path.join(folder, "optimised.onnx")
    if not os.path.exists(path):
        return b""
    with open(path, "rb") as file:
        return file.read()


def _summary(events: list[dict[str, Any]], took: list[float], runs: int) -> dict[str, Any]:
    """Keep of a profile what is read of it: the nodes of the last runs, in the order in which they ran."""
    kernels = [event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")]
    kernels.sort(key=lambda event: event["ts"])
    begins = [event["ts"] for event in kernels]
    spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event["name"] == "model_run")
    places: dict[tuple[str, ...], int] = {}
    found = []
    for (begin, end), seconds in zip(spans[-runs:], took[-runs:]):
        own = kernels[bisect_left(begins, begin) : bisect_left(begins, end)]
        run = {
            "nodes": [places.setdefault(_node(event), len(places)) for event in own],
            "begin": [event["ts"] for event in own],
            "took": [event["dur"] for event in own],
            "seconds": seconds,
        }
        found.append(run)
    return {"nodes": [list(node) for node in places], "runs": found}


def _node(event: dict[str, Any]) -> tuple[str, ...]:
    args = event["args"]
    types = [kind for item in args.get("input_type_shape", [])[:1] for kind in item]
    return event["name"][: -len("_kernel_time")], args["op_name"], args["provider"], types[0] if types else ""
