"""Measuring a whole network, as a user would run it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from nni_latency.errors import MeasurementError
from nni_latency.measurement._chain import time_repeatedly
from nni_latency.measurement._measurement import Measurement
from nni_latency.measurement._protocol import Protocol
from nni_latency.measurement.runtimes import Runtime


def measure_network(
    network: Any, input_shape: Sequence[int], runtime: Runtime, protocol: Protocol | None = None
) -> Measurement:
    """Time a network from input to output, again and again.

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
        If the network can not be run, or the clock does not work.
    """
    how = protocol or Protocol(n_warmup=10, n_run=100, max_measure_execution_time=5.0)
    with runtime.session():
        stage, inputs = runtime.load(copy.deepcopy(network)), runtime.inputs(input_shape)
        try:
            return time_repeatedly(lambda: stage(inputs), runtime.clock, how)
        except RuntimeError as error:
            raise MeasurementError(f"The network can not be run on {runtime.platform.id}: {error}") from error
