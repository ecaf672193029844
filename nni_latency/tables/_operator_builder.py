"""The resumable builder of tables of operators: rounds of whole networks, then one table, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from nni_latency.errors import MeasurementError
from nni_latency.measurement import Protocol
from nni_latency.measurement.runtimes import Runtime
from nni_latency.tables._building import building, journal_header
from nni_latency.tables._operator_entries import network_sums, operator_entries
from nni_latency.tables._operator_plan import OperatorPlan
from nni_latency.tables._operator_rounds import OperatorCampaign
from nni_latency.tables._operator_table import MeasuredNetwork, OperatorTable
from nni_latency.tables._residency import fit_residency
from nni_latency.tables._rounds import BuildProgress

#: What small networks save is believed only if it explains the networks better by this share: there are few.
_LEAST_GAIN = 0.1


def build_operator_table(
    plan: OperatorPlan,
    runtime: Runtime,
    protocol: Protocol,
    out: str | Path,
    *,
    resume: bool = True,
    overwrite: bool = False,
    keep_samples: bool = False,
    on_progress: Callable[[BuildProgress], None] = lambda _progress: None,
    on_start: Callable[[int], None] = lambda _rounds: None,
) -> OperatorTable:
    """Measure the networks of a plan with every operator inside them, and write the table.

    Every visit of a network runs it with a mark after every call of a torch function, and without. A journal beside the
    table keeps every round: a build stopped at any moment loses the round in flight at most.

    Parameters
    ----------
    plan : OperatorPlan
        What to measure; see `nni_latency.spaces.operator_plan`.
    runtime : Runtime
        What executes it. It must call operators one by one, as ``torch`` does.
    protocol, out, resume, overwrite, keep_samples, on_progress, on_start
        As for `build_table`.

    Returns
    -------
    OperatorTable
        The table that was written.

    Raises
    ------
    OutputError
        If table or journal cannot be written.
    InvalidValueError
        If there is a table already and `overwrite` is false, or the budget is too small for one round.
    BusyError
        If another process builds this table.
    MismatchError
        If the journal belongs to another plan, platform or protocol, or runtime and protocol differ in threads.
    MeasurementError
        If no network can be run, the clock does not work, or the runtime has no operators that could be timed.
    """
    check_sees_calls(runtime)
    samples = [dict(network.sample) for network in plan.networks]
    header = journal_header(plan, samples, runtime.platform, protocol)
    with building(out, header, runtime, protocol, resume=resume, overwrite=overwrite) as build:
        campaign = OperatorCampaign(plan, runtime, protocol, build.journal, build.done, build.failures)
        on_start(len(build.done))
        campaign.run(on_progress)
        return build.finish(_summarise(campaign), keep_samples=keep_samples)


def check_sees_calls(runtime: Runtime) -> None:
    """Raise `MeasurementError` if a runtime has no operators that could be timed inside a network."""
    if not runtime.sees_calls:
        raise MeasurementError(
            f"The runtime {runtime.name!r} compiles whole networks, so their operators cannot be timed inside them. "
            "Tables of spaces without layers of their own need --runtime torch or torch-nhwc."
        )


def _summarise(campaign: OperatorCampaign) -> OperatorTable:
    """Make the table of all that was measured."""
    plan, samples = campaign.plan, campaign.samples
    entries = operator_entries(plan, samples)
    sums = network_sums(plan, samples, entries)
    wholes = [samples.whole(network) for network in samples.measured]
    calibration, residency = fit_residency(sums, [whole.value for whole in wholes], 0.5, least_gain=_LEAST_GAIN)
    networks = tuple(
        MeasuredNetwork(plan.networks[network].sample, whole.value, whole.low, whole.high, total, whole.n_samples)
        for network, whole, total in zip(samples.measured, wholes, sums, strict=True)
    )
    return OperatorTable(
        plan.space,
        campaign.runtime.platform,
        plan.input_shape,
        tuple(entries.values()),
        networks,
        campaign.protocol,
        calibration,
        residency,
        campaign.rounds,
        round(campaign.spent, 3),
        plan.coverage,
        tuple(samples.drift),
        remarks=_unmeasured(campaign),
        failures={
            json.dumps(dict(plan.networks[index].sample)): reason for index, reason in sorted(campaign.failures.items())
        },
    )


def _unmeasured(campaign: OperatorCampaign) -> tuple[str, ...]:
    """Say how many networks the budget did not reach."""
    measured, planned = len(campaign.samples.measured), len(campaign.plan.networks) - len(campaign.failures)
    if measured == planned:
        return ()
    return (
        f"The budget was spent after {measured} of {planned} networks, so more operators are predicted than need be: "
        "give a larger --budget.",
    )
