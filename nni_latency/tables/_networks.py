# SPDX-License-Identifier: Apache-2.0
"""Whole networks of a plan, timed end to end in interleaved rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np

from nni_latency.costs import NORMAL
from nni_latency.errors import InvalidValueError
from nni_latency.measurement import NetworkSchedule, Protocol, Subject, Summary, quantile, quantile_interval
from nni_latency.measurement.runtimes import Runtime
from nni_latency.platforms import Platform
from nni_latency.regression import group_means, huber_locations
from nni_latency.tables._building import METERED, Measuring, MeasuringOptions, check_metered, space_content
from nni_latency.tables._layer_schedule import Round, Runs, Samples
from nni_latency.tables._machine import locate
from nni_latency.tables._plan import NetworkSource

#: Name of the first reference network in the results; the others have a number.
REFERENCE = "reference"


@dataclass(frozen=True)
class NetworkTimes:
    """Times of the runs of one network.

    Parameters
    ----------
    selection : mapping
        The network, ``{layer: choice}`` or ``{label: choice}``.
    summary : Summary
        Time of all runs, normalised to the machine's usual speed [s].
    halves : tuple of float
        Times from the runs of every other round, and from the rest [s].
    runs : tuple of float
        Measured time of every run [s].
    speeds : tuple of float
        Slowness of the machine at each run, as a factor of the usual time.
    """

    selection: Mapping[str, Any]
    summary: Summary
    halves: tuple[float, float]
    runs: tuple[float, ...] = ()
    speeds: tuple[float, ...] = ()


@dataclass(frozen=True)
class NetworkMeasurements:
    """Whole networks measured in one campaign.

    Parameters
    ----------
    networks : mapping of str to NetworkTimes
        Times by name of the network.
    platform : Platform
        Platform of the measurements.
    references : mapping of str to NetworkTimes
        The space's reference networks, which were visited in addition; those that could be executed.
    drift : tuple of float
        Median time of the reference operator in every round [s].
    duration : float
        Time spent measuring [s].
    failures : mapping of str to str
        Networks that could not be executed, each with the reason.
    fallbacks : tuple of str, default=()
        Sentences that name operators which did not run on the requested device or in the requested precision.
    metric : str, default="latency"
        Measured metric; all times stand for its values, in its SI unit.
    """

    networks: Mapping[str, NetworkTimes]
    platform: Platform
    references: Mapping[str, NetworkTimes]
    drift: tuple[float, ...]
    duration: float
    failures: Mapping[str, str]
    fallbacks: tuple[str, ...] = ()
    metric: str = "latency"

    @property
    def reference(self) -> float | None:
        """Time of the first reference network [s]; None if it could not be executed."""
        found = (item.summary.value for name, item in self.references.items() if name.rstrip("'") == REFERENCE)
        return next(found, None)


def measure_networks(
    plan: NetworkSource,
    selections: Mapping[str, Mapping[str, Any]],
    runtime: Runtime,
    protocol: Protocol,
    *,
    metric: str = "latency",
    **how: Unpack[MeasuringOptions],
) -> NetworkMeasurements:
    """Measure whole networks, each visited once in every round, in a new random order.

    The space's reference networks are visited in every round as well. After an interruption at any moment, the same
    call resumes.

    Parameters
    ----------
    plan : NetworkSource
        The space: a `MeasurePlan`, or a space that samples networks.
    selections : mapping of str to mapping
        Networks by name, ``{layer: choice}`` with every layer each, or ``{label: choice}`` with every label.
    runtime, protocol, how
        As for `build_table`.
    metric : {"latency", "energy", "power"}, default="latency"
        Metric to measure. Energy [J] and power [W] need a meter among ``meters``.

    Raises
    ------
    InvalidValueError
        If there is no network.
    MeasurementError
        If no network can be executed, or the clock does not work.
    """
    if not selections:
        raise InvalidValueError("There is no network to measure.")
    if metric not in ("latency", *METERED):
        raise InvalidValueError(f"Whole networks are measured in latency, energy or power, not in {metric}.")
    measuring = Measuring(runtime, protocol, **how)
    check_metered(metric, measuring.meters)
    references = reference_networks(plan, selections)
    subjects = [_subject(plan, f"network {name}", selection) for name, selection in selections.items()]
    always = [_subject(plan, f"reference {name}", selection) for name, selection in references.items()]
    schedule = NetworkSchedule(subjects, protocol, isolated=measuring.benches.isolated, always=always)
    content = {subject.key: subject.specification["selection"] for subject in (*subjects, *always)}
    done = measuring.run(schedule, space_content(plan.space, plan.input_shape, content))
    found = _summarise(selections, references, runtime.platform, schedule, metric)
    return replace(found, fallbacks=done.fallbacks)


def reference_networks(plan: NetworkSource, selections: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Name the reference networks of a space, without clashes with the other names."""
    named: dict[str, Mapping[str, Any]] = {}
    for number, reference in enumerate(plan.references, 1):
        name = REFERENCE if number == 1 else f"{REFERENCE} {number}"
        while name in selections:
            name += "'"
        named[name] = reference
    return named


