"""The resumable builder: rounds of whole networks until the budget is spent, then one table, whole or not at all."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nni_latency.errors import InvalidValueError, MeasurementError, MismatchError
from nni_latency.files import check_writable, locked
from nni_latency.measurement import (
    Measurement,
    Protocol,
    Stage,
    balanced_round,
    quantile,
    time_chain,
    trim,
)
from nni_latency.measurement.runtimes import Runtime
from nni_latency.platforms import Platform, check_same_platform
from nni_latency.tables._entry import Entry
from nni_latency.tables._journal import Journal, RoundRecord
from nni_latency.tables._lookup_table import LookupTable, TableLayer
from nni_latency.tables._plan import MeasurePlan

#: What a resumed build may change: how long it goes on.
_MAY_CHANGE = ("time_budget", "rounds")


@dataclass(frozen=True)
class BuildProgress:
    """How far a build is.

    Parameters
    ----------
    rounds : int
        Rounds measured so far, those of earlier runs included.
    spent : float
        Time spent measuring so far [s].
    share : float
        Share of the work that is done, in [0, 1].
    resumed : int
        Rounds that earlier runs had measured.
    """

    rounds: int
    spent: float
    share: float
    resumed: int

    @property
    def remaining(self) -> float:
        """Time left [s], if rounds go on as they did."""
        return self.spent * (1 - self.share) / self.share if self.share else float("inf")


def journal_path(out: Path) -> Path:
    """Return where the journal of a table lies while the table is built."""
    return out.with_name(f".{out.name}.journal.jsonl")


def build_table(
    plan: MeasurePlan,
    runtime: Runtime,
    protocol: Protocol,
    out: str | Path,
    *,
    resume: bool = True,
    overwrite: bool = False,
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
    resume : bool, default=True
        Go on with the journal of an earlier run, if there is one; otherwise discard it.
    overwrite : bool, default=False
        Replace a finished table.
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
        If a candidate can not be run, or the clock does not work.
    """
    if runtime.platform.threads != protocol.threads:
        raise MismatchError(
            f"The runtime computes with {runtime.platform.threads} threads, the protocol says {protocol.threads}."
        )
    target = Path(out)
    check_writable(target)
    with locked(target.with_name(f".{target.name}.lock"), f"building {str(target)!r}"):
        if target.exists() and not overwrite:
            raise InvalidValueError(f"{str(target)!r} exists. Choose another file, or replace it with --overwrite.")
        journal = Journal(journal_path(target), _header(plan, runtime.platform, protocol))
        # A journal older than the table is one that a build killed at its very end has left behind.
        stale = target.exists() and journal.exists() and journal.path.stat().st_mtime <= target.stat().st_mtime
        done = _open_journal(journal, runtime.platform, protocol, resume and not stale)
        on_start(len(done))
        rounds = list(_measure(plan, runtime, protocol, journal, done, on_progress))
        table = summarise(plan, runtime.platform, protocol, rounds)
        table.save(target)
        journal.remove()
    return table


def summarise(plan: MeasurePlan, platform: Platform, protocol: Protocol, rounds: list[RoundRecord]) -> LookupTable:
    """Make the table of the rounds that were measured."""
    samples: list[list[list[float]]] = [[[] for _ in layer.candidates] for layer in plan.layers]
    runs: list[tuple[tuple[int, ...], float]] = []
    for record in rounds:
        networks = balanced_round(plan.sizes, record.index, protocol.seed)
        for network, timings in zip(networks, record.samples, strict=True):
            for times in timings:
                runs.append((network, sum(times)))
                for layer, (choice, seconds) in enumerate(zip(network, times, strict=True)):
                    samples[layer][choice].append(seconds)
    layers = tuple(
        TableLayer(
            layer.name,
            tuple(layer.candidates),
            {
                choice: _entry(layer.candidates[choice].op, Measurement(tuple(taken), protocol))
                for choice, taken in zip(layer.candidates, samples[index], strict=True)
            },
            layer.searched,
            layer.default,
        )
        for index, layer in enumerate(plan.layers)
    )
    return LookupTable(
        plan.space,
        platform,
        layers,
        plan.input_shape,
        "latency",
        protocol,
        _calibrate(layers, runs, protocol),
        len(rounds),
        round(sum(record.duration for record in rounds), 3),
    )


def _calibrate(layers: tuple[TableLayer, ...], runs: list[tuple[tuple[int, ...], float]], protocol: Protocol) -> float:
    """Find the factor that makes the sum of entries the protocol's quantile of a whole run.

    Every timed run is a whole network, so its time over the sum of its entries says how much a run exceeds it.
    """
    values = [[layer.entries[choice].value for choice in layer.choices] for layer in layers]
    ratios = [
        seconds / sum(column[choice] for column, choice in zip(values, network, strict=True))
        for network, seconds in runs
    ]
    kept, _ = trim(ratios, protocol.outlier)
    return quantile(kept, protocol.statistic)


