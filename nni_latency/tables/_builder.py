"""The resumable builder: rounds of whole networks, then one table, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from nni_latency.errors import InvalidValueError, MismatchError
from nni_latency.files import check_writable, locked
from nni_latency.json_lines import START_OVER
from nni_latency.measurement import Protocol
from nni_latency.measurement.runtimes import Runtime
from nni_latency.operators import features_of
from nni_latency.platforms import Platform, check_same_platform, remarks_on
from nni_latency.tables._journal import Failure, Journal, RoundRecord, prior_path
from nni_latency.tables._lookup_table import LookupTable
from nni_latency.tables._memory_table import as_throughput
from nni_latency.tables._outside import OutsideCampaign
from nni_latency.tables._plan import MeasurePlan, plain_arguments
from nni_latency.tables._rounds import BuildProgress, Campaign
from nni_latency.tables._summary import summarise

#: What a resumed build may change: how long it goes on.
_MAY_CHANGE = ("time_budget", "rounds", "half_width", "timeout", "processes")


def journal_path(out: Path) -> Path:
    """Return where the journal of a table lies while the table is built."""
    return out.with_name(f".{out.name}.journal.jsonl")


def samples_path(out: Path) -> Path:
    """Return where the raw samples of a table lie if they are kept."""
    return out.with_name(f"{out.stem}.samples.jsonl")


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
        If table or journal can not be written.
    InvalidValueError
        If there is a table already and `overwrite` is false.
    BusyError
        If another process builds this table.
    MismatchError
        If the journal belongs to another space, platform or protocol, or runtime and protocol differ in threads.
    MeasurementError
        If no candidate of a layer can be run, or the clock does not work.
    UnknownNameError
        If the features of an operator can not be counted.
    """
    if runtime.platform.threads != protocol.threads:
        raise MismatchError(
            f"The runtime computes with {runtime.platform.threads} threads, the protocol says {protocol.threads}."
        )
    if metric not in ("latency", "throughput"):
        raise InvalidValueError(
            f"Measured are latency and throughput. Got {metric!r}; memory is counted by count_table."
        )
    for layer in plan.layers:
        for candidate in layer.candidates.values():
            # A kind of operator that can not be counted is told now, and not after all the measuring.
            features_of(candidate.op)
    target = Path(out)
    check_writable(target)
    with locked(target.with_name(f".{target.name}.lock"), f"building {str(target)!r}"):
        check_new(target, overwrite=overwrite)
        journal = Journal(journal_path(target), plan_header(plan, runtime.platform, protocol))
        # A journal older than the table is one that a build killed at its very end has left behind.
        stale = target.exists() and journal.exists() and journal.path.stat().st_mtime <= target.stat().st_mtime
        done, failures = open_journal(journal, runtime.platform, protocol, resume and not stale)
        before = runtime.conditions()
        if runtime.inside:
            table = _build_inside(plan, runtime, protocol, journal, done, failures, on_start, on_progress)
        else:
            table = _build_outside(plan, runtime, protocol, journal, done, on_start, on_progress)
        after = runtime.conditions()
        table = replace(
            table,
            conditions={"before": before.as_dict(), "after": after.as_dict()},
            remarks=tuple(map(str, remarks_on(before, after))),
        )
        if metric == "throughput":
            table = as_throughput(table)
        table.save(target)
        if keep_samples:
            journal.path.replace(samples_path(target))
        journal.remove()
    return table


def write_table(table: LookupTable, out: str | Path, *, overwrite: bool = False) -> LookupTable:
    """Write a table that was not measured here, and return it.

    Raises
    ------
    OutputError
        If it can not be written.
    InvalidValueError
        If there is a table already and `overwrite` is false.
    """
    check_new(Path(out), overwrite=overwrite)
    table.save(out)
    return table


def check_new(target: Path, *, overwrite: bool = False) -> None:
    """Raise `InvalidValueError` if there is a file already that may not be replaced."""
    if target.exists() and not overwrite:
        raise InvalidValueError(f"{str(target)!r} exists. Choose another file, or replace it with --overwrite.")


def _build_inside(
    plan: MeasurePlan,
    runtime: Runtime,
    protocol: Protocol,
    journal: Journal,
    done: list[RoundRecord],
    failures: list[Failure],
    on_start: Callable[[int], None],
    on_progress: Callable[[BuildProgress], None],
) -> LookupTable:
    """Time the candidates inside whole networks."""
    campaign = Campaign(plan, runtime, protocol, journal, done, failures, plan.indices_of(plan.reference))
    on_start(len(done))
    campaign.run(on_progress)
    return summarise(
        plan, runtime.platform, protocol, campaign.samples, failures=campaign.failures, duration=campaign.spent
    )


def _build_outside(
    plan: MeasurePlan,
    runtime: Runtime,
    protocol: Protocol,
    journal: Journal,
    done: list[RoundRecord],
    on_start: Callable[[int], None],
    on_progress: Callable[[BuildProgress], None],
) -> LookupTable:
    """Time whole networks and solve for the candidates."""
    campaign = OutsideCampaign(plan, runtime, protocol, journal, done)
    on_start(len(done))
    campaign.run(on_progress)
    table = campaign.table()
    campaign.forget()
    return table


def plan_header(plan: MeasurePlan, platform: Platform, protocol: Protocol) -> dict[str, Any]:
    """Say what the rounds of a journal belong to."""
    return {
        "space": {"name": plan.space.name, "arguments": plain_arguments(plan.space)},
        "input_shape": list(plan.input_shape),
        "candidates": [[layer.name, *layer.candidates] for layer in plan.layers],
        "platform": platform.as_dict(),
        "protocol": protocol.as_dict(),
    }


def open_journal(
    journal: Journal, platform: Platform, protocol: Protocol, resume: bool
) -> tuple[list[RoundRecord], list[Failure]]:
    """Return the rounds and failures of earlier runs, and leave the journal ready for the next one."""
    if not (resume and journal.exists()):
        prior_path(journal.path).unlink(missing_ok=True)
        journal.start()
        return [], []
    header, rounds, failures = journal.read()
    what = f"Going on with the journal {str(journal.path)!r}"
    if header.get("networks") != journal.header.get("networks"):
        raise MismatchError(f"{what} would mix measurements of different networks. {START_OVER}")
    for key in ("space", "input_shape", "candidates"):
        if header.get(key) != journal.header.get(key):
            raise MismatchError(
                f"{what} would mix two spaces: {header.get('space')} of input {header.get('input_shape')} "
                f"against {journal.header['space']} of input {journal.header['input_shape']}. {START_OVER}"
            )
    try:
        before, old = Platform(**header["platform"]), Protocol(**header["protocol"])
    except (KeyError, TypeError) as error:
        raise MismatchError(f"{what} is not possible: its header lacks {error}. {START_OVER}") from error
    check_same_platform(before, platform, what)
    differences = old.differences(protocol, ignore=_MAY_CHANGE)
    if differences:
        raise MismatchError(f"{what} would mix two protocols ({'; '.join(differences)}). {START_OVER}")
    journal.drop_cut_line()
    return rounds, failures
