"""`run_benchmarks`: from blocks to a file of points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.files import reserved
from nni_latency.measurement import Protocol
from nni_latency.measurement.runtimes import Runtime
from nni_latency.micro_benchmarks._blocks import BATCHES, BLOCKS
from nni_latency.micro_benchmarks._campaign import BenchmarkCampaign, Series
from nni_latency.micro_benchmarks._journal import BenchmarkJournal
from nni_latency.micro_benchmarks._points import BenchmarkPoint, BenchmarkPoints
from nni_latency.platforms import remarks_on
from nni_latency.tables import BuildProgress, check_new, journal_path

#: The predefined set at all batch sizes.
SERIES: tuple[Series, ...] = tuple((block, BATCHES) for block in BLOCKS)

#: Settings of the protocol that a run which goes on may change.
_MAY_CHANGE = ("time_budget", "rounds", "half_width", "timeout")


def run_benchmarks(
    runtime: Runtime,
    protocol: Protocol,
    out: str | Path,
    *,
    series: Sequence[Series] = SERIES,
    resume: bool = True,
    overwrite: bool = False,
    on_progress: Callable[[BuildProgress], None] = lambda _progress: None,
    on_start: Callable[[int], None] = lambda _rounds: None,
) -> BenchmarkPoints:
    """Measure blocks, each alone but as it would find the caches inside a network, and write the points.

    Every block is tried at larger and larger batch sizes, until memory or the time budget end its series. Then rounds
    over all points follow. A journal beside the file keeps everything: the same call goes on where it was stopped.

    Parameters
    ----------
    runtime : Runtime
        What executes the blocks; its platform goes into the file.
    protocol : Protocol
        How to measure; by `time_budget`, the points take a thousandth of it each at most.
    out : str or Path
        Where the points go.
    series : sequence of (Block, tuple of int)
        Blocks, each with its batch sizes, smallest first; the predefined set by default.
    resume : bool, default=True
        Go on with the journal of an earlier run, if there is one; otherwise discard it.
    overwrite : bool, default=False
        Replace a finished file.
    on_progress : callable, optional
        Called with a `BuildProgress` after every point that is found and every round.
    on_start : callable, optional
        Called with the number of rounds in the journal once everything is checked, before anything is measured.

    Returns
    -------
    BenchmarkPoints
        What was written.

    Raises
    ------
    OutputError
        If file or journal cannot be written.
    InvalidValueError
        If there is a file already and `overwrite` is false, or there is no block.
    BusyError
        If another process measures for this file.
    MismatchError
        If the journal belongs to other blocks, another platform or protocol, or runtime and protocol differ in threads.
    MeasurementError
        If no block can be run, or the runtime cannot time a block behind its feeder.
    """
    _check(series, runtime, protocol)
    target = Path(out)
    with reserved(target, "measuring for"):
        check_new(target, overwrite=overwrite)
        journal = BenchmarkJournal(journal_path(target), _header(series, runtime, protocol))
        done = journal.open(resume=resume and not journal.is_left_behind(target))
        campaign = BenchmarkCampaign(series, runtime, protocol, journal, done)
        on_start(campaign.rounds)
        before = runtime.conditions()
        campaign.run(on_progress)
        remarks = tuple(map(str, remarks_on(before, runtime.conditions())))
        points = _summarise(campaign, runtime, protocol, remarks)
        points.save(target)
        journal.remove()
    return points


def _check(series: Sequence[Series], runtime: Runtime, protocol: Protocol) -> None:
    if not runtime.inside:
        raise MeasurementError(
            f"The runtime {runtime.name!r} compiles whole networks and cannot be timed behind a feeder. "
            "Measure micro-benchmarks with 'torch'."
        )
    protocol.check_threads(runtime.platform.threads)
    names = [block.name for block, _ in series]
    if not names or len(set(names)) != len(names):
        raise InvalidValueError("The 'series' must be blocks that are all different, at least one.")
    for block, batches in series:
        if not batches or list(batches) != sorted(set(batches)) or batches[0] < 1:
            raise InvalidValueError(f"The batch sizes of {block.name!r} must be >= 1 and rise. Got {batches!r}.")


def _header(series: Sequence[Series], runtime: Runtime, protocol: Protocol) -> dict[str, object]:
    settings = {name: value for name, value in protocol.as_dict().items() if name not in _MAY_CHANGE}
    return {
        "blocks": [[block.name, *batches] for block, batches in series],
        "platform": runtime.platform.as_dict(),
        "protocol": settings,
    }


def _summarise(
    campaign: BenchmarkCampaign, runtime: Runtime, protocol: Protocol, remarks: tuple[str, ...]
) -> BenchmarkPoints:
    points = tuple(
        BenchmarkPoint(
            block.name, block.kind, block.input_shape(batch), ops, found.value, found.low, found.high, found.n_samples
        )
        for (_, batch), (block, ops, found) in campaign.summaries().items()
    )
    return BenchmarkPoints(
        points,
        runtime.platform,
        protocol,
        campaign.reasons,
        campaign.rounds,
        round(campaign.spent, 3),
        tuple(campaign.drift),
        remarks,
    )
