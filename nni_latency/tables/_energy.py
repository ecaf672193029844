"""Tables of energy and power: what whole networks draw, divided among their candidates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from nni_latency.costs import NORMAL
from nni_latency.errors import MeasurementError
from nni_latency.measurement import Record, quantile
from nni_latency.tables._entry import Entry
from nni_latency.tables._layer_schedule import LayerSchedule, Network
from nni_latency.tables._lookup_table import LookupTable
from nni_latency.tables._solving import Solution, solve_entries
from nni_latency.tables._table_layer import TableLayer

#: Networks from which candidates are told apart; of fewer only the mean power is known.
_FEWEST = 3

#: Standard deviation of the power of a candidate, as a share, where nothing is known of it.
_UNKNOWN = 0.2


def metered_table(table: LookupTable, schedule: LayerSchedule, metric: str) -> LookupTable:
    """Turn a table of latencies into one of energy or power, by what a meter read of the same networks.

    No meter resolves a layer, so the energy of whole networks is solved for that of their candidates, with their times
    as the prior: a network costs the sum of its latencies times its power. An entry of power is what a candidate adds
    to the mean power of a network.

    Parameters
    ----------
    table : LookupTable
        The latencies [s].
    schedule : LayerSchedule
        What was measured.
    metric : {"energy", "power"}
        What the table holds.

    Raises
    ------
    MeasurementError
        If no meter was read.
    """
    powers = network_powers(schedule)
    if not powers:
        raise MeasurementError(f"No meter was read, so there is no {metric}. Measure anew, with a meter.")
    mean = quantile(list(powers.values()), 0.5)
    if metric == "power":
        even = mean / len(table.layers)
        return replace(
            table,
            metric="power",
            layers=_solved(table, powers, lambda _entry: even, lambda _network: 1.0),
            calibration=1.0,
            residency=None,
            network_error=None,
            reference=None,
        )
    values = _latencies(table)
    return replace(
        table,
        metric="energy",
        layers=_solved(
            table,
            powers,
            lambda entry: mean * entry.value,
            lambda network: math.fsum(column[choice] for column, choice in zip(values, network, strict=True)),
        ),
        residency=table.residency and table.residency.scaled(mean),
        reference=None if table.reference is None else table.reference * mean,
    )


def network_powers(schedule: LayerSchedule) -> dict[Network, float]:
    """Return the power of every network that was visited with a meter, the median of its windows [W]."""
    found: dict[Network, list[float]] = {}
    for network, record in _visits(schedule):
        found.setdefault(network, []).extend(record.samples.get("power", ()))
    return {network: quantile(watts, 0.5) for network, watts in found.items() if watts}


def _visits(schedule: LayerSchedule) -> list[tuple[Network, Record]]:
    return [pair for item in schedule.samples.rounds for pair in zip(item.networks, item.visits, strict=True)]


def _latencies(table: LookupTable) -> list[list[float]]:
    return [
        [layer.entries[choice].value if choice in layer.entries else math.nan for choice in layer.choices]
        for layer in table.layers
    ]


def _solved(
    table: LookupTable,
    powers: dict[Network, float],
    prior_of: Callable[[Entry], float],
    weight_of: Callable[[Network], float],
) -> tuple[TableLayer, ...]:
    """Solve for entries whose sums are the powers of the networks times their weights."""
    known = [network for network in powers if math.isfinite(weight_of(network)) and _is_known(table, network)]
    prior = [
        np.array([prior_of(layer.entries[choice]) if choice in layer.entries else 1e-12 for choice in layer.choices])
        for layer in table.layers
    ]
    if len(known) < _FEWEST:
        deviations = [_UNKNOWN * column for column in prior]
        return _layers(table, prior, deviations)
    totals = np.array([powers[network] * weight_of(network) for network in known])
    names = [list(layer.choices) for layer in table.layers]
    solution: Solution = solve_entries(np.array(known), totals, prior, (), names)
    return _layers(table, solution.values, solution.deviations)


def _is_known(table: LookupTable, network: Network) -> bool:
    return all(layer.choices[choice] in layer.entries for layer, choice in zip(table.layers, network, strict=True))


def _layers(
    table: LookupTable, values: Sequence[NDArray[np.float64]], deviations: Sequence[NDArray[np.float64]]
) -> tuple[TableLayer, ...]:
    layers = []
    for layer, column, errors in zip(table.layers, values, deviations, strict=True):
        entries = {}
        for choice, value, error in zip(layer.choices, column.tolist(), errors.tolist(), strict=True):
            if choice in layer.entries:
                before = layer.entries[choice]
                width = math.hypot(before.spread if before.value else 0.0, NORMAL * error / value) * value
                entries[choice] = replace(before, value=value, low=max(0.0, value - width), high=value + width)
        layers.append(replace(layer, entries=entries))
    return tuple(layers)
