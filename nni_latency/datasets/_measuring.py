# SPDX-License-Identifier: Apache-2.0
"""Measurement of many networks on one platform for a data set of latencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

from nni_latency.datasets._archive import Part
from nni_latency.datasets._batches import BatchedNetworks, part_times, summarise_networks
from nni_latency.datasets._graph_kernels import kernels_of_calls, kernels_of_nodes
from nni_latency.datasets._network_files import NetworkFile, family_files
from nni_latency.errors import InvalidValueError
from nni_latency.graphs import find_families
from nni_latency.measurement import NetworkSummary, Protocol, Subject
from nni_latency.measurement.runtimes import Runtime
from nni_latency.operators import Graph
from nni_latency.platforms import Platform
from nni_latency.tables import Measuring, MeasuringOptions

#: Default protocol: ten runs per visit of small networks, one of large ones.
DATASET_PROTOCOL = Protocol(
    n_warmup=1, n_run=10, max_measure_execution_time=0.1, time_budget=3600.0, processes=1, timeout=120.0
)

#: Families whose published networks are in every batch to measure the speed of the machine.
ANCHORS = ("squeezenet", "mobilenetv2", "resnet", "vit")


@dataclass(frozen=True)
class PlatformLatencies:
    """Latencies of networks of one batch size on one platform. Immutable.

    Parameters
    ----------
    platform : Platform
        Platform of the measurements.
    batch_size : int
        Inputs per run.
    protocol : Protocol
        Measurement protocol.
    campaign : str
        Identifier of the records in the database.
    latencies : mapping of str to NetworkSummary
        Latency by `NetworkFile.key` [s].
    parts : mapping of str to tuple of float
        Time of every part of the network by `NetworkFile.key` [s]: a node of its ONNX file, or a call of a torch
        function if the network ran in torch.
    failures : mapping of str to str
        Reason of a failure by `NetworkFile.key`.
    duration : float
        Time spent measuring [s].
    conditions : mapping
        Conditions of the machine before and after.
    sees_nodes : bool, default=False
        Whether the parts are nodes of the ONNX file; if not, they are calls of torch functions.
    anchors : mapping of str to float
        Latencies of the anchors by name [s].
    """

    platform: Platform
    batch_size: int
    protocol: Protocol
    campaign: str
    latencies: Mapping[str, NetworkSummary]
    parts: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    duration: float = 0.0
    conditions: Mapping[str, Any] = field(default_factory=dict)
    sees_nodes: bool = False
    anchors: Mapping[str, float] = field(default_factory=dict)

    def kernels_of(self, network: NetworkFile, graph: Graph) -> tuple[Part, ...]:
        """Return the kernels of a measured network with its graph; empty if the runtime does not report their times."""
        divide = kernels_of_nodes if self.sees_nodes else kernels_of_calls
        return divide(graph, self.parts.get(network.key, ()))


def measure_networks(
    networks: Sequence[NetworkFile],
    runtime: Runtime,
    *,
    protocol: Protocol | None = None,
    anchors: Sequence[str] = ANCHORS,
    facts: Mapping[str, float] | None = None,
    **how: Unpack[MeasuringOptions],
) -> PlatformLatencies:
    """Measure networks of one batch size on one platform.

    Every visit of a network is stored before the next begins: the same call resumes, and a call with more networks
    measures only the new ones.

    Parameters
    ----------
    networks : sequence of NetworkFile
        Networks to measure, in order of priority if the budget does not suffice for all.
    runtime : Runtime
        Runtime that executes the networks. It takes ONNX files, or the modules of families.
    protocol : Protocol, optional
        Measurement protocol; by default `DATASET_PROTOCOL`.
    anchors : sequence of str
        Families whose published networks are part of every batch.
    facts : mapping, optional
        Further facts of the device, such as those of `nni_latency.platforms.measure_speeds`.
    **how
        As for `nni_latency.tables.build_table`.

    Returns
    -------
    PlatformLatencies
        Networks without an entry failed (see `failures`) or were not reached within the budget.

    Raises
    ------
    InvalidValueError
        If there is no network, batch sizes differ, or a file cannot be read or has dynamic sizes.
    BusyError
        If another process measures a data set on this platform.
    OutputError
        If a record cannot be written.
    MismatchError
        If runtime and protocol differ in the number of threads.
    MeasurementError
        If no network can be run.
    """
    sizes = {item.batch_size for item in networks}
    if len(sizes) != 1:
        raise InvalidValueError(f"Networks of one batch size are measured at a time. Got {sorted(sizes) or 'none'}.")
    (batch_size,) = sizes
    subjects = _subjects(networks, runtime)
    everywhere = list(family_files([(family, 0) for family in find_families(anchors)], batch_size=batch_size))
    how_long = protocol or replace(DATASET_PROTOCOL, threads=runtime.platform.threads)
    schedule = BatchedNetworks(
        subjects,
        how_long,
        anchors=_subjects(everywhere, runtime),
        weights={item.key: item.weights for item in (*networks, *everywhere)},
        calls=runtime.sees_calls,
    )
    measured = Measuring(runtime, how_long, **how).run(schedule, {"batch_size": batch_size, "anchors": list(anchors)})
    summaries = summarise_networks(schedule.visits, how_long)
    wanted = {item.key: schedule.visits[item.key] for item in networks if item.key in schedule.visits}
    found = {key: summaries[key] for key in wanted}
    platform = runtime.platform
    return PlatformLatencies(
        replace(platform, facts={**platform.facts, **(facts or {})}),
        batch_size,
        how_long,
        measured.campaign,
        found,
        {key: times for key, records in wanted.items() if (times := part_times(records, found[key].value))},
        {item.key: schedule.failures[item.key] for item in networks if item.key in schedule.failures},
        schedule.spent,
        measured.conditions,
        runtime.takes_onnx,
        {item.name: summaries[item.key].value for item in everywhere if item.key in summaries},
    )


def _subjects(networks: Sequence[NetworkFile], runtime: Runtime) -> list[Subject]:
    return [item.subject(runtime) for item in networks]
