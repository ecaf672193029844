"""Whole networks of a plan, measured from the outside in interleaved rounds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nni_latency.errors import InvalidValueError
from nni_latency.files import reserved
from nni_latency.measurement import Measurement, Protocol, Summary
from nni_latency.measurement.runtimes import Runtime
from nni_latency.platforms import Platform
from nni_latency.tables._builder import plan_header
from nni_latency.tables._building import journal_path, open_journal
from nni_latency.tables._journal import Journal
from nni_latency.tables._plan import NetworkSource, network_plan
from nni_latency.tables._rounds import BuildProgress, Campaign

#: Name of the space's reference network among those that are measured.
REFERENCE = "reference"


@dataclass(frozen=True)
class NetworkTimes:
    """What the runs of one network took.

    Parameters
    ----------
    selection : mapping
        The network, ``{layer: choice}`` or ``{label: choice}``.
    summary : Summary
        Time of all runs [s].
    halves : tuple of float
        Time [s] by the runs of every other round alone, and by the others.
    """

    selection: Mapping[str, Any]
    summary: Summary
    halves: tuple[float, float]


@dataclass(frozen=True)
class NetworkMeasurements:
    """Whole networks that were measured in one run.

    Parameters
    ----------
    networks : mapping of str to NetworkTimes
        By name.
    platform : Platform
        Where.
    reference : float or None
        Time of the space's reference network [s], which was visited in every round besides.
    drift : tuple of float
        Median time of the reference operator in every round [s].
    duration : float
        Time spent measuring [s].
    failures : mapping of str to str
        Networks that could not be run, each with the reason.
    """

    networks: Mapping[str, NetworkTimes]
    platform: Platform
    reference: float | None
    drift: tuple[float, ...]
    duration: float
    failures: Mapping[str, str]


def measure_networks(
    plan: NetworkSource,
    selections: Mapping[str, Mapping[str, Any]],
    runtime: Runtime,
    protocol: Protocol,
    out: str | Path,
    *,
    resume: bool = True,
    on_progress: Callable[[BuildProgress], None] = lambda _progress: None,
    on_start: Callable[[int], None] = lambda _rounds: None,
) -> NetworkMeasurements:
    """Measure whole networks, each visited once in every round, in an order that is drawn anew each time.

    It can be interrupted at any moment and goes on where it was, with the journal beside `out`. Whoever has written
    what he made of the measurements removes the journal with `remove_journal`.

    Parameters
    ----------
    plan : NetworkSource
        The space: a `MeasurePlan`, or one whose networks are drawn.
    selections : mapping of str to mapping
        Networks by name, ``{layer: choice}`` with every layer each, or ``{label: choice}`` with every label.
    runtime, protocol, resume, on_progress, on_start
        As for `build_table`.
    out : str or Path
        The file that is to be written of it.

    Raises
    ------
    InvalidValueError
        If there is no network.
    MeasurementError
        If no network can be run, or the clock does not work.
    MismatchError
        If the journal belongs to other networks, another platform or protocol.
    """
    if not selections:
        raise InvalidValueError("There is no network to measure.")
    target = Path(out)
    everything = {**selections, _free_name(selections): plan.reference}
    whole = network_plan(plan, everything)
    header = {
        **plan_header(whole, runtime.platform, protocol),
        "networks": {name: dict(item) for name, item in everything.items()},
    }
    with reserved(target, "measuring for"):
        journal = Journal(journal_path(target), header)
        done, failures = open_journal(journal, runtime.platform, protocol, resume)
        campaign = Campaign(whole, runtime, protocol, journal, done, failures, (len(selections),))
        on_start(len(done))
        campaign.run(on_progress)
        return _summarise(selections, runtime.platform, protocol, campaign)


def _free_name(selections: Mapping[str, Any]) -> str:
    """Return a name for the reference network that none of the others has."""
    name = REFERENCE
    while name in selections:
        name += "'"
    return name


def remove_journal(out: str | Path) -> None:
    """Remove the journal beside a file that is written."""
    journal_path(Path(out)).unlink(missing_ok=True)


def _summarise(
    selections: Mapping[str, Mapping[str, Any]], platform: Platform, protocol: Protocol, campaign: Campaign
) -> NetworkMeasurements:
    names = [*selections, REFERENCE]
    failed = {names[failure.choice]: failure.reason for failure in campaign.failures}
    times = {}
    for index, (name, selection) in enumerate(selections.items()):
        if name not in failed:
            taken = tuple(campaign.samples.of(0, index))
            rounds = [taken[start : start + protocol.n_run] for start in range(0, len(taken), protocol.n_run)]
            first, second = (
                Measurement(tuple(itertools.chain(*half)), protocol).summary.value
                for half in (rounds[::2], rounds[1::2] or rounds)
            )
            times[name] = NetworkTimes(selection, Measurement(taken, protocol).summary, (first, second))
    samples = campaign.samples
    return NetworkMeasurements(
        times, platform, samples.reference(protocol), tuple(samples.drift), round(campaign.spent, 3), failed
    )
