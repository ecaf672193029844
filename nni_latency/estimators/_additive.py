"""`AdditiveCost`: the cost of every choice of a space, for fast evaluation of networks."""

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
from nni_latency.estimators._choice_cost import ChoiceCost, sample_error
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

    Examples
    --------
    >>> cost = AdditiveCost(1.0, {"a": {"x": 0.5, "y": 2.0}, "b": {"x": 0.25}})
    >>> cost({"a": "y", "b": "x"}), cost.range
    (3.25, (1.75, 3.25))
    >>> cost.predict([[0, 0], [1, 0]])
    array([1.75, 3.25])
    """

    constant: float
    costs: Mapping[str, Mapping[Any, float]]
    metric: str = "latency"
    missing: tuple[str, ...] = ()
    residency: Residency | None = None

    separable = True

    @cached_property
    def _items(self) -> tuple[tuple[str, Mapping[Any, float]], ...]:
        return tuple(self.costs.items())

    @cached_property
    def columns(self) -> tuple[NDArray[np.float64], ...]:
        """Costs of every label, each of shape (n_choices,)."""
        return tuple(np.array(list(choices.values()), dtype=np.float64) for choices in self.costs.values())

    @cached_property
    def range(self) -> tuple[float, float]:
        """Costs of the cheapest and the most expensive network."""
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
            if self._plain:
                for label, choices in self._items:
                    total += choices[sample[label]]
                return total
            parts = [choices[sample[label]] for label, choices in self._items]
        except (KeyError, TypeError) as error:
            raise sample_error(sample, self.costs, error) from error
        return self._whole([total, *parts])

    @cached_property
    def _plain(self) -> bool:
        """Whether the cost of a network is the plain sum."""
        return self.combination is SUM and self.residency is None

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
        total = np.full(len(indices), self.constant)
        for (label, _), column, chosen in zip(self._items, self.columns, np.ascontiguousarray(indices.T), strict=True):
            self._check_indices(label, column, chosen)
            total = self.combination.join(total, column[chosen])
        return np.asarray(self.of_sum(total))

    def _check_indices(self, label: str, column: NDArray[np.float64], chosen: NDArray[Any]) -> None:
        if len(chosen) and not (chosen.min() >= 0 and chosen.max() < len(column)):
            wrong = chosen.min() if chosen.min() < 0 else chosen.max()
            raise InvalidValueError(f"An index of {label!r} must be in [0, {len(column) - 1}]. Got {wrong}.")


#: Replaces the logarithm of a probability of zero, so that unavoidable choices remain possible.
_IMPOSSIBLE = -1e9


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
    searched = {
        layer.name: {
            choice: estimator.estimate_choice(layer.name, choice, candidate.op)
            for choice, candidate in layer.candidates.items()
        }
        for layer in plan.searched
    }
    fixed = [
        estimator.estimate_choice(layer.name, layer.default, layer.candidates[layer.default].op)
        for layer in plan.layers
        if not layer.searched and layer.default
    ]
    return separable_cost(estimator, fixed, searched)


def separable_cost(
    estimator: LayerEstimator, fixed: Sequence[Estimate], searched: Mapping[str, Mapping[str, Estimate]]
) -> AdditiveCost:
    """Combine the costs of the parts of a space.

    Parameters
    ----------
    estimator : LayerEstimator
        Estimator of the costs, which are given before calibration.
    fixed : sequence of Estimate
        Estimates of the fixed parts.
    searched : mapping of str to mapping
        ``{label: {choice: estimate}}`` of the searched parts.
    """
    combination = combination_of(estimator.metric)

    def cost(part: Estimate) -> float:
        return combination.counted(part.value, estimator.calibration)

    parts = [*fixed, *(part for row in searched.values() for part in row.values())]
    return AdditiveCost(
        combination.total(map(cost, fixed)),
        {label: {choice: cost(part) for choice, part in row.items()} for label, row in searched.items()},
        estimator.metric,
        tuple(dict.fromkeys(name for part in parts for name in part.missing)),
        estimator.residency,
    )


def cheapest_selection(cost: AdditiveCost) -> dict[str, Any]:
    """Return the cheapest network as ``{label: choice}``."""
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
    most = resolution + len(cost.columns)
    steps = [_steps(column - column.min(), slack / resolution, most) for column in cost.columns]
    scores, choices = _knapsack(log_probabilities, steps, most)
    totals = np.flatnonzero(scores > -np.inf)
    networks = _walk_back(choices, steps, totals)
    values = cost.predict(networks)
    # The network with zero steps meets the target up to rounding errors.
    allowed = values <= max(target, values[0])
    wanted = allowed & (values >= floor)
    best = np.where(wanted if wanted.any() else allowed, scores[totals], -np.inf).argmax()
    return _name(cost, networks[best].tolist())


def _steps(extra: NDArray[np.float64], step: float, most: int) -> NDArray[Any]:
    """Round extra costs to steps; unaffordable ones become `most` + 1."""
    too_costly = extra > step * most
    return np.where(too_costly, most + 1, np.rint(np.where(too_costly, 0, extra) / (step or 1))).astype(int)


def _knapsack(
    log_probabilities: Sequence[Sequence[float]], steps: Sequence[NDArray[Any]], most: int
) -> tuple[NDArray[np.float64], list[NDArray[Any]]]:
    """Return the best score for every total number of steps, and the choice of each label that led to it."""
    best = np.full(most + 1, -np.inf)
    best[0] = 0.0
    choices = []
    for row, extra in zip(log_probabilities, steps, strict=True):
        options = np.full((len(extra), most + 1), -np.inf)
        for choice, (score, step) in enumerate(zip(row, extra, strict=True)):
            if step <= most:
                options[choice, step:] = best[: most + 1 - step] + max(score, _IMPOSSIBLE)
        choices.append(options.argmax(axis=0))
        best = options.max(axis=0)
    return best, choices


def _walk_back(
    choices: Sequence[NDArray[Any]], steps: Sequence[NDArray[Any]], totals: NDArray[Any]
) -> NDArray[np.int64]:
    """Return the network that led to each total, (n_totals, n_labels)."""
    picked = []
    for column_steps, by_total in zip(reversed(steps), reversed(choices), strict=True):
        picked.append(by_total[totals])
        totals = totals - column_steps[picked[-1]]
    return np.stack(picked[::-1], axis=1)


def _name(cost: AdditiveCost, indices: Sequence[int]) -> dict[str, Any]:
    return {label: list(choices)[index] for (label, choices), index in zip(cost.costs.items(), indices, strict=True)}