def _entry(op: Any, measurement: Measurement) -> Entry:
    summary = measurement.summary
    return Entry(summary.value, summary.low, summary.high, summary.n_samples, summary.n_dropped, op)


def _header(plan: MeasurePlan, platform: Platform, protocol: Protocol) -> dict[str, Any]:
    return {
        "space": {"name": plan.space.name, "arguments": dict(plan.space.arguments)},
        "input_shape": list(plan.input_shape),
        "candidates": [[layer.name, *layer.candidates] for layer in plan.layers],
        "platform": {**vars(platform), "facts": dict(platform.facts)},
        "protocol": protocol.as_dict(),
    }


def _open_journal(journal: Journal, platform: Platform, protocol: Protocol, resume: bool) -> list[RoundRecord]:
    """Return the rounds of earlier runs, and leave the journal ready for the next one."""
    if not (resume and journal.exists()):
        journal.start()
        return []
    header, rounds = journal.read()
    what = f"Going on with the journal {str(journal.path)!r}"
    remedy = "Start over with --no-resume, which discards it, or choose another output file."
    for key in ("space", "input_shape", "candidates"):
        if header.get(key) != journal.header[key]:
            raise MismatchError(
                f"{what} would mix two spaces: {header.get('space')} of input {header.get('input_shape')} "
                f"against {journal.header['space']} of input {journal.header['input_shape']}. {remedy}"
            )
    try:
        before, old = Platform(**header["platform"]), Protocol(**header["protocol"])
    except (KeyError, TypeError) as error:
        raise MismatchError(f"{what} is not possible: its header lacks {error}. {remedy}") from error
    check_same_platform(before, platform, what)
    differences = old.differences(protocol, ignore=_MAY_CHANGE)
    if differences:
        raise MismatchError(f"{what} would mix two protocols ({'; '.join(differences)}). {remedy}")
    journal.drop_cut_line()
    return rounds


def _measure(
    plan: MeasurePlan,
    runtime: Runtime,
    protocol: Protocol,
    journal: Journal,
    done: list[RoundRecord],
    on_progress: Callable[[BuildProgress], None],
) -> Iterator[RoundRecord]:
    """Yield the rounds of earlier runs and measure further ones until the budget is spent."""
    yield from done
    count, spent = len(done), sum(record.duration for record in done)
    index = max((record.index for record in done), default=-1) + 1
    if done and _share(count, spent, protocol) >= 1:
        return
    with runtime.session():
        stages = _load(plan, runtime)
        inputs = runtime.inputs(plan.input_shape)
        # Code paths, caches and allocator warm up in a round that does not count: a resumed build is cold as well.
        _run_round(plan, runtime, protocol, stages, inputs, index)
        while _share(count, spent, protocol) < 1:
            record = _run_round(plan, runtime, protocol, stages, inputs, index)
            journal.append(record)
            count, spent, index = count + 1, spent + record.duration, index + 1
            on_progress(BuildProgress(count, spent, min(1.0, _share(count, spent, protocol)), len(done)))
            yield record


def _share(count: int, spent: float, protocol: Protocol) -> float:
    return max(count / protocol.rounds, spent / protocol.time_budget)


def _load(plan: MeasurePlan, runtime: Runtime) -> list[list[Stage]]:
    return [[runtime.load(candidate.build()) for candidate in layer.candidates.values()] for layer in plan.layers]


def _run_round(
    plan: MeasurePlan, runtime: Runtime, protocol: Protocol, stages: list[list[Stage]], inputs: Any, index: int
) -> RoundRecord:
    begin = time.perf_counter()
    samples = []
    for network in balanced_round(plan.sizes, index, protocol.seed):
        chain = [column[choice] for column, choice in zip(stages, network, strict=True)]
        try:
            samples.append(_run_network(chain, inputs, runtime, protocol))
        except RuntimeError as error:
            names = [list(layer.candidates)[choice] for layer, choice in zip(plan.layers, network, strict=True)]
            raise MeasurementError(f"The network {','.join(names)} can not be run: {error}") from error
    return RoundRecord(index, time.perf_counter() - begin, samples)


def _run_network(chain: list[Stage], inputs: Any, runtime: Runtime, protocol: Protocol) -> list[list[float]]:
    for _ in range(protocol.n_warmup):
        time_chain(chain, inputs, runtime.clock)
    samples: list[list[float]] = []
    while len(samples) < protocol.n_run and (
        not samples or sum(map(sum, samples)) < protocol.max_measure_execution_time
    ):
        times = time_chain(chain, inputs, runtime.clock)
        if not math.isfinite(sum(times)):
            # Refused here, so that no journal holds it and every later run fails on it.
            raise MeasurementError(f"the clock gave {times}, which are no times")
        samples.append(times)
    return samples
