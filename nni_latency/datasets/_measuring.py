"""Measuring many networks on one platform: what becomes a data set of latencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

from nni_latency.datasets._batches import BatchedNetworks, part_times, summarise_networks
from nni_latency.datasets._network_files import NetworkFile, family_files
from nni_latency.errors import InvalidValueError
from nni_latency.graphs import find_families
from nni_latency.measurement import NetworkSummary, Protocol, Subject
from nni_latency.measurement.runtimes import Runtime
from nni_latency.platforms import Platform
from nni_latency.tables import Measuring, MeasuringOptions

#: How networks are measured unless a protocol is given: ten runs a visit of small ones, one of large ones.
DATASET_PROTOCOL = Protocol(
    n_warmup=1, n_run=10, max_measure_execution_time=0.1, time_budget=3600.0, processes=1, timeout=120.0
)

#: Families whose published networks are in every batch, because their times tell how fast the machine is.
ANCHORS = ("squeezenet", "mobilenetv2", "resnet", "vit")


@dataclass(frozen=True)
class PlatformLatencies:
    """What networks of one batch size take on one platform. Immutable.

    Parameters
    ----------
    platform : Platform
        Where.
    batch_size : int
        Inputs of a run.
    protocol : Protocol
        How.
    campaign : str
        Names the records in the database.
    latencies : mapping of str to NetworkSummary
        By `NetworkFile.key`, latency [s].
    parts : mapping of str to tuple of float
        By `NetworkFile.key`, what every part of the network took [s]: a node of its ONNX file, or a call of a torch
        function where the network ran in torch.
    failures : mapping of str to str
        By `NetworkFile.key`, why it could not be measured.
    duration : float
        Time spent measuring [s].
    conditions : mapping
        What the machine was like before and after.
    sees_nodes : bool, default=False
        Whether the parts are nodes of the ONNX file; if not, they are calls of torch functions.
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

    Every visit of a network is in the store before the next begins: the same call resumes, and one with more networks
    measures those that are new.

    Parameters
    ----------
    networks : sequence of NetworkFile
        What is measured, in this order where the budget is not enough for all.
    runtime : Runtime
        What executes them. It takes ONNX files, or the modules of families.
    protocol : Protocol, optional
        How; by default `DATASET_PROTOCOL`.
    anchors : sequence of str
        Families whose published networks are in every batch.
    facts : mapping, optional
        What else is known of the device, such as `nni_latency.platforms.measure_speeds` tells.
    **how
        As for `nni_latency.tables.build_table`.

    Returns
    -------
    PlatformLatencies
        Those networks without an entry that failed, which are named, or that the budget did not reach.

    Raises
    ------
    InvalidValueError
        If there is no network, they are of several batch sizes, or a file cannot be read or leaves sizes open.
    BusyError
        If another process measures on this platform for a data set.
    OutputError
        If a record cannot be written.
    MismatchError
        If runtime and protocol differ in threads.
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
    )


def _subjects(networks: Sequence[NetworkFile], runtime: Runtime) -> list[Subject]:
    return [item.subject(runtime) for item in networks]
