"""Tables of the energy of operators: what whole networks draw, divided among groups of operators."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nni_latency.costs import NORMAL
from nni_latency.errors import MeasurementError
from nni_latency.measurement import Record, quantile
from nni_latency.operators import group_of
from nni_latency.tables._operator_entries import OperatorEntry
from nni_latency.tables._operator_table import OperatorTable
from nni_latency.tables._residency import fit_residency

#: Standard deviations, as shares of the mean power: of the power of a group where nothing is known of it, and of what
#: groups do not explain of a network's power.
_UNKNOWN, _UNEXPLAINED = 0.3, 0.03

#: No group draws less than this share of the mean power.
_LEAST = 0.1


@dataclass(frozen=True)
class GroupPowers:
    """The power of groups of operators. Immutable.

    Parameters
    ----------
    watts : mapping of str to float
        By group, the power while one of its operators runs [W].
    deviations : mapping of str to float
        By group, its standard deviation [W].
    """

    watts: Mapping[str, float]
    deviations: Mapping[str, float]

    def joules(self, entry: OperatorEntry) -> OperatorEntry:
        """Return the energy of an operator [J] by its latency."""
        group = group_of(entry.op)
        watts, spread = self.watts[group], self.deviations[group] / self.watts[group]
        value = entry.value * watts
        width = math.hypot(entry.spread, NORMAL * spread) * value
        return replace(entry, value=value, low=max(0.0, value - width), high=value + width)


def energy_of_operators(
    table: OperatorTable, operators: Sequence[Sequence[str]], powers: Sequence[float]
) -> OperatorTable:
    """Turn a table of latencies into one of energy, by what a meter read of the same networks.

    No meter resolves an operator. The power of a network is the mean of the powers of its operators, weighted by time;
    operators of a group, as `nni_latency.operators.group_of` tells them, are taken to draw the same. Their powers are
    solved for, and drawn to the mean where the networks do not tell. Energy is power times latency.

    Parameters
    ----------
    table : OperatorTable
        The latencies [s].
    operators : sequence of sequence of str
        Of every network of the table, the keys of its operators, as often as they run.
    powers : sequence of float
        Of every network of the table, its power [W].

    Raises
    ------
    MeasurementError
        If no meter was read.
    """
    if not powers or len(powers) != len(table.networks):
        raise MeasurementError("No meter was read, so there is no energy. Measure anew, with a meter.")
    found = group_powers([[table.by_key[key] for key in keys if key in table.by_key] for keys in operators], powers)
    usual = float(np.mean(powers))
    watts = {group_of(entry.op): found.watts.get(group_of(entry.op), usual) for entry in table.entries}
    deviations = {group: found.deviations.get(group, _UNKNOWN * usual) for group in watts}
    whole = GroupPowers(watts, deviations)
    entries = {entry.op.op_key: whole.joules(entry) for entry in table.entries}
    sums = [math.fsum(entries[key].value for key in keys if key in entries) for keys in operators]
    networks = tuple(
        replace(network.scaled(power), entries=total)
        for network, power, total in zip(table.networks, powers, sums, strict=True)
    )
    calibration, residency = fit_residency(sums, [network.value for network in networks])
    return replace(
        table,
        metric="energy",
        entries=tuple(entries.values()),
        networks=networks,
        calibration=calibration,
        residency=residency,
        network_error=None,
    )


def group_powers(networks: Sequence[Sequence[OperatorEntry]], powers: Sequence[float]) -> GroupPowers:
    """Solve for the power of groups of operators.

    Parameters
    ----------
    networks : sequence of sequence of OperatorEntry
        The operators of every network with their latencies.
    powers : sequence of float
        Power of every network [W].
    """
    groups = sorted({group_of(entry.op) for entries in networks for entry in entries})
    shares = np.array([_shares(entries, groups) for entries in networks])
    usual = float(np.mean(powers))
    # Rows of shares add up to 1, so a constant power leaves nothing to explain, and the mean is given back exactly.
    precision = shares.T @ shares / _UNEXPLAINED**2 + np.eye(len(groups)) / _UNKNOWN**2
    covariance = np.linalg.inv(precision)
    ratios = 1 + covariance @ shares.T @ (np.asarray(powers) / usual - 1) / _UNEXPLAINED**2
    watts = np.maximum(_LEAST, ratios) * usual
    deviations = np.sqrt(np.diag(covariance)) * usual
    return GroupPowers(
        dict(zip(groups, watts.tolist(), strict=True)), dict(zip(groups, deviations.tolist(), strict=True))
    )


def _shares(entries: Sequence[OperatorEntry], groups: Sequence[str]) -> NDArray[np.float64]:
    times = np.zeros(len(groups))
    for entry in entries:
        times[groups.index(group_of(entry.op))] += entry.value
    shares: NDArray[np.float64] = times / times.sum()
    return shares


def powers_of(records: Sequence[Record]) -> dict[str, float]:
    """Return the power of every network that was visited with a meter, the median of its windows [W]."""
    found: dict[str, list[float]] = {}
    for record in records:
        found.setdefault(record.subjects[0], []).extend(record.samples.get("power", ()))
    return {network: quantile(watts, 0.5) for network, watts in found.items() if watts}
