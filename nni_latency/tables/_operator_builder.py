"""The builder of tables of operators: a campaign of whole networks, then one table, whole or not at all."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from nni_latency.errors import InvalidValueError
from nni_latency.measurement import NetworkCalls, NetworkSchedule, Protocol, Record, StoredCampaign, Subject
from nni_latency.measurement.runtimes import Runtime
from nni_latency.operators import OpSpec, parse_op_keys
from nni_latency.platforms import Platform
from nni_latency.tables._building import Measuring, MeasuringOptions, check_metered, new_file, space_content
from nni_latency.tables._machine import fit_residency
from nni_latency.tables._operator_entries import OperatorSamples, operator_entries
from nni_latency.tables._operator_table import MeasuredNetwork, OperatorTable
from nni_latency.tables._plan import OperatorPlan
from nni_latency.tables._solving import energy_of_operators, powers_of
from nni_latency.units import number_of


def build_operator_table(
    plan: OperatorPlan,
    runtime: Runtime,
    protocol: Protocol,
    out: str | Path,
    *,
    metric: str = "latency",
    overwrite: bool = False,
    **how: Unpack[MeasuringOptions],
) -> OperatorTable:
    """Measure the networks of a plan with every operator inside them, and write the table.

    Every visit of a network runs it with a mark after every call of a torch function, and without. Every visit is in
    the store before the next begins: a build that is stopped at any moment is resumed by the same call.

    Parameters
    ----------
    plan : OperatorPlan
        What to measure; see `nni_latency.spaces.operator_plan`.
    runtime : Runtime
        What executes it. It must call operators one by one, as ``torch`` does.
    metric : {"latency", "energy"}, default="latency"
        What the table holds of what was measured. Energy [J] needs a meter among ``meters``.
    protocol, out, overwrite, how
        As for `build_table`.

    Returns
    -------
    OperatorTable
        The table that was written.

    Raises
    ------
    OutputError
        If the table or a record cannot be written.
    InvalidValueError
        If there is a table already and `overwrite` is false, the budget is too small for one round, or the metric is
        another one or needs a meter.
    BusyError
        If another process builds this table.
    MismatchError
        If runtime and protocol differ in threads.
    MeasurementError
        If no network can be run, the clock does not work, or the runtime has no operators that could be timed.
    """
    check_sees_calls(runtime)
    check_operator_metric(metric)
    measuring = Measuring(runtime, protocol, **how)
    check_metered(metric, measuring.meters)
    with new_file(out, overwrite=overwrite) as target:
        subjects = [network_subject(plan, index) for index in range(len(plan.networks))]
        schedule = OperatorSchedule(plan, subjects, protocol, isolated=measuring.benches.isolated)
        samples = [dict(network.sample) for network in plan.networks]
        measured = measuring.run(schedule, space_content(plan.space, plan.input_shape, samples))
        table = measured.mark(_summarise(schedule, runtime.platform, metric))
        table.save(target)
        return table


class OperatorSchedule(NetworkSchedule):
    """Rounds of networks whose operators are timed inside them; the first network is the reference network."""

    kind = "operators"

    def __init__(
        self, plan: OperatorPlan, subjects: Sequence[Subject], protocol: Protocol, *, isolated: bool = True
    ) -> None:
        calls = {subject.key: network.subject_calls for subject, network in zip(subjects, plan.networks, strict=True)}
        super().__init__(
            subjects[1:],
            protocol,
            isolated=isolated,
            always=subjects[:1],
            divided=True,
            calls=True,
            n_calls={key: item.n_calls for key, item in calls.items()},
        )
        self.plan = plan
        self.planned = dict(zip(calls, plan.networks, strict=True))
        self.samples = OperatorSamples(calls, protocol, subjects[0].key)

    def observe(self, records: Sequence[Record]) -> None:
        """Take in one round."""
        super().observe(records)
        self.samples.add(records)


def network_subject(plan: OperatorPlan, index: int) -> Subject:
    """Return a network of a plan as what a bench loads."""
    network = plan.networks[index]
    sample = dict(network.sample)
    specification = {"selection": sample, "reference": index == 0, **network.subject_calls.content()}
    return Subject(json.dumps(sample), network.build, plan.input_shape, "network", network.calls.digest, specification)


def check_sees_calls(runtime: Runtime) -> None:
    """Raise `MeasurementError` if a runtime has no operators that could be timed inside a network."""
    if not runtime.sees_calls:
        raise runtime.sees_no_calls(
            "Tables of spaces without layers of their own need one that can, such as torch or torch-nhwc."
        )


def check_operator_metric(metric: str) -> None:
    """Raise `InvalidValueError` if no table of operators can hold a metric."""
    if metric not in ("latency", "energy"):
        raise InvalidValueError(
            f"A table of operators holds latency or energy, which add up to those of networks. Got {metric!r}."
        )


def _summarise(schedule: OperatorSchedule, platform: Platform, metric: str) -> OperatorTable:
    """Make the table of all that was measured."""
    plan, planned = schedule.plan, schedule.planned
    return _table_of(
        schedule,
        schedule.samples,
        {key: dict(network.sample) for key, network in planned.items()},
        plan.ops,
        metric,
        space=plan.space,
        platform=platform,
        input_shape=plan.input_shape,
        coverage=plan.coverage,
    )


def stored_operator_table(campaign: StoredCampaign, table: OperatorTable) -> OperatorTable:
    """Make a table again of what a campaign has measured; what was not measured stays as in the earlier table."""
    order = [json.dumps(dict(network.sample)) for network in table.networks]
    keys = sorted(campaign.subjects, key=lambda key: order.index(key) if key in order else len(order))
    subjects = {key: campaign.subjects[key]["specification"] for key in keys}
    calls = {key: NetworkCalls.read(item) for key, item in subjects.items()}
    samples = OperatorSamples(calls, campaign.header.protocol, reference_of(subjects))
    done = NetworkSchedule([], campaign.header.protocol)
    done.replay(campaign.records, campaign.failures)
    for records in done.observed:
        samples.add(records)
    names = dict.fromkeys(key for item in calls.values() for key in (*item.modules.operators, *item.graph.operators))
    return _table_of(
        done,
        samples,
        {key: item["selection"] for key, item in subjects.items()},
        {name: parse_op_keys(name)[0] for name in names},
        table.metric,
        space=table.space,
        platform=campaign.header.platform,
        input_shape=table.input_shape,
        coverage=table.coverage,
    )


def reference_of(specifications: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the key of the reference network among the subjects of a campaign; empty if there is none."""
    return next((key for key, item in specifications.items() if item.get("reference")), "")


