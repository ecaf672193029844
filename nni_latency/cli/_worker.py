"""Measuring in a process of its own: one that has trained has a heap that slows down what it measures afterwards."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import nni_latency.spaces as spaces
from nni_latency.cli._options import make_space
from nni_latency.errors import MeasurementError
from nni_latency.measurement import Measurement, measure_network
from nni_latency.plugins import load_registry


@dataclass(frozen=True)
class MeasureTask:
    """One network of a space, and where to run it. Plain values, so that it reaches another process."""

    space: str
    arguments: Mapping[str, Any]
    sample: Mapping[str, Any]
    input_shape: tuple[int, ...]
    runtime: str
    device: str
    threads: int
    precision: str


def measure_apart(task: MeasureTask) -> Measurement:
    """Measure a network in a fresh process.

    Raises
    ------
    MeasurementError
        If the process dies, or the network cannot be run.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(_measure, task).result()
        except BrokenProcessPool as error:
            raise MeasurementError(f"The process that measured the network on {task.device} died.") from error


def _measure(task: MeasureTask) -> Measurement:
    network = spaces.network_of(make_space(task.space, dict(task.arguments)), task.sample)()
    runtime = load_registry().find("runtime", task.runtime)
    made = runtime.make(task.device, threads=task.threads, precision=task.precision)
    return measure_network(network, task.input_shape, made)
