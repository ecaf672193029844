"""From samples to a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from nni_latency.costs import NORMAL
from nni_latency.measurement import Protocol, Summary
from nni_latency.platforms import Platform
from nni_latency.regression import huber_locations
from nni_latency.tables._entry import Entry
from nni_latency.tables._lookup_table import LookupTable
from nni_latency.tables._network_error import network_error
from nni_latency.tables._plan import MeasurePlan
from nni_latency.tables._samples import Runs, Samples
from nni_latency.tables._speed import location_errors
from nni_latency.tables._table_fit import Places, TableFit
from nni_latency.tables._table_layer import TableLayer

#: Networks lighter than this share of the median one lie at the end of the curve and say little of the others.
_LIGHTEST = 0.25

#: Runs of a network from which its own deviation is told, and rounds that can be divided into halves.
_FEWEST_RUNS, _FEWEST_ROUNDS = 6, 4


def summarise(
    plan: MeasurePlan,
    platform: Platform,
    protocol: Protocol,
    samples: Samples,
    *,
    failures: Mapping[tuple[int, int], str] = MappingProxyType({}),
    duration: float = 0.0,
) -> LookupTable:
    """Make the table of what was measured.

    An entry is what a candidate costs in a network that is too large for the cache, at the machine's usual speed. A
    sample is divided by how slow the machine was just then, and by what the size of its network saves.
    """
    runs = samples.runs
    places = Places.of([[candidate.op.op_key for candidate in layer.candidates.values()] for layer in plan.layers])
    fit = TableFit.of(runs, places, protocol)
    summaries = fit.summaries(runs, protocol)
    return LookupTable(
        space=plan.space,
        platform=platform,
        layers=_layers(plan, places, summaries, failures),
        input_shape=plan.input_shape,
        protocol=protocol,
        calibration=fit.calibration,
        rounds=len(samples.drift),
        duration=round(duration, 3),
        residency=fit.residency,
        reference=_reference(runs, fit, plan.indices_of(plan.reference)),
        drift=tuple(float(f"{seconds:.6g}") for seconds in samples.drift),
        network_error=_network_error(runs, fit, summaries, protocol),
    )


def _reference(runs: Runs, fit: TableFit, network: tuple[int, ...]) -> float | None:
    """Return the time of the reference network [s] at the usual speed; None if it was never visited."""
    taken = np.log(runs.whole / fit.slowness)[(runs.networks == network).all(axis=1)]
    if not len(taken):
        return None
    return float(np.exp(huber_locations(taken, np.zeros(len(taken), dtype=np.int64), 1)[0]))


def _network_error(runs: Runs, fit: TableFit, summaries: Sequence[Summary | None], protocol: Protocol) -> float | None:
    """Return by how much networks differ from their sums beyond chance; None if too few were run again and again.

    The runs of every other round are held to the entries of the rest, so that no network is held to itself.
    """
    repeated = runs.counts >= _FEWEST_RUNS
    if len(np.unique(runs.rounds)) < _FEWEST_ROUNDS or not repeated.any():
        return None
    rest = np.log(runs.whole / fit.slowness)
    for half in (0, 1):
        trained, held_out = (
            TableFit.of(runs.of_rounds(1 - half), fit.places, protocol),
            runs.rounds[runs.visits] % 2 == half,
        )
        rest[held_out] -= np.log(trained.predict(runs.networks[held_out]))
    known = np.isfinite(rest)
    rest = rest - np.median(rest[known])
    groups, count = runs.ids[known], len(runs.distinct)
    locations = huber_locations(rest[known], groups, count)
    errors = location_errors(rest[known] - locations[groups], groups, count)
    costs = fit.predict(runs.distinct)
    taken = repeated & np.isfinite(locations) & (costs > _LIGHTEST * np.median(costs))
    widths = np.array([0.0 if item is None else (item.high - item.low) / (2 * NORMAL) for item in summaries])
    index = runs.distinct[taken] + fit.places.starts
    chance = np.sqrt((widths[index] ** 2).sum(axis=1)) / fit.values[index].sum(axis=1)
    return float(f"{network_error(locations[taken], np.hypot(errors[taken], chance)):.4g}")


def _layers(
    plan: MeasurePlan, places: Places, summaries: Sequence[Summary | None], failures: Mapping[tuple[int, int], str]
) -> tuple[TableLayer, ...]:
    layers = []
    for index, (layer, start) in enumerate(zip(plan.layers, places.starts.tolist(), strict=True)):
        names = tuple(layer.candidates)
        failed = {names[choice]: reason for (place, choice), reason in failures.items() if place == index}
        entries = {}
        for (name, candidate), item in zip(layer.candidates.items(), summaries[start:], strict=False):
            # What has failed in the end has no entry, even if it was measured before.
            if item is not None and name not in failed:
                entries[name] = Entry(item.value, item.low, item.high, item.n_samples, item.n_dropped, candidate.op)
        layers.append(TableLayer(layer.name, names, entries, layer.searched, layer.default, failed))
    return tuple(layers)
