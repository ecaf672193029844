# SPDX-License-Identifier: Apache-2.0
"""What an operator costs more or less beside its neighbours, fitted to its places in networks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Key of the part that counts in every place: it centres the others, so that the mean over all places is the entry.
EVERYWHERE = ""

#: A key of the costs beside neighbours.
NEIGHBOUR = re.compile(r"|[<>] \S+")

#: Grid of the penalty: a cost beside a neighbour is halved if it is seen in so many places.
_PENALTIES = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)

#: Smallest cost beside a neighbour that is kept, as a share of the operator's cost and of the mean network.
_LEAST_OF_OPERATOR, _LEAST_OF_NETWORK = 0.01, 2e-5

#: Least share of its mean cost that an operator has in a place.
_LEAST_LEFT = 0.02

#: Smallest gain that counts, in standard errors of the mean difference between the errors of unseen networks.
_LEAST_GAIN = 1.0


def cost_beside(known: Mapping[str, float], neighbours: Iterable[str]) -> float:
    """Return what an operator costs more than its entry in a place, by its costs beside neighbours.

    Examples
    --------
    >>> cost_beside({"": -1.0, "< conv2d": 1.5}, ["< conv2d", "> add"])
    0.5
    """
    if not known:
        return 0.0
    return math.fsum((known.get(EVERYWHERE, 0.0), *(known[name] for name in neighbours if name in known)))


@dataclass(frozen=True)
class PlacedOperators:
    """The operators of one network.

    Parameters
    ----------
    numbers : ndarray of int of shape (n_places,)
        Number of the operator at each place.
    neighbours : sequence of sequence of str
        Neighbours at each place.
    costs : ndarray of shape (n_places,)
        Cost of the operator at each place [s]; empty if no call of the network was timed.
    """

    numbers: Ints
    neighbours: Sequence[Sequence[str]]
    costs: Floats


@dataclass(frozen=True)
class NeighbourFit:
    """Costs of operators beside neighbours.

    Parameters
    ----------
    beside : tuple of mapping of str to float
        Costs of every operator beside its neighbours [s], added to its mean cost.
    amounts : ndarray of shape (n_networks, n_operators)
        Cost of the places of every operator in every network [s].
    unseen : ndarray of shape (n_networks, n_operators)
        The same as predicted from all other networks.
    """

    beside: tuple[dict[str, float], ...]
    amounts: Floats
    unseen: Floats


def fit_neighbours(
    networks: Sequence[PlacedOperators], means: Floats, typical: float, residuals: Callable[[Floats], Floats]
) -> NeighbourFit | None:
    """Fit what operators cost beside neighbours, where it helps to predict networks that the fit has not seen.

    The deviation of an operator from its mean cost is a ridge regression on the numbers of its neighbours by kind. The
    penalty is common to all operators, and is the one whose predictions of left-out networks are best.

    Parameters
    ----------
    networks : sequence of PlacedOperators
        The measured networks.
    means : ndarray of shape (n_operators,)
        Mean cost of every operator over its places [s].
    typical : float
        Cost of a typical network [s].
    residuals : callable
        Returns the relative deviation of every network from predicted costs of operators, (n_networks, n_operators).

    Returns
    -------
    NeighbourFit or None
        None if the networks are predicted no better than by mean costs alone.
    """
    designs = [_Design.of(number, mean, networks) for number, mean in enumerate(means.tolist())]

    unseen = {
        penalty: np.stack([design.unseen(penalty) for design in designs], axis=1) for penalty in (math.inf, *_PENALTIES)
    }
    errors = {penalty: np.abs(residuals(amounts)) for penalty, amounts in unseen.items()}
    best = min(_PENALTIES, key=lambda penalty: float(errors[penalty].mean()))
    gains = errors[math.inf] - errors[best]
    if not gains.mean() > _LEAST_GAIN * gains.std(ddof=1) / math.sqrt(len(gains)):
        return None
    beside = tuple(design.beside(best, typical) for design in designs)
    if not any(beside):
        return None
    amounts = np.stack([design.amounts(costs) for design, costs in zip(designs, beside, strict=True)], axis=1)
    return NeighbourFit(beside, amounts, unseen[best])


@dataclass(frozen=True)
class _Design:
    """The places of one operator: how often it has each neighbour.

    Parameters
    ----------
    mean : float
        Mean cost [s].
    names : tuple of str
        Its neighbours.
    totals : ndarray of shape (n_networks, 1 + n_neighbours)
        Number of its places in every network, and of each neighbour in these.
    rows : ndarray of shape (n_timed, n_neighbours)
        Number of each neighbour at every timed place.
    grams, products : ndarray of shape (n_networks, 1 + n_neighbours, 1 + n_neighbours) and without the last axis
        Sums over the timed places of every network: of the outer products of rows with a leading 1, and of such rows
        times the relative cost.
    """

    mean: float
    names: tuple[str, ...]
    totals: Floats
    rows: Floats
    grams: Floats
    products: Floats

    @classmethod
    def of(cls, number: int, mean: float, networks: Sequence[PlacedOperators]) -> _Design:
        """Collect the places of an operator."""
        places = [np.flatnonzero(network.numbers == number).tolist() for network in networks]
        listed = [
            [network.neighbours[place] for place in found] for network, found in zip(networks, places, strict=True)
        ]
        names = tuple(sorted({name for found in listed for neighbours in found for name in neighbours}))
        columns = {name: column for column, name in enumerate(names, 1)}
        width = 1 + len(names)
        totals, grams = np.zeros((len(networks), width)), np.zeros((len(networks), width, width))
        products, rows = np.zeros((len(networks), width)), [np.empty((0, width - 1))]
        for index, (network, found) in enumerate(zip(networks, places, strict=True)):
            design = np.zeros((len(found), width))
            design[:, 0] = 1
            for row, neighbours in zip(design, listed[index], strict=True):
                for name in neighbours:
                    row[columns[name]] += 1
            totals[index] = design.sum(axis=0)
            if len(network.costs):
                rows.append(design[:, 1:])
                grams[index], products[index] = design.T @ design, design.T @ (network.costs[found] / mean)
        return cls(mean, names, totals, np.concatenate(rows), grams, products)

    def unseen(self, penalty: float) -> Floats:
        """Return the cost of the places in every network, by a fit to all others, (n_networks,) [s]."""
        others = self.grams.sum(axis=0) - self.grams
        products = self.products.sum(axis=0) - self.products
        lonely = others[:, 0, 0] == 0
        # The cost of an operator of one network alone is not known from others.
        others[lonely], products[lonely] = self.grams[lonely], self.products[lonely]
        nowhere = others[:, 0, 0] == 0
        others[nowhere, 0, 0] = products[nowhere, 0] = 1
        weights = np.zeros(products.shape)
        if math.isinf(penalty) or not self.names:
            weights[:, 0] = products[:, 0] / others[:, 0, 0]
        else:
            weights = np.linalg.solve(others + self._penalties(penalty), products[:, :, None])[:, :, 0]
            weights[lonely] = 0
            weights[lonely, 0] = products[lonely, 0] / others[lonely, 0, 0]
        shares = (self.totals * weights).sum(axis=1)
        # Neighbours in numbers that no other network has may leave less than nothing.
        costs: Floats = self.mean * np.maximum(shares, _LEAST_LEFT * self.totals[:, 0])
        return costs

    def _penalties(self, penalty: float) -> Floats:
        """Return the penalty matrix; the first column, that of the mean, has none."""
        return penalty * np.diag([0.0, *([1.0] * len(self.names))])

    def beside(self, penalty: float, typical: float) -> dict[str, float]:
        """Return the costs beside neighbours that are not negligible [s]; none where all places are alike."""
        if not self.names or not len(self.rows):
            return {}
        weights = np.linalg.solve(self.grams.sum(axis=0) + self._penalties(penalty), self.products.sum(axis=0))[1:]
        least = max(_LEAST_OF_OPERATOR, _LEAST_OF_NETWORK * typical / self.mean)
        weights[(np.abs(weights) < least) | (np.ptp(self.rows, axis=0) == 0)] = 0
        deviations = (self.rows - self.rows.mean(axis=0)) @ weights
        # No place may cost less than nothing.
        weights *= min(1.0, (1 - _LEAST_LEFT) / max(1e-9, -float(deviations.min())))
        costs = {name: self.mean * weight for name, weight in zip(self.names, weights.tolist(), strict=True) if weight}
        if not costs:
            return {}
        return {EVERYWHERE: -self.mean * float(self.rows.mean(axis=0) @ weights), **costs}

    def amounts(self, beside: Mapping[str, float]) -> Floats:
        """Return the cost of the places in every network, (n_networks,) [s]."""
        weights = np.array([self.mean + beside.get(EVERYWHERE, 0.0), *(beside.get(name, 0.0) for name in self.names)])
        costs: Floats = self.totals @ weights
        return costs