def _subject(plan: NetworkSource, key: str, selection: Mapping[str, Any]) -> Subject:
    return Subject(key, plan.network_of(selection), plan.input_shape, specification={"selection": dict(selection)})


def _name_of(key: str) -> str:
    """Return the name of a network from the key of its subject, ``network NAME`` or ``reference NAME``."""
    return key.partition(" ")[2]


def _summarise(
    selections: Mapping[str, Mapping[str, Any]],
    references: Mapping[str, Mapping[str, Any]],
    platform: Platform,
    schedule: NetworkSchedule,
    metric: str,
) -> NetworkMeasurements:
    """Summarise all networks together."""
    everything = {**selections, **references}
    places = {name: place for place, name in enumerate(everything)}
    samples = Samples((len(places),))
    for records in schedule.observed:
        samples.add(Round(tuple((places[_name_of(record.subjects[0])],) for record in records), tuple(records)))
    failed = {_name_of(key): reason for key, reason in schedule.failures.items()}
    found = network_times(everything, samples.runs, schedule.protocol) if samples.drift else {}
    measured = {name: times for name, times in found.items() if name not in failed}
    if metric != "latency":
        metered = {name: _metered(times, places[name], samples, metric) for name, times in measured.items()}
        measured = {name: times for name, times in metered.items() if times is not None}
    return NetworkMeasurements(
        {name: times for name, times in measured.items() if name in selections},
        platform,
        {name: times for name, times in measured.items() if name in references},
        tuple(samples.drift),
        round(schedule.spent, 3),
        {name: reason for name, reason in failed.items() if name in selections},
        metric=metric,
    )


def _metered(times: NetworkTimes, place: int, samples: Samples, metric: str) -> NetworkTimes | None:
    """Return the power of a network, or the energy of a run: its time at the usual speed times the power.

    None if it was never metered.
    """
    powers = [
        [
            watts
            for (index,), visit in zip(item.networks, item.visits, strict=True)
            if index == place
            for watts in visit.samples.get("power", ())
        ]
        for item in samples.rounds
    ]
    known = [watts for row in powers for watts in row]
    if not known:
        return None
    middle = quantile(known, 0.5)
    halves = [quantile([watts for row in powers[half::2] for watts in row] or known, 0.5) for half in (0, 1)]
    low, high = quantile_interval(known, 0.5, 0.95)
    power = Summary(middle, min(low, middle), max(high, middle), len(known), 0)
    if metric == "power":
        return replace(times, summary=power, halves=(halves[0], halves[1]), runs=tuple(known), speeds=())
    width = math.hypot(times.summary.spread, power.spread) * middle * times.summary.value
    value = times.summary.value * middle
    summary = Summary(value, max(0.0, value - width), value + width, len(known), 0)
    first, second = (seconds * watts for seconds, watts in zip(times.halves, halves, strict=True))
    return replace(times, summary=summary, halves=(first, second), runs=(), speeds=())


def network_times(
    selections: Mapping[str, Mapping[str, Any]], runs: Runs, protocol: Protocol
) -> dict[str, NetworkTimes]:
    """Estimate the time of every network, corrected for the machine's speed at each visit."""
    network, count = runs.networks[:, 0], len(selections)
    logs = np.log(runs.whole)
    visits = group_means(logs, runs.visits, len(runs.reference))
    found = locate(visits, runs.reference, network[runs.first], count, protocol.statistic)
    speed = found.speed[runs.visits]
    odd = runs.rounds[runs.visits] % 2
    halves = [huber_locations((logs - speed)[odd == half], network[odd == half], count) for half in (0, 1)]
    times = {}
    for index, (name, selection) in enumerate(selections.items()):
        own, value, width = network == index, found.values[index], NORMAL * found.errors[index]
        if own.any():
            first, second = (math.exp(value if np.isnan(half[index]) else half[index]) for half in halves)
            low, middle, high = np.exp([value - width, value, value + width]).tolist()
            times[name] = NetworkTimes(
                selection,
                Summary(middle, low, high, int(own.sum()), 0),
                (first, second),
                tuple(runs.whole[own].tolist()),
                tuple(np.exp(speed[own]).tolist()),
            )
    return times
