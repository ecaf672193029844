# SPDX-License-Identifier: Apache-2.0
"""Dynamic programmes over the choices of a space whose costs are sums over labels and over chains of pairs of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nni_latency.errors import InvalidValueError
from nni_latency.estimators._choice_cost import CostTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Replaces the logarithm of a probability of zero, so that unavoidable choices remain possible.
_IMPOSSIBLE = -1e9


class Chain:
    """Costs of choices, one label after the other, each by the choice of the label before.

    Parameters
    ----------
    labels : sequence of str
        Labels of the space.
    columns : sequence of ndarray of shape (n_choices,)
        Costs of their choices.
    pairs : sequence of CostTable
        Costs of pairs of labels.
    """

    def __init__(self, labels: Sequence[str], columns: Sequence[Floats], pairs: Sequence[CostTable]) -> None:
        self._labels, self._columns = list(labels), columns
        self._behind = {pair.labels[0]: pair for pair in pairs}

    def check(self, pairs: Sequence[CostTable]) -> None:
        """Raise `InvalidValueError` if the pairs are not chains of the labels, or of other sizes."""
        sizes = dict(zip(self._labels, map(len, self._columns), strict=True))
        for pair in pairs:
            named = [label for label in pair.labels if label in sizes]
            in_order = len(named) == len(pair.labels) == 2 and self._labels.index(named[0]) < self._labels.index(
                named[1]
            )
            if not in_order or pair.costs.shape != tuple(sizes[label] for label in named):
                raise InvalidValueError(
                    f"A pair must be two labels of the space in their order, with a cost for all choices of both. Got "
                    f"{' and '.join(pair.labels)}, with costs of shape {pair.costs.shape}."
                )
        if len(self._behind) < len(pairs) or len({pair.labels[1] for pair in pairs}) < len(pairs):
            raise InvalidValueError("The pairs of a space must make chains: no label is in two pairs on the same side.")

    @cached_property
    def order(self) -> list[int]:
        """Places of the labels, such that the labels of a pair follow each other."""
        seconds = {pair.labels[1] for pair in self._behind.values()}
        order = []
        for label in self._labels:
            following: str | None = None if label in seconds else label
            while following is not None:
                order.append(self._labels.index(following))
                following = self._behind[following].labels[1] if following in self._behind else None
        return order

    @cached_property
    def steps(self) -> list[Floats]:
        """Costs in `order`, by the choice of the label before and of the label; one row where the first is free."""
        found = []
        before = ""
        for place in self.order:
            pair = self._behind.get(before)
            paired = pair is not None and pair.labels[1] == self._labels[place]
            column = self._columns[place][None]
            found.append(column + pair.costs if pair is not None and paired else column)
            before = self._labels[place]
        return found

    def best(self, sign: float = 1.0) -> list[int]:
        """Return the network of the least total, or of the largest if `sign` is -1, as indices by label."""
        rest, chosen = self._to_go(sign), 0
        network = [0] * len(self._labels)
        for place, step, ahead in zip(self.order, self.steps, rest[1:], strict=True):
            row = sign * step[chosen if len(step) > 1 else 0] + ahead
            chosen = int(np.argmin(row))
            network[place] = chosen
        return network

    def total(self, network: Sequence[int]) -> float:
        """Return the sum of the costs of a network."""
        before, total = 0, 0.0
        for place, step in zip(self.order, self.steps, strict=True):
            total += float(step[before if len(step) > 1 else 0, network[place]])
            before = network[place]
        return total

    def _to_go(self, sign: float = 1.0) -> list[Floats]:
        """Return the least total of all labels behind, by choice: before the first label, and behind every label."""
        rest = [np.zeros(len(self._columns[self.order[-1]]) if self.order else 1)]
        sizes = [1, *(len(self._columns[place]) for place in self.order[:-1])]
        for step, size in zip(reversed(self.steps), reversed(sizes), strict=True):
            least = (sign * step + rest[-1]).min(axis=1)
            rest.append(np.broadcast_to(least, (size,)) if len(least) == 1 else least)
        return rest[::-1]

    def reachable(self, log_probabilities: Sequence[Sequence[float]], width: float, most: int) -> tuple[Floats, Ints]:
        """Return the most probable network for every total that some network has.

        Parameters
        ----------
        log_probabilities : sequence of sequence of float
            Logarithm of the probability of each choice by label.
        width : float
            Totals that are that close are not distinguished.
        most : int
            Largest total beyond that of the cheapest network, in `width`.

        Returns
        -------
        scores : ndarray of shape (n,)
            Logarithm of the probability of each network; the first is of the cheapest one.
        networks : ndarray of int of shape (n, n_labels)
            Indices of the choices.
        """
        rest = self._to_go()
        # The extra cost over the cheapest way on is never negative, and zero all along the cheapest network.
        extras = [
            _rounded(np.maximum(0.0, step + ahead - behind[: len(step), None]), width, most)
            for step, behind, ahead in zip(self.steps, rest[:-1], rest[1:], strict=True)
        ]
        best = np.full((1, most + 1), -np.inf)
        best[0, 0] = 0.0
        origins = []
        for place, extra in zip(self.order, extras, strict=True):
            if len(extra) == 1:
                origin, best = best.argmax(axis=0)[None], best.max(axis=0)[None]
            else:
                origin = np.arange(len(best))[:, None]
            best, came_from = _extended(best, origin, extra, log_probabilities[place])
            origins.append(came_from)
        last, totals = best.argmax(axis=0), np.flatnonzero(best.max(axis=0) > -np.inf)
        scores = best.max(axis=0)[totals]
        networks = np.empty((len(totals), len(self._labels)), dtype=np.int64)
        chosen = last[totals]
        for place, extra, came_from in zip(reversed(self.order), reversed(extras), reversed(origins), strict=True):
            networks[:, place] = chosen
            before = came_from[chosen, totals]
            totals = totals - extra[before if len(extra) > 1 else 0, chosen]
            chosen = before
        return scores, networks


def _rounded(extra: Floats, width: float, most: int) -> Ints:
    """Round extra costs to steps; unaffordable ones become `most` + 1."""
    too_costly = extra > width * most
    steps: Ints = np.where(too_costly, most + 1, np.rint(np.where(too_costly, 0, extra) / (width or 1))).astype(
        np.int64
    )
    return steps


def _extended(best: Floats, origin: Ints, extra: Ints, scores: Sequence[float]) -> tuple[Floats, Ints]:
    """Add a label: return the best score by its choice and total, and the choice of the label before that led to it."""
    most = best.shape[1] - 1
    found = np.full((extra.shape[1], most + 1), -np.inf)
    came_from = np.zeros((extra.shape[1], most + 1), dtype=np.int64)
    origin = np.broadcast_to(origin, best.shape)
    for choice, score in enumerate(scores):
        for before, step in enumerate(extra[:, choice].tolist()):
            if step <= most:
                reached = best[before, : most + 1 - step] + max(score, _IMPOSSIBLE)
                better = reached > found[choice, step:]
                np.copyto(found[choice, step:], reached, where=better)
                np.copyto(came_from[choice, step:], origin[before, : most + 1 - step], where=better)
    return found, came_from


def share_pairs(
    costs: Mapping[str, float], chosen: Mapping[str, int], pairs: Iterable[tuple[Sequence[str], Floats]]
) -> dict[str, float]:
    """Return the costs of a network by label with those of pairs, each shared by its two in proportion to their own.

    A share below zero becomes zero, and the others are scaled so that the total stays. Pairs of other labels are left
    out.

    Parameters
    ----------
    costs : mapping of str to float
        Costs by label.
    chosen : mapping of str to int
        Index of the choice of every label.
    pairs : iterable of ((str, str), ndarray of shape (n_choices, n_choices))
        Labels of the two, and their cost by the choices of the first and of the second.

    Examples
    --------
    >>> share_pairs({"a": 1.0, "b": 3.0}, {"a": 0, "b": 1}, [(("a", "b"), np.array([[0.0, 2.0]]))])
    {'a': 1.5, 'b': 4.5}
    >>> share_pairs({"a": 1.0, "b": 1.0, "c": 8.0}, {"a": 0, "b": 0}, [(("a", "b"), np.array([[-4.0]]))])
    {'a': 0.0, 'b': 0.0, 'c': 6.0}
    """
    shared = dict(costs)
    for (first, second), by_choice in pairs:
        if first in costs and second in costs:
            cost = float(by_choice[chosen[first], chosen[second]])
            both = costs[first] + costs[second]
            share = costs[first] / both if both else 0.0
            shared[first] += cost * share
            shared[second] += cost * (1 - share)
    total = math.fsum(shared.values())
    if min(shared.values(), default=0.0) >= 0 or total <= 0:
        return shared
    kept = {label: max(0.0, value) for label, value in shared.items()}
    whole = math.fsum(kept.values())
    return {label: total * (value / whole) for label, value in kept.items()}
