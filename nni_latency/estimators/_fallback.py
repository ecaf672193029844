# SPDX-License-Identifier: Apache-2.0
"""`FallbackEstimator`: a table with a second estimator for missing entries."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from nni_latency.errors import InvalidValueError, LatencyError, MismatchError, MissingEntryError
from nni_latency.estimators._base import Estimate, Estimator, LayerEstimator, NetworkEstimator
from nni_latency.estimators._table import TableEstimator
from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform, check_same_platform
from nni_latency.tables import LayerPair, LookupTable, MeasurePlan
from nni_latency.units import combination_of

TableSource = TableEstimator | LookupTable

_TABLES = (TableEstimator, LookupTable)

#: Minimum number of common operators for a comparison.
_LEAST = 8

#: Quantiles of the ratios: bounds of a 90 % interval.
_LOW, _HIGH = 0.05, 0.95


@dataclass(frozen=True)
class Agreement:
    """Agreement of the second estimator with the first on common operators. Immutable.

    Parameters
    ----------
    n : int
        Number of common operators.
    ratio : float
        Median ratio of the first over the second.
    low, high : float
        90 % interval of the ratios, as multiples of the median.
    """

    n: int
    ratio: float = 1.0
    low: float = 1.0
    high: float = 1.0


class FallbackEstimator(LayerEstimator):
    """A table with a second layer-based estimator for missing entries. Immutable.

    Parts from the second estimator are listed in `Estimate.missing`; their interval reflects the error of the second on
    common operators.

    Parameters
    ----------
    first : TableEstimator or LookupTable
        Primary table. Entries that it would predict or take from a nearest entry count as missing.
    second : LayerEstimator
        Estimator of the missing entries.
    adapt : bool, default=True
        Whether to scale the second estimator by the median ratio of both, given at least eight common operators.
    across_platforms : bool, default=False
        Whether the second may be of another platform, such as an analytic model or a table of a similar device; it is
        then scaled to the first, which requires eight common operators.

    Raises
    ------
    MismatchError
        If the estimators differ in metric or platform.
    InvalidValueError
        If the first is not a table, the second is not layer-based, or there are too few common operators to scale.

    Examples
    --------
    >>> table = LookupTable.from_latencies({"a": ["x", "y"]}, {"a": {"x": 0.001}})
    >>> other = LookupTable.from_latencies({"a": ["x", "y"]}, {"a": {"x": 0.001, "y": 0.002}})
    >>> estimator = FallbackEstimator(table, TableEstimator(other))
    >>> estimator.estimate_choice("a", "y", OpSpec.of("identity", [(1, 2)])).missing
    ('a:y',)
    """

    def __init__(
        self,
        first: TableSource,
        second: LayerEstimator,
        *,
        adapt: bool = True,
        across_platforms: bool = False,
    ) -> None:
        self.first = _strict(first)
        if not isinstance(second, LayerEstimator):
            raise InvalidValueError(
                "The second of a FallbackEstimator must be layer-based; NetworkFallback takes one that costs whole "
                f"networks. Got {type(second).__name__}."
            )
        _check_pair(self.first, second, across_platforms=across_platforms)
        self.second = second
        self.adapt = adapt or across_platforms
        self.across_platforms = across_platforms
        self.metric = self.first.metric
        self.platform: Platform = self.first.platform
        self.calibration = self.first.calibration
        self.residency = self.first.residency
        self.network_error = self.first.network_error
        self.by = self.first.by
        foreign = self.first.platform.differences(second.platform)
        if foreign and self.agreement.n < _LEAST:
            raise InvalidValueError(
                f"An estimator of another platform is scaled by at least {_LEAST} operators that both know. "
                f"{self.first!r} and {second!r} share {self.agreement.n}."
            )

    def __repr__(self) -> str:
        return f"FallbackEstimator({self.first!r}, {self.second!r})"

    @property
    def base_table(self) -> LookupTable | None:
        """The primary table, if it covers the layers of a space."""
        return self.first.base_table

    @property
    def pairs(self) -> tuple[LayerPair, ...]:
        """Costs of pairs of neighbouring layers of the table, also of candidates without an entry."""
        return self.first.pairs

    @cached_property
    def beside(self) -> Mapping[OpSpec, Mapping[str, float]]:
        """Costs beside neighbours of the table's operators; for others, those of the second, scaled like its costs."""
        found = {op: costs for op, costs in self.second.beside.items() if op not in self._known_ops}
        if not found:
            return self.first.beside
        # The agreement asks the second for all operators of the table, which takes long where it measures them.
        scale = self._footing * (self.agreement.ratio if self.adapt else 1.0)
        scaled = {op: {name: scale * cost for name, cost in costs.items()} for op, costs in found.items()}
        return {**scaled, **self.first.beside}

    @cached_property
    def agreement(self) -> Agreement:
        """Agreement of the second with the first on the operators of the table."""
        ratios = []
        for op, value in self._known_ops.items():
            try:
                other = self.second.estimate_op(op)
            except LatencyError:
                continue
            if not other.missing and other.value > 0 and value > 0 and math.isfinite(other.value):
                ratios.append(value / (other.value * self._footing))
        if len(ratios) < _LEAST:
            return Agreement(len(ratios))
        low, middle, high = (float(number) for number in np.quantile(ratios, [_LOW, 0.5, _HIGH]))
        return Agreement(len(ratios), middle, low / middle, high / middle)

    def estimate_op(self, op: OpSpec) -> Estimate:
        """Return the entry of the operator in the table, otherwise the estimate of the second."""
        try:
            return self.first.estimate_op(op)
        except MissingEntryError:
            return self._stand_in(self.second.estimate_op(op), op.op_key)

    def estimate_choice(self, layer: str, choice: str, op: OpSpec) -> Estimate:
        """Return the entry of the candidate in the table, otherwise the estimate of the second."""
        try:
            found = self.first.estimate_choice(layer, choice, op)
        except MissingEntryError:
            return self._stand_in(self.second.estimate_choice(layer, choice, op), f"{layer}:{choice}")
        if not found.missing:
            return found
        try:
            return self._stand_in(self.second.estimate_choice(layer, choice, op), f"{layer}:{choice}")
        except MissingEntryError:
            # A fixed layer unknown to both costs all networks the same; keep the estimate of the table.
            return found

    @property
    def runs_unused(self) -> bool:
        """Whether operators that no output depends on count: where they do in the table."""
        return self.first.runs_unused

    def check_plan(self, plan: MeasurePlan) -> None:
        """Raise `MismatchError` if either is tied to another space than the plan."""
        self.first.check_plan(plan)
        self.second.check_plan(plan)

    def _estimate_ops(self, ops: list[OpSpec]) -> list[Estimate]:
        return self.first.in_places(ops, self.estimate_op)

    @cached_property
    def _known_ops(self) -> dict[OpSpec, float]:
        """Mean cost of each operator of the table."""
        ops = {entry.op for _, entry in self.first.table.places() if entry.op is not None}
        return {op: self.first.estimate_op(op).value for op in sorted(ops, key=lambda op: op.op_key)}

    @property
    def _footing(self) -> float:
        """Factor that converts a part of the second to the calibration of the first."""
        return combination_of(self.metric).footing(self.second.calibration / self.first.calibration)

    def _stand_in(self, part: Estimate, name: str) -> Estimate:
        """Scale a part of the second to the first; its interval reflects their disagreement."""
        agreement = self.agreement
        scaled = part.scaled(self._footing * (agreement.ratio if self.adapt else 1.0))
        # Without scaling, the median ratio is part of the error of the second.
        off = 1.0 if self.adapt else agreement.ratio
        widened = scaled.widened(scaled.value * agreement.low * off, scaled.value * agreement.high * off)
        return replace(widened, missing=(name,))


