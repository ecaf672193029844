"""The builder of tables of operators: a campaign of whole networks, then one table, whole or not at all."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from nni_latency.errors import MeasurementError
from nni_latency.measurement import NetworkSchedule, Protocol, Record, Subject
from nni_latency.measurement.runtimes import Runtime
from nni_latency.platforms import Platform
from nni_latency.tables._building import Measuring, MeasuringOptions, new_file, space_content
from nni_latency.tables._operator_entries import operator_entries
from nni_latency.tables._operator_plan import OperatorPlan, PlannedNetwork
from nni_latency.tables._operator_samples import OperatorSamples
from nni_latency.tables._operator_table import MeasuredNetwork, OperatorTable
from nni_latency.tables._residency import fit_residency


def build_operator_table(
    plan: OperatorPlan,
    runtime: Runtime,
    protocol: Protocol,
    out: str | Path,
    *,
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
        If there is a table already and `overwrite` is false, or the budget is too small for one round.
    BusyError
        If another process builds this table.
    MismatchError
        If runtime and protocol differ in threads.
    MeasurementError
        If no network can be run, the clock does not work, or the runtime has no operators that could be timed.
    """
    check_sees_calls(runtime)
    measuring = Measuring(runtime, protocol, **how)
    with new_file(out, overwrite=overwrite) as target:
        subjects = [network_subject(network, plan.input_shape) for network in plan.networks]
        schedule = OperatorSchedule(plan, subjects, protocol, isolated=measuring.benches.isolated)
        samples = [dict(network.sample) for network in plan.networks]
        measured = measuring.run(schedule, space_content(plan.space, plan.input_shape, samples))
        table = measured.mark(_summarise(schedule, runtime.platform))
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


def network_subject(network: PlannedNetwork, input_shape: tuple[int, ...]) -> Subject:
    """Return a network of a plan as what a bench loads."""
    sample = dict(network.sample)
    specification = {"selection": sample, **network.subject_calls.content()}
    return Subject(json.dumps(sample), network.build, input_shape, "network", network.calls.digest, specification)


def check_sees_calls(runtime: Runtime) -> None:
    """Raise `MeasurementError` if a runtime has no operators that could be timed inside a network."""
    if not runtime.sees_calls:
        raise MeasurementError(
            f"The runtime {runtime.name!r} compiles whole networks, so their operators cannot be timed inside them. "
            "Tables of spaces without layers of their own need --runtime torch or torch-nhwc."
        )


def _summarise(schedule: OperatorSchedule, platform: Platform) -> OperatorTable:
    """Make the table of all that was measured."""
    plan, samples = schedule.plan, schedule.samples
    measured = [key for key in samples.measured if key not in schedule.failures]
    entries = operator_entries(plan.ops, [place for network in measured for place in samples.places(network)])
    keys = [schedule.planned[network].op_keys for network in measured]
    sums = [math.fsum(entries[key].value for key in names if key in entries) for names in keys]
    wholes = [samples.whole(network) for network in measured]
    calibration, residency = fit_residency(sums, [whole.value for whole in wholes])
    networks = tuple(
        MeasuredNetwork(
            value=whole.value,
            low=whole.low,
            high=whole.high,
            sample=schedule.planned[network].sample,
            entries=total,
            n_samples=whole.n_samples,
        )
        for network, whole, total in zip(measured, wholes, sums, strict=True)
    )
    return OperatorTable(
        space=plan.space,
        platform=platform,
        input_shape=plan.input_shape,
        entries=tuple(entries.values()),
        networks=networks,
        protocol=schedule.protocol,
        calibration=calibration,
        residency=residency,
        rounds=schedule.rounds,
        duration=round(schedule.spent, 3),
        coverage=plan.coverage,
        drift=tuple(samples.drift),
        remarks=_unmeasured(len(measured), len(plan.networks) - len(schedule.failures)),
        failures=dict(sorted(schedule.failures.items())),
    )


def _unmeasured(measured: int, planned: int) -> tuple[str, ...]:
    """Say how many networks the budget did not reach."""
    if measured == planned:
        return ()
    return (
        f"The budget was spent after {measured} of {planned} networks, so more operators are predicted than need be: "
        "give a larger --budget.",
    )
