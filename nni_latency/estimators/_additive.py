# SPDX-License-Identifier: Apache-2.0
"""`AdditiveCost`: the cost of every choice of a space, and of pairs of neighbours, for fast evaluation of networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nni_latency.combinations import SUM
from nni_latency.errors import InvalidValueError
from nni_latency.estimators._base import Estimate, LayerEstimator
from nni_latency.estimators._chain import Chain, share_pairs
from nni_latency.estimators._choice_cost import ChoiceCost, CostTable, sample_error
from nni_latency.tables import MeasurePlan, Residency
from nni_latency.units import combination_of

#: Batch size of `AdditiveCost.predict`.
_ROWS = 8192


@dataclass(frozen=True)
class AdditiveCost(ChoiceCost):
    """A constant and, per label, one cost for each of its choices. Immutable.

    The cost of a network is the sum of the costs of its choices; depending on the metric, it is their maximum
    (`activation_memory`) or the inverse of their sum (`throughput`, whose costs are times).

    Parameters
    ----------
    constant : float
        Cost of the fixed part of the space.
    costs : mapping of str to mapping
        ``{label: {choice: cost}}``, labels in the order of the space, choices in the order of their indices.
    metric : str, default="latency"
        Metric of the cost.
    missing : tuple of str, default=()
        Parts missing in the constant, or taken from the nearest known entry.
    residency : Residency or None
        Saving of small networks, applied to the sum.
    pairs : tuple of CostTable, default=()
        What the choices of two labels cost together beyond the sum of their costs, for metrics that add up. The pairs
        make chains: a label is the first of one pair at most, and the second of one at most, behind the first. For
        other interactions there is `GroupedCost`.

    Raises
    ------
    InvalidValueError
        If the pairs are not chains of the labels, or the costs of choices do not add up.

    Examples
    --------
    >>> cost = AdditiveCost(1.0, {"a": {"x": 0.5, "y": 2.0}, "b": {"x": 0.25}})
    >>> cost({"a": "y", "b": "x"}), cost.range
    (3.25, (1.75, 3.25))
    >>> cost.predict([[0, 0], [1, 0]])
    array([1.75, 3.25])
    >>> pair = CostTable(("a", "b"), np.array([[0.0], [1.0]]))
    >>> AdditiveCost(1.0, {"a": {"x": 0.5, "y": 2.0}, "b": {"x": 0.25}}, pairs=(pair,)).predict([1, 0])
    np.float64(4.25)
    """

    constant: float
    costs: Mapping[str, Mapping[Any, float]]
    metric: str = "latency"
    missing: tuple[str, ...] = ()
    residency: Residency | None = None
    pairs: tuple[CostTable, ...] = ()

    separable = True

    def __post_init__(self) -> None:
        if self.pairs and not self.combination.adds_up:
            raise InvalidValueError(f"The {self.metric} of choices does not add up, so it has no costs of pairs.")
        self._chain.check(self.pairs)

    @cached_property
    def _chain(self) -> Chain:
        return Chain(tuple(self.costs), self.columns, self.pairs)

    @cached_property
    def _items(self) -> tuple[tuple[str, Mapping[Any, float]], ...]:
        """Costs of the labels that are not the second of a pair."""
        behind = {pair.labels[1] for pair in self.pairs}
        return tuple(item for item in self.costs.items() if item[0] not in behind)

    @cached_property
    def _links(self) -> tuple[tuple[str, tuple[tuple[str, dict[Any, dict[Any, float]]], ...]], ...]:
        """Every chain of pairs: its first label, and the costs of the others by the choice before and their own."""
        behind = {pair.labels[0]: pair for pair in self.pairs}
        chains = []
        for label, _ in self._items:
            links, last = [], label
            while last in behind:
                pair = behind[last]
                (first, last), matrix = pair.labels, self._paired(pair).tolist()
                rows = (dict(zip(self.costs[last], row, strict=True)) for row in matrix)
                links.append((last, dict(zip(self.costs[first], rows, strict=True))))
            if links:
                chains.append((label, tuple(links)))
        return tuple(chains)

    def _paired(self, pair: CostTable) -> NDArray[np.float64]:
        """Return the costs of a pair with those of its second label."""
        joint: NDArray[np.float64] = pair.costs + self.columns[list(self.costs).index(pair.labels[1])]
        return joint

    @cached_property
    def columns(self) -> tuple[NDArray[np.float64], ...]:
        """Costs of every label, each of shape (n_choices,)."""
        return tuple(np.array(list(choices.values()), dtype=np.float64) for choices in self.costs.values())

    @cached_property
    def range(self) -> tuple[float, float]:
        """Costs of the cheapest and the most expensive network."""
        if self.pairs:
            ends = [self._chain.total(self._chain.best(sign)) for sign in (1.0, -1.0)]
            cheapest, costliest = sorted(self._whole([self.constant, end]) for end in ends)
            return cheapest, costliest
        lows, highs = ([float(pick(column)) for column in self.columns] for pick in (np.min, np.max))
        low, high = sorted(self._whole([self.constant, *ends]) for ends in (lows, highs))
        return low, high

    @property
    def choices(self) -> Mapping[str, tuple[Any, ...]]:
        """The choices of every label, in order."""
        return {label: tuple(choices) for label, choices in self.costs.items()}

    def _whole(self, parts: Sequence[float]) -> float:
        return float(self.of_sum(self.combination.total(parts)))

    def __call__(self, sample: Mapping[str, Any]) -> float:
        """Return the cost of one sample, ``{label: choice}``.

        Raises
        ------
        MissingEntryError
            If the sample lacks a label, or has a choice outside the space.
        """
        total = self.constant
        try:
            if self.combination is SUM:
                for label, choices in self._items:
                    total += choices[sample[label]]
                for first, links in self._links:
                    before = sample[first]
                    for label, rows in links:
                        chosen = sample[label]
                        total += rows[before][chosen]
                        before = chosen
                return total if self.residency is None else float(self.of_sum(total))
            parts = [choices[sample[label]] for label, choices in self._items]
            for first, links in self._links:
                labels = [first, *(label for label, _ in links)]
                chain = zip(labels, links, strict=False)
                parts += [rows[sample[before]][sample[label]] for before, (label, rows) in chain]
        except (KeyError, TypeError) as error:
            raise sample_error(sample, self.costs, error) from error
        return self._whole([total, *parts])

    def parts(self, sample: Mapping[str, Any]) -> dict[str, float]:
        """Return what every label adds to the total of a sample; a pair counts for both, in proportion to their costs.

        Raises
        ------
        MissingEntryError
            As `__call__`.
        """
        self(sample)
        chosen = {label: list(choices).index(sample[label]) for label, choices in self.costs.items()}
        costs = {label: choices[sample[label]] for label, choices in self.costs.items()}
        return share_pairs(costs, chosen, [(pair.labels, pair.costs) for pair in self.pairs])

    def predict(self, architectures: ArrayLike) -> NDArray[np.float64]:
        """Return the costs of one or many architectures.

        Parameters
        ----------
        architectures : array-like of int of shape (n_architectures, n_labels) or (n_labels,)
            Indices of the choices.

        Returns
        -------
        ndarray of shape (n_architectures,), or float
            The costs; a number for a single architecture.

        Raises
        ------
        InvalidValueError
            If the array has another shape or an index outside the space.
        """
        indices = np.asarray(architectures)
        n_labels = len(self.columns)
        if indices.ndim == 1 and len(indices):
            (cost,) = self.predict(indices[None])
            return np.float64(cost)  # type: ignore[return-value]
        if indices.ndim != 2 or indices.shape[1] != n_labels or indices.dtype.kind not in "iu":
            raise InvalidValueError(
                f"The 'architectures' must be an int array of shape (n, {n_labels}) or ({n_labels},). "
                f"Got {indices.dtype} of shape {indices.shape}."
            )
        parts = [self._sum(indices[row : row + _ROWS]) for row in range(0, max(1, len(indices)), _ROWS)]
        return np.concatenate(parts)

    def _sum(self, indices: NDArray[Any]) -> NDArray[np.float64]:
        """Sum the costs of a batch of architectures that fits into the cache."""
        chosen = dict(zip(self.costs, np.ascontiguousarray(indices.T), strict=True))
        columns = dict(zip(self.costs, self.columns, strict=True))
        for label, column in columns.items():
            self._check_indices(label, column, chosen[label])
        total = np.full(len(indices), self.constant)
        for label, _ in self._items:
            total = self.combination.join(total, columns[label][chosen[label]])
        for first, second, matrix in self._flat_links:
            total += matrix[chosen[first] * len(columns[second]) + chosen[second]]
        return np.asarray(self.of_sum(total))

    @cached_property
    def _flat_links(self) -> list[tuple[str, str, NDArray[np.float64]]]:
        return [(*pair.labels, self._paired(pair).ravel()) for pair in self.pairs]  # type: ignore[misc]

    def _check_indices(self, label: str, column: NDArray[np.float64], chosen: NDArray[Any]) -> None:
        if len(chosen) and not (chosen.min() >= 0 and chosen.max() < len(column)):
            wrong = chosen.min() if chosen.min() < 0 else chosen.max()
            raise InvalidValueError(f"An index of {label!r} must be in [0, {len(column) - 1}]. Got {wrong}.")


def additive_cost(estimator: LayerEstimator, plan: MeasurePlan) -> AdditiveCost:
    """Estimate every candidate of a plan with a layer-based estimator.

    Raises
    ------
    MissingEntryError
        If the estimator has no cost for a candidate.
    MismatchError
        If it belongs to another space, input size or batch size.
    """
    estimator.check_plan(plan)
    defaults = {layer.name: layer.default for layer in plan.layers if not layer.searched and layer.default}
    return separable_cost(estimator, plan.ops, defaults)


def separable_cost(
    estimator: LayerEstimator, layers: Mapping[str, Mapping[str, Any]], defaults: Mapping[str, str]
) -> AdditiveCost:
    """Estimate every candidate of a space.

    Parameters
    ----------
    estimator : LayerEstimator
        Estimator of the candidates.
    layers : mapping of str to mapping
        ``{layer: {choice: operator}}`` in order.
    defaults : mapping of str to str
        The choices of fixed layers.
    """
    combination = combination_of(estimator.metric)
    parts = {
        layer: {
            choice: estimator.estimate_choice(layer, choice, op)
            for choice, op in choices.items()
            if choice == defaults.get(layer, choice)
        }
        for layer, choices in layers.items()
    }
    columns = {
        layer: np.array([combination.counted(part.value, estimator.calibration) for part in row.values()])
        for layer, row in parts.items()
    }
    pairs = []
    for pair in estimator.pairs:
        taken = [[list(layers[layer]).index(choice) for choice in parts[layer]] for layer in pair.layers]
        matrix, (first, second) = estimator.calibration * pair.by_choice[np.ix_(*taken)], pair.layers
        # The cost beside a fixed layer belongs to the choices of the other one.
        if first in defaults:
            columns[second] += matrix[0]
        elif second in defaults:
            columns[first] += matrix[:, 0]
        else:
            pairs.append(CostTable(pair.layers, matrix))
    return AdditiveCost(
        combination.total([estimator.constant, *(float(columns[layer][0]) for layer in defaults)]),
        {
            layer: dict(zip(row, columns[layer].tolist(), strict=True))
            for layer, row in parts.items()
            if layer not in defaults
        },
        estimator.metric,
        tuple(dict.fromkeys(name for row in parts.values() for part in row.values() for name in part.missing)),
        estimator.residency,
        tuple(pairs),
    )


def paired_parts(
    estimator: LayerEstimator, parts: Sequence[tuple[str, str, Estimate]], choices: Mapping[str, Sequence[str]]
) -> list[tuple[str, str, Estimate]]:
    """Return the parts of a network, each with its layer and choice, with the costs of pairs of neighbours.

    A pair is shared by its two layers in proportion to their costs, and no part falls below zero. Intervals widen with
    the parts; the uncertainty of pairs is part of the error of whole networks. Pairs with a layer whose choice is
    unknown are left out.

    Parameters
    ----------
    estimator : LayerEstimator
        Estimator of the parts.
    parts : sequence of (str, str, Estimate)
        Layer, choice and cost of every part.
    choices : mapping of str to sequence of str
        All choices of every layer.
    """
    pairs, combination = estimator.pairs, combination_of(estimator.metric)
    if not pairs:
        return list(parts)
    counted = {layer: combination.counted(part) for layer, _, part in parts}
    chosen = {layer: choices[layer].index(choice) for layer, choice, _ in parts if choice in choices[layer]}
    known = [(pair.layers, pair.by_choice) for pair in pairs if set(pair.layers) <= chosen.keys()]
    shared = share_pairs({layer: part.value for layer, part in counted.items()}, chosen, known)
    return [
        (layer, choice, own if shared[layer] == part.value else combination.counted(_changed(part, shared[layer])))
        for (layer, choice, own), part in zip(parts, counted.values(), strict=True)
    ]


def _changed(part: Estimate, value: float) -> Estimate:
    return part.scaled(value / part.value) if part.value else part.shifted(value)


def cheapest_selection(cost: AdditiveCost) -> dict[str, Any]:
    """Return the cheapest network as ``{label: choice}``."""
    if cost.pairs:
        return _name(cost, cost._chain.best())
    return {label: min(choices, key=choices.__getitem__) for label, choices in cost.costs.items()}


def likeliest_within(
    cost: AdditiveCost,
    log_probabilities: Sequence[Sequence[float]],
    target: float,
    *,
    floor: float = 0.0,
    resolution: int = 4000,
) -> dict[str, Any]:
    """Find the most probable network with a cost of at most `target` and, if possible, at least `floor`.

    Maximising the product of independent probabilities under a bound on a sum of costs is a multiple-choice knapsack
    problem, solved by dynamic programming [1]_ on discretised costs. Only networks whose exact cost is within the
    limits are kept, so the result satisfies both; a network within ``n_labels / resolution`` of either limit may be
    missed.

    Parameters
    ----------
    cost : AdditiveCost
        Costs of the choices.
    log_probabilities : sequence of sequence of float
        Logarithm of each choice's probability, in the order of labels and choices.
    target : float
        Upper limit of the cost.
    floor : float, default=0.0
        Preferred lower limit of the cost; ignored if no network lies between it and the target.
    resolution : int, default=4000
        Steps between the cheapest network and the target.

    Returns
    -------
    dict
        ``{label: choice}``.

    Raises
    ------
    UnreachableTargetError
        If no network is cheap enough.

    References
    ----------
    .. [1] H. Kellerer, U. Pferschy, D. Pisinger, "Knapsack Problems", Springer 2004, chapter 11.
       https://doi.org/10.1007/978-3-540-24777-7

    Examples
    --------
    >>> cost = AdditiveCost(0.0, {"a": {"fast": 1.0, "slow": 3.0}, "b": {"fast": 1.0, "slow": 3.0}})
    >>> likeliest_within(cost, [[-2.0, -0.1], [-1.0, -0.5]], target=4.0)
    {'a': 'slow', 'b': 'fast'}
    """
    cost.check_additive()
    cost.check_target(target)
    likeliest = [max(range(len(row)), key=row.__getitem__) for row in map(list, log_probabilities)]
    if floor <= float(cost.predict([likeliest])[0]) <= target:
        return _name(cost, likeliest)
    slack = max(0.0, cost.as_sum(target) - cost.as_sum(cost.range[0]))
    scores, networks = cost._chain.reachable(log_probabilities, slack / resolution, resolution + len(cost.columns))
    values = cost.predict(networks)
    # The network with zero steps meets the target up to rounding errors.
    allowed = values <= max(target, values[0])
    wanted = allowed & (values >= floor)
    best = np.where(wanted if wanted.any() else allowed, scores, -np.inf).argmax()
    return _name(cost, networks[best].tolist())


def _name(cost: AdditiveCost, indices: Sequence[int]) -> dict[str, Any]:
    return {label: list(choices)[index] for (label, choices), index in zip(cost.costs.items(), indices, strict=True)}
