# SPDX-License-Identifier: Apache-2.0
"""The expected cost of a supernet as one product, with a gradient; for independent choices and for groups."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from nni_latency.errors import InvalidValueError, MismatchError, listed
from nni_latency.estimators import AdditiveCost, ChoiceCost, GroupedCost
from nni_latency.units import number_of

#: Most combinations of choices that a derived label may follow from.
_MOST_COMBINATIONS = 1 << 16


class _Expectation(nn.Module):
    """Base of what computes the expected cost of a supernet, for the labels of a `ChoiceCost`."""

    costs: torch.Tensor

    def __init__(self, cost: ChoiceCost) -> None:
        cost.check_additive()
        super().__init__()
        self.labels = tuple(cost.choices)
        self.sizes = tuple(map(len, cost.choices.values()))
        self.constant = cost.constant
        self.residency = cost.residency

    def check_labels(self, alphas: Mapping[str, torch.Tensor]) -> None:
        """Raise `MismatchError` if the parameters are not those of the space's labels."""
        sizes = zip(self.labels, self.sizes, strict=True)
        wrong = [label for label, size in sizes if label not in alphas or len(alphas[label]) != size]
        if wrong:
            raise MismatchError(f"The supernet has no fitting architecture parameters for {listed(wrong)}.")

    def softmax(
        self, alphas: list[torch.Tensor], noise: list[torch.Tensor] | None = None, temperature: float = 1.0
    ) -> torch.Tensor:
        """Return the flat probabilities, (n_labels * n_choices,), of architecture parameters by label.

        With noise they are those of a Gumbel softmax. Where all labels have as many choices it is one kernel for all.
        """
        if len(set(self.sizes)) > 1:
            rows = alphas if noise is None else [alpha + drawn for alpha, drawn in zip(alphas, noise, strict=True)]
            return torch.cat([torch.softmax(row / temperature, -1) for row in rows])
        logits = torch.stack(alphas) if noise is None else torch.stack(alphas) + torch.stack(noise)
        return _serial_softmax(logits if temperature == 1 else logits / temperature).flatten()

    def _whole(self, total: torch.Tensor) -> torch.Tensor:
        """Return the cost of a network whose parts cost `total` together."""
        if self.residency is None:
            return total
        return total * (1 - self.residency.saving * torch.exp(-total / self.residency.scale))


class ExpectedCost(_Expectation):
    """Constant plus the sum over labels and choices of probability times cost, less what a small network saves.

    The choices of different labels are independent, so a pair of choices has the product of their probabilities.

    The saving is that of a network of the expected sum, which is close to the expected saving: the curve is smooth.

    Parameters
    ----------
    cost : AdditiveCost
        Costs, in the order of the space.

    Raises
    ------
    InvalidValueError
        If the metric is not a sum over layers.
    """

    places: torch.Tensor
    pairs: torch.Tensor

    def __init__(self, cost: AdditiveCost) -> None:
        super().__init__(cost)
        flat = torch.cat([torch.from_numpy(column) for column in cost.columns])
        self.register_buffer("costs", flat.to(torch.float32), persistent=False)
        places, pairs = _pair_entries(cost)
        self.register_buffer("places", places, persistent=False)
        self.register_buffer("pairs", pairs, persistent=False)

    def forward(self, probabilities: torch.Tensor) -> torch.Tensor:
        """Return the expected cost, a scalar, of flat probabilities."""
        # A product and a sum, because a dot product may wake up the threads of the BLAS for these few numbers.
        device = probabilities.device
        total = (probabilities * self.costs.to(device)).sum() + self.constant
        if len(self.pairs):
            earlier, later = probabilities[self.places.to(device)]
            total = total + ((earlier[:, :, None] * self.pairs.to(device)).sum(1) * later).sum()
        return self._whole(total)


def _pair_entries(cost: AdditiveCost) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where the probabilities of all pairs of labels stand, and their costs; smaller labels cost zero beyond.

    The shapes are (2, n_pairs, n_choices) and (n_pairs, n_choices, n_choices).
    """
    starts = dict(zip(cost.costs, np.cumsum([0, *map(len, cost.columns)]).tolist(), strict=False))
    width = max((max(pair.costs.shape) for pair in cost.pairs), default=1)
    places = np.zeros((2, len(cost.pairs), width), dtype=np.int64)
    costs = np.zeros((len(cost.pairs), width, width), dtype=np.float32)
    for index, pair in enumerate(cost.pairs):
        for side, (label, size) in enumerate(zip(pair.labels, pair.costs.shape, strict=True)):
            places[side, index, :size] = starts[label] + np.arange(size)
        costs[index, : pair.costs.shape[0], : pair.costs.shape[1]] = pair.costs
    return torch.from_numpy(places), torch.from_numpy(costs)


def _serial_softmax(logits: torch.Tensor) -> torch.Tensor:
    """Return the softmax over the last axis; torch's own wakes up threads for it, which costs more than the work."""
    powers = torch.exp(logits - logits.detach().amax(-1, keepdim=True))
    return powers / powers.sum(-1, keepdim=True)


