# SPDX-License-Identifier: Apache-2.0
"""Building of lookup tables, and rebuilding of a table from the raw samples of its campaign."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from nni_latency.errors import InvalidValueError, MissingEntryError
from nni_latency.measurement import NetworkSchedule, Protocol, Store, StoredCampaign
from nni_latency.measurement.runtimes import Runtime
from nni_latency.operators import features_of
from nni_latency.platforms import Platform
from nni_latency.tables._arithmetic import as_throughput
from nni_latency.tables._building import (
    METERED,
    Measured,
    Measuring,
    MeasuringOptions,
    check_metered,
    check_new,
    new_file,
    space_content,
)
from nni_latency.tables._layer_schedule import LayerSchedule
from nni_latency.tables._lookup_table import LookupTable
from nni_latency.tables._operators import check_operators, operator_schedule, operators_table
from nni_latency.tables._plan import MeasurePlan, OperatorPlan
from nni_latency.tables._solved import BatchSchedule, prior_of, solve_batches, solved_table
from nni_latency.tables._solving import metered_table
from nni_latency.tables._summary import summarise


def build_table(
    plan: MeasurePlan | OperatorPlan,
    runtime: Runtime,
    protocol: Protocol,
    out: str | Path,
    *,
    metric: str = "latency",
    overwrite: bool = False,
    **how: Unpack[MeasuringOptions],
) -> LookupTable:
    """Measure every candidate, or every operator, of a plan in context and write the table.

    Each round runs whole networks that together contain every candidate of every layer once, and times every layer
    inside them. On a runtime that compiles whole networks, these are timed end to end, and the entries are solved for.
    For a space without layers, every operator is timed inside the networks of the plan. Every visit is stored before
    the next begins: after an interruption at any moment, the same call resumes.

    Parameters
    ----------
    plan : MeasurePlan or OperatorPlan
        What to measure: the candidates of layers, or networks that cover the operators of a space; see
        `nni_latency.spaces.operator_plan`.
    runtime : Runtime
        Runtime that executes the networks; its platform is written to the table.
    protocol : Protocol
        Measuring protocol.
    out : str or Path
        File of the table.
    metric : {"latency", "throughput", "energy", "power"}, default="latency"
        Metric of the table. Energy [J] and power [W] need a meter among ``meters``; a table of operators holds latency
        or energy.
    overwrite : bool, default=False
        Replace a finished table.
    **how
        Store and callbacks: ``store``, ``fresh``, ``on_progress``, ``on_step``, ``on_start`` and ``meters`` of
        `Measuring`.

    Returns
    -------
    LookupTable
        The table of the file.

    Raises
    ------
    OutputError
        If the table or a record cannot be written.
    InvalidValueError
        If the file exists and `overwrite` is false, the budget is too small for one round, the metric is not supported
        or needs a meter, or the attributes of an operator do not match its kind.
    BusyError
        If another process is building this table.
    MismatchError
        If runtime and protocol differ in the number of threads.
    MeasurementError
        If no candidate of a layer can be executed, the clock does not work, or the runtime cannot time operators.
    """
    measuring = Measuring(runtime, protocol, **how)
    if isinstance(plan, OperatorPlan):
        check_operators(runtime, metric)
    else:
        _check_candidates(plan, metric)
    check_metered(metric, measuring.meters)
    with new_file(out, overwrite=overwrite) as target:
        if isinstance(plan, OperatorPlan):
            table = _operators_table(plan, measuring, metric)
        else:
            derive = _layers_table if runtime.supports_layer_timing else solved_table
            table = derive(plan, measuring, _measured_metric(metric))
        table = as_throughput(table) if metric == "throughput" else table
        table.save(target)
        return table


def _measured_metric(metric: str) -> str:
    """Return the metric that is measured for a table by layer; throughput follows from latency."""
    return metric if metric in METERED else "latency"


def _check_candidates(plan: MeasurePlan, metric: str) -> None:
    if metric not in ("latency", "throughput", *METERED):
        raise InvalidValueError(
            f"Measured are latency, throughput, energy and power. Got {metric!r}; memory is counted by count_table."
        )
    for layer in plan.layers:
        for candidate in layer.candidates.values():
            # Raise for operators whose attributes do not match their kind before measuring.
            features_of(candidate.op)


def write_table(table: LookupTable, out: str | Path, *, overwrite: bool = False) -> LookupTable:
    """Write a table that was not measured, and return it.

    Raises
    ------
    OutputError
        If the file cannot be written.
    InvalidValueError
        If the file exists and `overwrite` is false.
    """
    check_new(Path(out), overwrite=overwrite)
    table.save(out)
    return table


def _layers_table(plan: MeasurePlan, measuring: Measuring, metric: str) -> LookupTable:
    """Time the candidates inside whole networks, and read the meters if the metric needs them."""
    schedule = LayerSchedule(plan, measuring.protocol, isolated=measuring.benches.isolated)
    measured = measuring.run(schedule, plan_content(plan))
    return measured.mark(table_of(schedule, measuring.runtime.platform, metric))


def _operators_table(plan: OperatorPlan, measuring: Measuring, metric: str) -> LookupTable:
    """Time the operators inside the networks of a plan."""
    if not measuring.runtime.platform.runs_unused:
        plan = replace(plan, networks=tuple(network.without_unused() for network in plan.networks))
    schedule = operator_schedule(plan, measuring.protocol, isolated=measuring.benches.isolated)
    samples = [dict(network.sample) for network in plan.networks]
    measured = measuring.run(schedule, space_content(plan.space, plan.input_shape, samples))
    specifications = {key: chain[-1].specification for key, chain in schedule.networks.items()}
    header = {
        "space": plan.space,
        "platform": measuring.runtime.platform,
        "input_shape": plan.input_shape,
        "operator_coverage": plan.coverage,
    }
    return measured.mark(operators_table(schedule, specifications, metric, **header))


def table_of(schedule: LayerSchedule, platform: Platform, metric: str) -> LookupTable:
    """Derive the table of latency, energy or power from the observations of a schedule."""
    table = summarise(
        schedule.plan,
        platform,
        schedule.protocol,
        schedule.samples,
        failures=schedule.failed,
        duration=schedule.spent,
    )
    return table if metric == "latency" else metered_table(table, schedule, metric)


def plan_content(plan: MeasurePlan) -> dict[str, Any]:
    """Return the content of a campaign over a plan."""
    candidates = [
        [layer.name, {name: candidate.op.op_key for name, candidate in layer.candidates.items()}]
        for layer in plan.layers
    ]
    return space_content(plan.space, plan.input_shape, candidates)


def rebuild_table(table: LookupTable, plan: Callable[[], MeasurePlan], store: Store) -> LookupTable:
    """Derive a table again from the raw samples of its campaign. Nothing is measured.

    Parameters
    ----------
    table : LookupTable
        Table that names its campaign.
    plan : callable
        Returns the measure plan of the table's space; not called for a table of operators.
    store : Store
        Store of the records.

    Returns
    -------
    LookupTable
        A table of the same metric, by the current statistics.

    Raises
    ------
    MissingEntryError
        If the table names no campaign, or the store does not have it.
    """
    campaign = _campaign_of(table, store)
    measured = Measured.of(campaign)
    if table.operators:
        return measured.mark(_rebuilt_operators(campaign, table))
    rebuilt = measured.mark(_rebuilt_layers(campaign, plan(), store, _measured_metric(table.metric)))
    rebuilt = replace(rebuilt, protocol=table.protocol)
    return as_throughput(rebuilt) if table.metric == "throughput" else rebuilt


def _campaign_of(table: LookupTable, store: Store) -> StoredCampaign:
    if not table.campaign:
        raise MissingEntryError(
            "The table names no campaign, so its raw samples are not known. Only tables that were measured with a "
            "database can be rebuilt."
        )
    found = next(store.campaigns(identifier=table.campaign), None)
    if found is None:
        raise MissingEntryError(
            f"The database does not have the campaign {table.campaign!r} of the table. Name the one it was measured "
            "with."
        )
    return found


def _rebuilt_operators(campaign: StoredCampaign, table: LookupTable) -> LookupTable:
    """Rebuild a table of operators; metadata that was not measured is taken from the earlier table."""
    order = [json.dumps(dict(network.sample)) for network in table.networks]
    keys = sorted(campaign.subjects, key=lambda key: order.index(key) if key in order else len(order))
    schedule = NetworkSchedule([], campaign.header.protocol)
    schedule.replay(campaign.records, campaign.failures)
    header = {name: getattr(table, name) for name in ("space", "input_shape", "operator_coverage")}
    specifications = {key: campaign.subjects[key]["specification"] for key in keys}
    platform = campaign.header.platform
    return operators_table(schedule, specifications, table.metric, platform=platform, **header)


def _rebuilt_layers(campaign: StoredCampaign, plan: MeasurePlan, store: Store, metric: str) -> LookupTable:
    protocol, platform = campaign.header.protocol, campaign.header.platform
    if campaign.header.kind == BatchSchedule.kind:
        prior, failed = prior_of(plan, campaign, store)
        batches = BatchSchedule(plan, protocol, prior, list(failed), metric)
        batches.replay(campaign.records, campaign.failures)
        return solve_batches(batches, failed, platform)
    layers = LayerSchedule(plan, protocol)
    layers.replay(campaign.records, campaign.failures)
    return table_of(layers, platform, metric)
