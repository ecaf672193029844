"""The resumable builder: rounds of whole networks, then one table, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nni_latency.errors import InvalidValueError
from nni_latency.measurement import Protocol
from nni_latency.measurement.runtimes import Runtime
from nni_latency.operators import features_of
from nni_latency.platforms import Platform
from nni_latency.tables._building import Build, building, check_new, journal_header
from nni_latency.tables._lookup_table import LookupTable
from nni_latency.tables._memory_table import as_throughput
from nni_latency.tables._outside import OutsideCampaign
from nni_latency.tables._plan import MeasurePlan
from nni_latency.tables._rounds import BuildProgress, Campaign
from nni_latency.tables._summary import summarise


def build_table(
    plan: MeasurePlan,
    runtime: Runtime,
    protocol: Protocol,
    out: str | Path,
    *,
    metric: str = "latency",
    resume: bool = True,
    overwrite: bool = False,
    keep_samples: bool = False,
    on_progress: Callable[[BuildProgress], None] = lambda _progress: None,
    on_start: Callable[[int], None] = lambda _rounds: None,
) -> LookupTable:
    """Measure every candidate of a plan in context and write the table.

    Each round runs whole networks that together hold every candidate of every layer once, and times every layer inside
    them. A journal beside the table keeps every round: a build stopped at any moment loses the round in flight at most.

    Parameters
    ----------
    plan : MeasurePlan
        What to measure.
    runtime : Runtime
        What executes it; its platform goes into the table.
    protocol : Protocol
        How to measure.
    out : str or Path
        Where the table goes.
    metric : {"latency", "throughput"}, default="latency"
        What the table holds of what was measured.
    resume : bool, default=True
        Go on with the journal of an earlier run, if there is one; otherwise discard it.
    overwrite : bool, default=False
        Replace a finished table.
    keep_samples : bool, default=False
        Keep every raw sample in `samples_path` beside the table.
    on_progress : callable, optional
        Called with a `BuildProgress` after every round.
    on_start : callable, optional
        Called with the number of rounds in the journal once everything is checked, before anything is measured.

    Returns
    -------
    LookupTable
        The table that was written.

    Raises
    ------
    OutputError
        If table or journal cannot be written.
    InvalidValueError
        If there is a table already and `overwrite` is false.
    BusyError
        If another process builds this table.
    MismatchError
        If the journal belongs to another space, platform or protocol, or runtime and protocol differ in threads.
    MeasurementError
        If no candidate of a layer can be run, or the clock does not work.
    UnknownNameError
        If the features of an operator cannot be counted.
    """
    if metric not in ("latency", "throughput"):
        raise InvalidValueError(
            f"Measured are latency and throughput. Got {metric!r}; memory is counted by count_table."
        )
    for layer in plan.layers:
        for candidate in layer.candidates.values():
            # A kind of operator that cannot be counted is told now, and not after all the measuring.
            features_of(candidate.op)
    header = plan_header(plan, runtime.platform, protocol)
    with building(out, header, runtime, protocol, resume=resume, overwrite=overwrite) as build:
        measure = _build_inside if runtime.inside else _build_outside
        table = measure(plan, protocol, build, on_start, on_progress)
        return build.finish(as_throughput(table) if metric == "throughput" else table, keep_samples=keep_samples)


def write_table(table: LookupTable, out: str | Path, *, overwrite: bool = False) -> LookupTable:
    """Write a table that was not measured here, and return it.

    Raises
    ------
    OutputError
        If it cannot be written.
    InvalidValueError
        If there is a table already and `overwrite` is false.
    """
    check_new(Path(out), overwrite=overwrite)
    table.save(out)
    return table


def _build_inside(
    plan: MeasurePlan,
    protocol: Protocol,
    build: Build,
    on_start: Callable[[int], None],
    on_progress: Callable[[BuildProgress], None],
) -> LookupTable:
    """Time the candidates inside whole networks."""
    runtime, reference = build.runtime, plan.indices_of(plan.reference)
    campaign = Campaign(plan, runtime, protocol, build.journal, build.done, build.failures, reference)
    on_start(len(build.done))
    campaign.run(on_progress)
    return summarise(
        plan, runtime.platform, protocol, campaign.samples, failures=campaign.failures, duration=campaign.spent
    )


def _build_outside(
    plan: MeasurePlan,
    protocol: Protocol,
    build: Build,
    on_start: Callable[[int], None],
    on_progress: Callable[[BuildProgress], None],
) -> LookupTable:
    """Time whole networks and solve for the candidates."""
    campaign = OutsideCampaign(plan, build.runtime, protocol, build.journal, build.done)
    on_start(len(build.done))
    campaign.run(on_progress)
    table = campaign.table()
    campaign.forget()
    return table


def plan_header(plan: MeasurePlan, platform: Platform, protocol: Protocol) -> dict[str, Any]:
    """Say what the rounds of a journal belong to."""
    return journal_header(plan, [[layer.name, *layer.candidates] for layer in plan.layers], platform, protocol)