class ExpectedGroups(_Expectation):
    """The mean cost of the networks that independent probabilities of the choices stand for.

    It is exact for tables over the space's own labels. A label that is derived from others is taken to be independent
    of them, with the distribution that follows from theirs. Combinations that no network has are left out, and the
    others of their table share their probability.

    Parameters
    ----------
    cost : GroupedCost
        The cost of the space.

    Raises
    ------
    InvalidValueError
        If the metric is not a sum over layers, or a label is derived from too many others.
    """

    entries: torch.Tensor
    tables: torch.Tensor

    def __init__(self, cost: GroupedCost) -> None:
        super().__init__(cost)
        # Place 0 holds a probability of one, for tables over fewer labels than others.
        self._starts = _starts(self.labels, self.sizes)
        self._follow = [_Following(item, cost.values, self._starts) for item in cost.derived]
        entries, costs, tables = _entries(cost, self._starts)
        self.register_buffer("entries", entries, persistent=False)
        self.register_buffer("costs", costs, persistent=False)
        self.register_buffer("tables", tables, persistent=False)

    def forward(self, probabilities: torch.Tensor) -> torch.Tensor:
        """Return the expected cost, a scalar, of flat probabilities."""
        known = torch.cat([probabilities.new_ones(1), probabilities])
        for item in self._follow:
            known = torch.cat([known, *item.distributions(known)])
        shares = known[self.entries[:, 0]]
        for column in range(1, self.entries.shape[1]):
            shares = shares * known[self.entries[:, column]]
        count = int(self.tables[-1]) + 1 if len(self.tables) else 0
        sums = shares.new_zeros(count).index_add(0, self.tables, shares * self.costs)
        mass = shares.new_zeros(count).index_add(0, self.tables, shares)
        return self._whole((sums / mass.clamp_min(1e-30)).sum() + self.constant)


def expected_cost(cost: ChoiceCost) -> ExpectedCost | ExpectedGroups:
    """Return what computes the expected cost of a supernet, for a cost by label or by groups of labels."""
    return ExpectedCost(cost) if isinstance(cost, AdditiveCost) else ExpectedGroups(cast(GroupedCost, cost))


class _Following:
    """The distribution of derived labels, from those that they follow from."""

    def __init__(self, item: Any, values: Mapping[str, Sequence[Any]], starts: dict[str, int]) -> None:
        sizes = [len(values[label]) for label in item.labels]
        if math.prod(sizes) > _MOST_COMBINATIONS:
            raise InvalidValueError(
                f"{', '.join(item.outputs[:3])} follow from {number_of(math.prod(sizes), 'combination')} of choices: "
                "too many for an expected cost. Search by filters, or by penalties on samples."
            )
        rows, outcomes = [], []
        for combination in itertools.product(*map(range, sizes)):
            sample = {label: values[label][index] for label, index in zip(item.labels, combination, strict=True)}
            try:
                made = item.function(sample)
            except (KeyError, TypeError, ValueError):
                continue
            rows.append([starts[label] + index for label, index in zip(item.labels, combination, strict=True)])
            outcomes.append([values[name].index(value) for name, value in zip(item.outputs, made, strict=True)])
        self._rows, self._outcomes = torch.tensor(rows), torch.tensor(outcomes)
        self._sizes = [len(values[name]) for name in item.outputs]
        place = starts[""]
        for name, size in zip(item.outputs, self._sizes, strict=True):
            starts[name] = place
            place += size
        starts[""] = place

    def distributions(self, known: torch.Tensor) -> list[torch.Tensor]:
        shares = known[self._rows.to(known.device)].prod(1)
        shares = shares / shares.sum().clamp_min(1e-30)
        outcomes = self._outcomes.to(known.device)
        return [
            known.new_zeros(size).index_add(0, outcomes[:, column], shares) for column, size in enumerate(self._sizes)
        ]


def _starts(labels: Sequence[str], sizes: Sequence[int]) -> dict[str, int]:
    """Return where the probabilities of every label begin; under "" where the next label's would."""
    ends = np.cumsum([1, *sizes]).tolist()
    return {**dict(zip(labels, ends[:-1], strict=True)), "": ends[-1]}


def _entries(cost: Any, starts: Mapping[str, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return where the probabilities of all tables' entries stand, their costs, and which table each is of."""
    width = max((len(table.labels) for table in cost.tables), default=1)
    places, costs, tables = [np.zeros((0, width), dtype=np.int64)], [np.zeros(0)], [np.zeros(0, dtype=np.int64)]
    for number, table in enumerate(cost.tables):
        known = np.argwhere(~np.isnan(table.costs))
        begins = np.array([starts[label] for label in table.labels], dtype=np.int64)
        columns = np.zeros((len(known), width), dtype=np.int64)
        columns[:, : len(begins)] = known + begins
        places.append(columns)
        costs.append(table.costs[tuple(known.T)])
        tables.append(np.full(len(known), number))
    return (
        torch.from_numpy(np.concatenate(places)),
        torch.from_numpy(np.concatenate(costs)).float(),
        torch.from_numpy(np.concatenate(tables)),
    )
