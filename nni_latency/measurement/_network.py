"""Measuring a whole network, as a user would run it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from nni_latency.errors import MeasurementError
from nni_latency.measurement._bench import Build
from nni_latency.measurement._chain import time_chain, time_repeatedly
from nni_latency.measurement._measurement import Measurement
from nni_latency.measurement._protocol import Protocol
from nni_latency.measurement._trimming import windows_agree
from nni_latency.measurement.runtimes import Runtime

#: Windows of warm-ups agree when their medians differ by less than this share; after so many of them it is enough.
_WARM, _MOST_WINDOWS = 0.05, 10


def compose(builds: Sequence[Build]) -> Any:
    """Make a network of parts that run one after another.

    Parameters
    ----------
    builds : sequence of callable
        What makes each part.

    Returns
    -------
    nn.Sequential
    """
    from torch import nn

    return nn.Sequential(*(build() for build in builds))


def measure_network(
    network: Any, input_shape: Sequence[int], runtime: Runtime, protocol: Protocol | None = None
) -> Measurement:
    """Time a network from input to output, again and again, once it is warm: when two windows of warm-ups agree.

    Parameters
    ----------
    network : module
        What to run; a copy of it goes to the runtime's device.
    input_shape : sequence of int
        Shape of its input, batch first.
    runtime : Runtime
        What executes it.
    protocol : Protocol, optional
        How; by default 10 warm-ups and 100 timed runs in at most 5 s.

    Returns
    -------
    Measurement
        Times [s].

    Raises
    ------
    MeasurementError
        If the network cannot be run, or the clock does not work.
    """
    how = protocol or Protocol(n_warmup=10, n_run=100, max_measure_execution_time=5.0)
    with runtime.session():
        stage, inputs = runtime.load(copy.deepcopy(network)), runtime.inputs(input_shape)
        try:
            return _time_warm(lambda: stage(inputs), runtime, how)
        except RuntimeError as error:
            raise MeasurementError(f"The network cannot be run on {runtime.platform.id}: {error}") from error


def _time_warm(run: Callable[[], Any], runtime: Runtime, protocol: Protocol) -> Measurement:
    """Warm up until the last `n_warmup` runs take as long as those before them, then time."""
    warmups: list[float] = []
    size = protocol.n_warmup
    while size and len(warmups) < _MOST_WINDOWS * size and not windows_agree(warmups, size, _WARM):
        warmups += [time_chain([lambda _: run()], None, runtime.clock)[0] for _ in range(size)]
    measured = time_repeatedly(run, runtime.clock, replace(protocol, n_warmup=0))
    return Measurement(measured.samples, protocol, tuple(warmups))
