# SPDX-License-Identifier: Apache-2.0
"""Energy of the operators of a table, from the power of whole networks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nni_latency.costs import NORMAL
from nni_latency.errors import MeasurementError
from nni_latency.operators import group_of
from nni_latency.tables._entries import Entry
from nni_latency.tables._lookup_table import LookupTable
from nni_latency.tables._machine import fit_residency

#: Standard deviations, as shares of the mean power: of the power of an unknown group, and of the part of a network's
#: power that groups do not explain.
_UNKNOWN_GROUP, _UNEXPLAINED = 0.3, 0.03

#: Lower bound of the power of a group, as a share of the mean power.
_LEAST_GROUP = 0.1


@dataclass(frozen=True)
class GroupPowers:
    """The power of groups of operators. Immutable.

    Parameters
    ----------
    watts : mapping of str to float
        Power by group, while one of its operators runs [W].
    deviations : mapping of str to float
        Its standard deviation by group [W].
    """

    watts: Mapping[str, float]
    deviations: Mapping[str, float]

    def joules(self, entry: Entry) -> Entry:
        """Convert the latency of an operator to energy [J]."""
        group = _group(entry)
        watts, spread = self.watts[group], self.deviations[group] / self.watts[group]
        joules = entry.scaled(watts)
        width = math.hypot(entry.spread, NORMAL * spread) * joules.value
        return replace(joules, low=max(0.0, joules.value - width), high=joules.value + width)


def energy_of_operators(
    table: LookupTable,
    operators: Sequence[Sequence[str]],
    powers: Sequence[float],
    neighbours: Sequence[Sequence[Sequence[str]]] | None = None,
) -> LookupTable:
    """Convert a table of latencies to energy, using meter readings of the same networks.

    No meter resolves an operator. The power of a network is the mean of the powers of its operators, weighted by time;
    all operators of a group, as defined by `nni_latency.operators.group_of`, are assumed to have the same power. The
    powers are solved for, and shrunk to the mean where the networks do not determine them. Energy is power times
    latency.

    Parameters
    ----------
    table : LookupTable
        Latencies [s].
    operators : sequence of sequence of str
        Keys of the operators of every network of the table, repeated as often as they run.
    powers : sequence of float
        Power of every network of the table [W].
    neighbours : sequence of sequence of sequence of str, optional
        Neighbours of these operators, for a table with costs beside neighbours.

    Raises
    ------
    MeasurementError
        If there are no meter readings.
    """
    if not powers or len(powers) != len(table.networks):
        raise MeasurementError("No meter was read, so there is no energy. Measure anew, with a meter.")
    beside = neighbours or [[()] * len(keys) for keys in operators]
    networks = [list(zip(keys, names, strict=True)) for keys, names in zip(operators, beside, strict=True)]
    found = group_powers([_placed(table.by_op, network) for network in networks], powers)
    usual = float(np.mean(powers))
    watts = {group: found.watts.get(group, usual) for group in map(_group, table.operators)}
    deviations = {group: found.deviations.get(group, _UNKNOWN_GROUP * usual) for group in watts}
    whole = GroupPowers(watts, deviations)
    entries = {key: whole.joules(entry) for key, entry in table.by_op.items()}
    sums = [math.fsum(entry.value for entry in _placed(entries, network)) for network in networks]
    measured = tuple(
        replace(network.scaled(power), entries=total)
        for network, power, total in zip(table.networks, powers, sums, strict=True)
    )
    calibration, residency = fit_residency(sums, [network.value for network in measured])
    return replace(
        table,
        metric="energy",
        operators=tuple(entries.values()),
        networks=measured,
        reference=measured[0].value,
        calibration=calibration,
        residency=residency,
        network_error=None,
    )


def group_powers(networks: Sequence[Sequence[Entry]], powers: Sequence[float]) -> GroupPowers:
    """Solve for the power of groups of operators.

    Parameters
    ----------
    networks : sequence of sequence of Entry
        Operators of every network, with their latencies.
    powers : sequence of float
        Power of every network [W].
    """
    groups = sorted({_group(entry) for entries in networks for entry in entries})
    shares = np.array([_shares(entries, groups) for entries in networks])
    usual = float(np.mean(powers))
    # Rows of shares sum to 1, so a constant power has zero residual and the mean is reproduced exactly.
    precision = shares.T @ shares / _UNEXPLAINED**2 + np.eye(len(groups)) / _UNKNOWN_GROUP**2
    covariance = np.linalg.inv(precision)
    ratios = 1 + covariance @ shares.T @ (np.asarray(powers) / usual - 1) / _UNEXPLAINED**2
    watts = np.maximum(_LEAST_GROUP, ratios) * usual
    deviations = np.sqrt(np.diag(covariance)) * usual
    return GroupPowers(
        dict(zip(groups, watts.tolist(), strict=True)), dict(zip(groups, deviations.tolist(), strict=True))
    )


def _placed(entries: Mapping[str, Entry], network: Sequence[tuple[str, Sequence[str]]]) -> list[Entry]:
    """Return the entries of the operators of a network, each with its cost beside its neighbours."""
    return [entries[key].in_place(names) for key, names in network if key in entries]


def _group(entry: Entry) -> str:
    return group_of(entry.op) if entry.op else ""


def _shares(entries: Sequence[Entry], groups: Sequence[str]) -> NDArray[np.float64]:
    times = np.zeros(len(groups))
    for entry in entries:
        times[groups.index(_group(entry))] += entry.value
    shares: NDArray[np.float64] = times / times.sum()
    return shares
