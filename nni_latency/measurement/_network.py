"""Measuring one whole network, as a user would run it."""

from __future__ import annotations

from typing import Any

from nni_latency.errors import MeasurementError
from nni_latency.measurement._campaign import Campaign
from nni_latency.measurement._measurement import Measurement
from nni_latency.measurement._network_schedule import NetworkSchedule
from nni_latency.measurement._protocol import Protocol
from nni_latency.measurement._store import CampaignHeader, MemoryStore
from nni_latency.measurement._subject import Subject
from nni_latency.measurement.runtimes import Runtime

#: How, without being told.
_ONCE = Protocol(n_warmup=1, n_run=10, rounds=10, time_budget=5.0, half_width=0.0, processes=1)


def measure_network(
    network: Any, example_inputs: Any, runtime: Runtime, protocol: Protocol | None = None
) -> Measurement:
    """Time a network from input to output, again and again, once it is warm.

    Parameters
    ----------
    network : nn.Module
        What to run; copies of it are measured.
    example_inputs : Tensor, tuple, dict, or sequence of int
        What it takes, as for `nni_latency.operators.trace`; or the shape of its one input, batch first.
    runtime : Runtime
        What executes it.
    protocol : Protocol, optional
        How; by default 100 timed runs in one process, in at most 5 s.

    Returns
    -------
    Measurement
        Times [s].

    Raises
    ------
    MeasurementError
        If the network cannot be run, or the clock does not work.
    """
    how = protocol or _ONCE
    subject = Subject.of_module(network, example_inputs)
    benches, store = runtime.benches(), MemoryStore()
    with store.campaign(CampaignHeader("networks", {}, benches.platform, how)) as log:
        try:
            Campaign(NetworkSchedule([subject], how, isolated=benches.isolated), benches, log).run()
        except MeasurementError as error:
            reason = next((failure.reason for failure in log.failures), str(error))
            raise MeasurementError(f"The network cannot be run on {benches.platform.id}: {reason}") from error
    return Measurement(tuple(seconds for record in log.records for seconds in record.whole), how)
