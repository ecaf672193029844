"""Whole networks of a plan, measured from the outside in interleaved rounds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Unpack

from nni_latency.errors import InvalidValueError
from nni_latency.measurement import Measurement, NetworkSchedule, Protocol, Subject, Summary
from nni_latency.measurement.runtimes import Runtime
from nni_latency.platforms import Platform
from nni_latency.tables._building import Measuring, MeasuringOptions, space_content
from nni_latency.tables._layer_schedule import Round
from nni_latency.tables._plan import NetworkSource
from nni_latency.tables._samples import Samples


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
    **how: Unpack[MeasuringOptions],
) -> NetworkMeasurements:
    """Measure whole networks, each visited once in every round, in an order that is drawn anew each time.

    The space's reference networks are visited in every round besides. It can be interrupted at any moment, and is
    resumed by the same call.

    Parameters
    ----------
    plan : NetworkSource
        The space: a `MeasurePlan`, or one whose networks are drawn.
    selections : mapping of str to mapping
        Networks by name, ``{layer: choice}`` with every layer each, or ``{label: choice}`` with every label.
    runtime, protocol, how
        As for `build_table`.

    Raises
    ------
    InvalidValueError
        If there is no network.
    MeasurementError
        If no network can be run, or the clock does not work.
    """
    if not selections:
        raise InvalidValueError("There is no network to measure.")
    measuring = Measuring(runtime, protocol, **how)
    networks = {f"network {name}": selection for name, selection in selections.items()}
    references = {f"reference {number}": network for number, network in enumerate(_references(plan))}
    schedule = NetworkSchedule(
        [_subject(plan, key, selection) for key, selection in networks.items()],
        protocol,
        isolated=measuring.benches.isolated,
        always=[_subject(plan, key, selection) for key, selection in references.items()],
    )
    content = {name: dict(selection) for name, selection in {**networks, **references}.items()}
    measuring.run(schedule, space_content(plan.space, plan.input_shape, content))
    return _summarise(selections, runtime.platform, protocol, schedule)


def _references(plan: NetworkSource) -> list[Mapping[str, Any]]:
    return [plan.reference]


def _subject(plan: NetworkSource, key: str, selection: Mapping[str, Any]) -> Subject:
    return Subject(key, plan.network_of(selection), plan.input_shape, specification={"selection": dict(selection)})


def _summarise(
    selections: Mapping[str, Mapping[str, Any]], platform: Platform, protocol: Protocol, schedule: NetworkSchedule
) -> NetworkMeasurements:
    keys = [f"network {name}" for name in selections]
    places = {key: place for place, key in enumerate(schedule.networks)}
    samples = Samples((len(places),), (places["reference 0"],))
    for records in schedule.observed:
        samples.add(Round(tuple((places[record.subjects[0]],) for record in records), tuple(records)))
    times = {}
    for key, (name, selection) in zip(keys, selections.items(), strict=True):
        if key not in schedule.failures and samples.of(0, places[key]):
            taken = tuple(samples.of(0, places[key]))
            rounds = [taken[start : start + protocol.n_run] for start in range(0, len(taken), protocol.n_run)]
            first, second = (
                Measurement(tuple(itertools.chain(*half)), protocol).summary.value
                for half in (rounds[::2], rounds[1::2] or rounds)
            )
            times[name] = NetworkTimes(selection, Measurement(taken, protocol).summary, (first, second))
    failed = {
        name: schedule.failures[key] for key, name in zip(keys, selections, strict=True) if key in schedule.failures
    }
    return NetworkMeasurements(
        times, platform, samples.reference(protocol), tuple(samples.drift), round(schedule.spent, 3), failed
    )