def _table_of(
    schedule: NetworkSchedule,
    samples: OperatorSamples,
    selections: Mapping[str, Mapping[str, Any]],
    ops: Mapping[str, OpSpec],
    metric: str,
    **header: Any,
) -> OperatorTable:
    measured = [key for key in samples.measured if key not in schedule.failures]
    entries = operator_entries(ops, [place for network in measured for place in samples.places(network)])
    keys = [samples.networks[network].modules.operators for network in measured]
    sums = [math.fsum(entries[key].value for key in names if key in entries) for names in keys]
    wholes = [samples.whole(network) for network in measured]
    calibration, residency = fit_residency(sums, [whole.value for whole in wholes])
    networks = tuple(
        MeasuredNetwork(
            value=whole.value,
            low=whole.low,
            high=whole.high,
            sample=selections[network],
            entries=total,
            n_samples=whole.n_samples,
        )
        for network, whole, total in zip(measured, wholes, sums, strict=True)
    )
    table = OperatorTable(
        **header,
        entries=tuple(entries.values()),
        networks=networks,
        protocol=schedule.protocol,
        calibration=calibration,
        residency=residency,
        rounds=schedule.rounds,
        duration=round(schedule.spent, 3),
        drift=tuple(samples.drift),
        remarks=_unmeasured(len(measured), len(selections) - len(schedule.failures)),
        failures=dict(sorted(schedule.failures.items())),
    )
    if metric == "latency":
        return table
    powers = powers_of([record for records in schedule.observed for record in records])
    return energy_of_operators(table, keys, [powers[network] for network in measured if network in powers])


def _unmeasured(measured: int, planned: int) -> tuple[str, ...]:
    """Say how many networks the budget did not reach."""
    if measured == planned:
        return ()
    return (
        f"The budget was spent after {measured} of {number_of(planned, 'network')}, so more operators are predicted "
        "than need be: give a larger budget.",
    )
