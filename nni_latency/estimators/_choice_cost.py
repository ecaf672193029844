# SPDX-License-Identifier: Apache-2.0
"""Costs of spaces by their choices: base class, and sums of small tables over interacting choices."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nni_latency.combinations import Combination
from nni_latency.errors import InvalidValueError, LatencyError, MissingEntryError, UnreachableTargetError, listed
from nni_latency.tables import Residency
from nni_latency.units import combination_of, format_metric, with_article

#: Largest number of entries of a joined table.
_LARGEST_TABLE = 4096

#: Random networks from which coordinate descent starts.
_STARTS = 3

#: Random samples at most among which they are looked for.
_TRIES = 10_000

_CLASH = "its choices do not go together"


class ChoiceCost(ABC):
    """Cost of a space as a function of its choices: a constant, and parts that depend on choices."""

    constant: float
    metric: str
    missing: tuple[str, ...]
    residency: Residency | None

    #: Whether parts depend on single labels, or on chains of pairs of them, so that extremes are exact.
    separable: bool

    @property
    @abstractmethod
    def choices(self) -> Mapping[str, Sequence[Any]]:
        """The choices of every label of the space, in order."""

    @property
    @abstractmethod
    def range(self) -> tuple[float, float]:
        """Costs of the cheapest and the most expensive network."""

    @abstractmethod
    def __call__(self, sample: Mapping[str, Any]) -> float:
        """Return the cost of one sample, ``{label: choice}``."""

    @cached_property
    def combination(self) -> Combination:
        """How the costs of the choices combine to that of a network."""
        return combination_of(self.metric)

    def check_additive(self) -> None:
        """Raise `InvalidValueError` if the costs of choices do not add up to that of a network."""
        if not self.combination.has_expectation:
            raise InvalidValueError(
                f"{with_article(self.metric).capitalize()} is not a sum over layers, so it has no expected cost "
                "that a search could follow. "
                "Filter samples by it; for a throughput, search with a latency table and batch size / throughput."
            )

    def of_sum(self, total: Any) -> Any:
        """Return the cost of networks from the total of their parts; the inverse of it for throughput."""
        return self.combination.whole(total, self.residency)

    def as_sum(self, cost: float) -> float:
        """Return the total of the parts of a network with a cost: the inverse of `of_sum`."""
        return self.combination.total_of(cost, self.residency)

    def check_target(self, target: float) -> None:
        """Raise `UnreachableTargetError` if no known network is as cheap as `target`."""
        if not (math.isfinite(target) and target > 0):
            raise InvalidValueError(f"The 'target' must be a positive, finite number. Got {target!r}.")
        low, high = self.range
        if target < low:
            raise UnreachableTargetError(
                f"No network of the space meets {with_article(self.metric)} of {format_metric(target, self.metric)}. "
                f"{'Reachable is' if self.separable else 'Found were'} {format_metric(low, self.metric)} to "
                f"{format_metric(high, self.metric)}."
            )


@dataclass(frozen=True)
class CostTable:
    """Joint cost of several choices.

    Parameters
    ----------
    labels : tuple of str
        Labels that the cost depends on.
    costs : ndarray of shape (n_choices of the first label, ...)
        Cost of every combination; NaN for combinations of no network.
    """

    labels: tuple[str, ...]
    costs: NDArray[np.float64]


@dataclass(frozen=True)
class GroupedCost(ChoiceCost):
    """A constant and tables over a few labels each, which add up to the cost of a network.

    An `AdditiveCost` has one table per label. Here, a label may occur in several tables to represent interactions, such
    as those of depth and kernel or of the widths of two neighbours. Immutable.

    Parameters
    ----------
    constant : float
        Cost of the fixed part of the space.
    tables : tuple of CostTable
        Costs of the choices.
    values : mapping of str to tuple
        Choices of every label, including derived ones, in the order of the tables' axes; lists are given as tuples.
    derived : tuple of Derived, default=()
        Labels computed from others.
    metric : str, default="latency"
        Metric of the cost.
    missing : tuple of str, default=()
        Parts that are missing, or were not measured separately.
    residency : Residency or None
        Saving of small networks, applied to the sum.

    Examples
    --------
    >>> table = CostTable(("depth", "width"), np.array([[1.0, 2.0], [2.0, 4.0]]))
    >>> cost = GroupedCost(0.5, (table,), {"depth": (1, 2), "width": (8, 16)})
    >>> cost({"depth": 2, "width": 16}), cost.range
    (4.5, (1.5, 4.5))
    """

    constant: float
    tables: tuple[CostTable, ...]
    values: Mapping[str, tuple[Any, ...]]
    derived: tuple[Derived, ...] = ()
    metric: str = "latency"
    missing: tuple[str, ...] = ()
    residency: Residency | None = None

    separable = False

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The labels of the space without derived ones, in order."""
        made = {label for item in self.derived for label in item.outputs}
        return tuple(label for label in self.values if label not in made)

    @property
    def choices(self) -> Mapping[str, tuple[Any, ...]]:
        """The choices of the labels of the space without derived ones, in order."""
        return {label: self.values[label] for label in self.labels}

    def __call__(self, sample: Mapping[str, Any]) -> float:
        """Return the cost of one sample, ``{label: choice}``.

        Raises
        ------
        MissingEntryError
            If the sample lacks a relevant label, or has a choice outside the space.
        InvalidValueError
            If each choice is valid, but not their combination.
        """
        chosen = {label: tuple(value) if type(value) is list else value for label, value in sample.items()}
        try:
            for item in self.derived:
                chosen.update(zip(item.outputs, item.function(chosen), strict=True))
            total = self._look_up(chosen)
        except KeyError as error:
            return self._look_up_the_rest(chosen, error)
        except (ValueError, TypeError) as error:
            raise self._sample_error(chosen, error) from error
        if total != total:
            raise self._sample_error(chosen, "its shapes do not fit each other")
        return float(self.of_sum(total))

    def _look_up(self, chosen: Mapping[str, Any]) -> float:
        parts = [self.constant]
        for places, costs in self._flat:
            place = 0
            for label, steps in places:
                place += steps[chosen[label]]
            parts.append(costs[place])
        return self.combination.total(parts)

    @cached_property
    def _flat(self) -> tuple[tuple[tuple[tuple[str, dict[Any, int]], ...], list[float]], ...]:
        """Every table as a flat list, with the offsets of the choices of its labels."""
        flat = []
        for table in self._joined:
            strides = [math.prod(table.costs.shape[axis + 1 :]) for axis in range(table.costs.ndim)]
            places = tuple(
                (label, {value: stride * index for index, value in enumerate(self.values[label])})
                for label, stride in zip(table.labels, strides, strict=True)
            )
            flat.append((places, table.costs.ravel().tolist()))
        return tuple(flat)

    @cached_property
    def _joined(self) -> tuple[CostTable, ...]:
        """The tables, with small ones merged into larger ones."""
        joined: list[CostTable] = []
        for table in sorted(self.tables, key=lambda item: -item.costs.size):
            for place, other in enumerate(joined):
                if set(table.labels) <= set(other.labels):
                    joined[place] = self._add(other, table, other.labels)
                    break
                union = tuple(label for label in self.values if label in {*table.labels, *other.labels})
                shared = set(table.labels) & set(other.labels)
                if shared and math.prod(len(self.values[label]) for label in union) <= _LARGEST_TABLE:
                    joined[place] = self._add(other, table, union)
                    break
            else:
                joined.append(table)
        return tuple(joined)

    def _add(self, one: CostTable, other: CostTable, labels: tuple[str, ...]) -> CostTable:
        parts = []
        for table in (one, other):
            order = [table.labels.index(label) for label in labels if label in table.labels]
            sizes = [len(self.values[label]) if label in table.labels else 1 for label in labels]
            parts.append(table.costs.transpose(order).reshape(sizes))
        return CostTable(labels, self.combination.join(*parts))

    def _look_up_the_rest(self, chosen: Mapping[str, Any], error: KeyError) -> float:
        """Return the cost of a sample without labels that do not affect it, such as those of skipped layers."""
        for label, value in chosen.items():
            if label in self.values and value not in self.values[label]:
                raise self._sample_error(chosen, error) from error
        try:
            possible = self._possible(chosen)
        except ValueError:
            raise self._sample_error(chosen, error) from error
        parts = [self.constant]
        for table in self.tables:
            places = [[self.values[label].index(value) for value in possible[label]] for label in table.labels]
            left = np.unique(table.costs[np.ix_(*places)])
            if len(left) != 1 or math.isnan(left[0]):
                raise self._sample_error(chosen, error) from error
            parts.append(float(left[0]))
        return float(self.of_sum(self.combination.total(parts)))

    def _possible(self, chosen: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
        """Return the values that each label can have where a sample lacks some labels."""
        found: dict[str, Sequence[Any]] = {
            label: (chosen[label],) if label in chosen else values for label, values in self.values.items()
        }
        for item in self.derived:
            try:
                rows = [item.function({label: values[0] for label, values in found.items() if len(values) == 1})]
            except KeyError:
                sets = [found[label] for label in item.labels]
                if math.prod(map(len, sets)) > _LARGEST_TABLE:
                    continue
                rows = [item.function(dict(zip(item.labels, row, strict=True))) for row in itertools.product(*sets)]
            columns = map(dict.fromkeys, zip(*rows, strict=True))
            found |= {label: tuple(column) for label, column in zip(item.outputs, columns, strict=True)}
        return found

    def _sample_error(self, sample: Mapping[str, Any], reason: Exception | str) -> LatencyError:
        return sample_error(sample, self.values, reason, self.derived)

    def predict(self, samples: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
        """Return the costs of many samples, (n_samples,)."""
        return np.array([self(sample) for sample in samples])

    @cached_property
    def range(self) -> tuple[float, float]:
        """Costs of the cheapest and the most expensive network found by coordinate descent.

        Raises
        ------
        InvalidValueError
            If none of 10,000 random samples is a network.
        """
        ends = [self._extreme(sign) for sign in (1.0, -1.0)]
        return ends[0], ends[1]

    def _extreme(self, sign: float) -> float:
        generator = np.random.default_rng(0)
        found: list[float] = []
        for _ in range(_TRIES):
            sample = {label: values[generator.integers(len(values))] for label, values in self.choices.items()}
            cost = sign * self._cost_or_worst(sample, sign)
            if math.isfinite(cost):
                found.append(self._descend(sample, cost, sign))
            if len(found) == _STARTS:
                break
        if not found:
            raise InvalidValueError(
                f"None of {_TRIES} random samples of the space is a network, so it has no cheapest one. "
                "The cost of a single sample tells the reason."
            )
        return sign * min(found)

    def _descend(self, sample: dict[str, Any], cost: float, sign: float) -> float:
        before = math.inf
        while cost < before:
            before = cost
            for label, values in self.choices.items():
                costs = [sign * self._cost_or_worst({**sample, label: value}, sign) for value in values]
                best = int(np.argmin(costs))
                if costs[best] < cost:
                    sample, cost = {**sample, label: values[best]}, costs[best]
        return cost

    def _cost_or_worst(self, sample: Mapping[str, Any], sign: float) -> float:
        try:
            return self(sample)
        except InvalidValueError:
            return sign * math.inf


@dataclass(frozen=True)
class Derived:
    """Labels whose values are computed from those of others.

    Parameters
    ----------
    outputs : tuple of str
        Names of the derived labels.
    labels : tuple of str
        Labels that they depend on.
    function : callable
        Computes the tuple of their values from a sample.
    """

    outputs: tuple[str, ...]
    labels: tuple[str, ...]
    function: Callable[[Mapping[str, Any]], tuple[Any, ...]]


def sample_error(
    sample: object,
    choices: Mapping[str, Collection[Any]],
    reason: Exception | str = _CLASH,
    derived: Sequence[Derived] = (),
) -> LatencyError:
    """Create the error for an invalid sample: an invalid choice, a missing label, or an invalid combination.

    Parameters
    ----------
    sample : mapping
        ``{label: choice}``.
    choices : mapping of str to collection
        Valid choices by label.
    reason : Exception or str, optional
        Why the combination is invalid, if each choice is valid; a `LookupError` carries no reason.
    derived : sequence of Derived, default=()
        Labels computed from the sample.

    Returns
    -------
    MissingEntryError or InvalidValueError
        The exception to raise.

    Examples
    --------
    >>> str(sample_error({"a": 3}, {"a": (1, 2), "b": (1, 2)}))
    "The choice of 'a' must be one of 1, 2. Got 3."
    >>> str(sample_error({"a": 2}, {"a": (1, 2), "b": (1, 2)}))
    "The sample has no choice for 'b'."
    """
    if not isinstance(sample, Mapping):
        return InvalidValueError(f"A sample must be a mapping, {{label: choice}}. Got {type(sample).__name__}.")
    made = {label for item in derived for label in item.outputs}
    own = {label: known for label, known in choices.items() if label not in made}
    for label, known in own.items():
        # Compared one by one, because values of a sample may be unhashable.
        if label in sample and sample[label] not in list(known):
            return MissingEntryError(f"The choice of {label!r} must be one of {listed(known)}. Got {sample[label]!r}.")
    absent = [repr(label) for label in own if label not in sample]
    if absent:
        return MissingEntryError(f"The sample has no choice for {listed(absent)}.")
    why = _CLASH if isinstance(reason, LookupError) else str(reason).removesuffix(".")
    return InvalidValueError(f"The sample is not a network of the space: {why}.")