class NetworkFallback(NetworkEstimator):
    """An estimator with a second one for whole networks that the first cannot estimate. Immutable.

    Parameters
    ----------
    first, second : Estimator
        Estimators in order of precedence.

    Raises
    ------
    MismatchError
        If the estimators differ in metric or platform.
    """

    def __init__(self, first: Estimator | LookupTable, second: Estimator) -> None:
        self.first: Estimator = _strict(first) if isinstance(first, _TABLES) else first
        self.second = second
        _check_pair(self.first, second, across_platforms=False)
        self.metric = self.first.metric
        self.platform: Platform = self.first.platform

    def __repr__(self) -> str:
        return f"NetworkFallback({self.first!r}, {self.second!r})"

    def estimate(self, model: Any, example_inputs: Any = None) -> Estimate:
        """Return the estimate of the first, otherwise of the second; `missing` lists what the first lacked."""
        lacking: tuple[str, ...] = ("network",)
        try:
            found = self.first.estimate(model, example_inputs)
            if not found.missing:
                return found
            lacking = found.missing
        except MissingEntryError:
            pass
        answer = self.second.estimate(model, example_inputs)
        return replace(answer, missing=tuple(dict.fromkeys([*lacking, *answer.missing])))


def with_fallback(
    first: TableSource, second: Estimator, *, across_platforms: bool = False
) -> FallbackEstimator | NetworkFallback:
    """Combine a table with a fallback: by layer if both are layer-based, otherwise for whole networks.

    Raises
    ------
    MismatchError
        If the estimators differ in metric or platform.
    """
    if isinstance(second, LayerEstimator):
        return FallbackEstimator(first, second, across_platforms=across_platforms)
    return NetworkFallback(first, second)


def _strict(first: TableSource) -> TableEstimator:
    """Return the table as an estimator that raises for missing entries."""
    if not isinstance(first, _TABLES):
        raise InvalidValueError(f"The first of a fallback must be a table. Got {type(first).__name__}.")
    if isinstance(first, TableEstimator):
        return first if first.missing == "error" else TableEstimator(first.table, missing="error")
    return TableEstimator(first, missing="error")


def _check_pair(first: Estimator, second: Estimator, *, across_platforms: bool) -> None:
    if not isinstance(second, Estimator):
        raise InvalidValueError(f"The second of a fallback must be an Estimator. Got {type(second).__name__}.")
    if first.metric != second.metric:
        raise MismatchError(f"An estimator of {second.metric} cannot stand in for one of {first.metric}.")
    if not across_platforms:
        try:
            check_same_platform(first.platform, second.platform, "A fallback")
        except MismatchError as error:
            raise MismatchError(
                f"{error} If the second shall be scaled to the first, say so with across_platforms=True "
                "('fallback:TABLE,PREDICTOR,across-platforms')."
            ) from error
