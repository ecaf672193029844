# SPDX-License-Identifier: Apache-2.0
"""Ensembles: several estimators combined, weighted by their errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nni_latency.costs import NORMAL
from nni_latency.errors import InvalidValueError, MismatchError, MissingEntryError
from nni_latency.estimators._base import Estimate, Estimator, LayerEstimator, NetworkEstimator
from nni_latency.estimators._breakdown import estimate_selection
from nni_latency.operators import OpSpec, TracedOperator, neighbours_of
from nni_latency.platforms import Platform, check_same_platform
from nni_latency.tables import LayerPair, LookupTable, MeasurePlan, Residency, weighed_pairs
from nni_latency.units import combination_of, number_of

#: Minimum number of networks for fitting weights.
_LEAST = 3

#: Lower bound of the error of a member, as a ratio.
_BEST = 1e-3

#: Larger factors between measurements and estimates indicate another unit.
_ODD = 300.0

Self = TypeVar("Self", bound="_Ensemble")


class _Ensemble(Estimator):
    """Members, weights, and fitting of the weights."""

    def __init__(self, *, members: Sequence[Estimator], weights: Sequence[float] | None = None) -> None:
        self.members = tuple(members)
        self.weights = None if weights is None else tuple(weights)
        _check_members(self.members)
        self.metric = self.members[0].metric
        self.platform: Platform = self.members[0].platform
        self.weights_ = _normalised(self.weights, len(self.members))
        #: Interval of measured over estimated cost, set by `fit`.
        self.interval_: tuple[float, float] = (1.0, 1.0)

    def __repr__(self) -> str:
        parts = (f"{weight:.2f} {member!r}" for weight, member in zip(self.weights_, self.members, strict=True))
        return f"{type(self).__name__}({', '.join(parts)})"

    def fit(self: Self, plan: MeasurePlan, selections: Sequence[Mapping[str, str]], measured: ArrayLike) -> Self:
        """Fit the weights of the members to measured networks.

        The weight of a member is the inverse of its relative mean square error. The interval of every estimate becomes
        at least as wide as the 90 % interval of the ensemble's errors.

        Parameters
        ----------
        plan : MeasurePlan
            Plan of the space.
        selections : sequence of mapping of str to str
            Networks, ``{layer: choice}`` with every layer.
        measured : array-like of shape (n_networks,)
            Measured costs in the SI unit of the metric.

        Returns
        -------
        self

        Raises
        ------
        InvalidValueError
            If there are fewer than three networks, a cost is not positive, or all seem to be in another unit.
        """
        truth = _check_measured(measured, len(selections))
        predicted = np.array(
            [[estimate_selection(member, plan, one).value for one in selections] for member in self.members]
        )
        ratios = np.log(predicted / truth)
        off = float(np.median(ratios))
        if abs(off) > math.log(_ODD):
            raise InvalidValueError(
                f"The measurements are {math.exp(abs(off)):.3g} times {'below' if off > 0 else 'above'} what the "
                "members say. Are they in another unit? Costs are in SI units, latency in seconds."
            )
        self.errors_ = tuple(float(error) for error in np.sqrt((ratios**2).mean(axis=1)))
        self.weights_ = _normalised([1 / max(error, _BEST) ** 2 for error in self.errors_], len(self.members))
        rest = truth / (np.array(self.weights_) @ predicted)
        low, high = (float(value) for value in np.quantile(rest, [0.05, 0.95]))
        self.interval_ = (min(low, 1.0), max(high, 1.0))
        self._settle()
        return self

    def _settle(self) -> None:
        """Update the attributes that depend on the weights."""

    def _widened(self, answer: Estimate) -> Estimate:
        low, high = self.interval_
        return answer.widened(answer.value * low, answer.value * high)


class LayerEnsemble(_Ensemble, LayerEstimator):
    """Weighted mean of layer-based estimators, part by part. Layer-based as well.

    The interval of a part covers the intervals of the members and their disagreement. A member that lacks a part is
    listed in `Estimate.missing`, and its weight is distributed to the others.

    Parameters
    ----------
    members : sequence of LayerEstimator
        At least two, of one metric and platform.
    weights : sequence of float, optional
        Weights of the members; equal by default. `fit` determines them.

    Attributes
    ----------
    weights_ : tuple of float
        Normalised weights.
    errors_ : tuple of float
        Relative root mean square error of every member; set by `fit`.

    Raises
    ------
    MismatchError
        If members are of different metrics or platforms.
    InvalidValueError
        If there are fewer than two members, one is not layer-based, or a weight is negative.

    Examples
    --------
    >>> from nni_latency.estimators import TableEstimator
    >>> tables = [LookupTable.from_latencies({"a": ["x"]}, {"a": {"x": cost}}) for cost in (0.001, 0.003)]
    >>> ensemble = LayerEnsemble(members=[TableEstimator(table) for table in tables])
    >>> ensemble.estimate_choice("a", "x", OpSpec.of("identity", [(1, 2)])).value
    0.002
    """

    members: tuple[LayerEstimator, ...]

    def __init__(self, *, members: Sequence[LayerEstimator], weights: Sequence[float] | None = None) -> None:
        super().__init__(members=members, weights=weights)
        for member in self.members:
            if not isinstance(member, LayerEstimator):
                raise InvalidValueError(
                    f"The members of a LayerEnsemble must be layer-based. {member!r} is not; use NetworkEnsemble."
                )
        self.by = self.members[0].by
        self._settle()

    def _settle(self) -> None:
        """Take the means of the members; of the residency, that of the saved share, over its mean scale."""
        self.__dict__.pop("beside", None)
        weighed = list(zip(self.weights_, self.members, strict=True))
        self.constant = math.fsum(weight * member.constant for weight, member in weighed)
        # Errors of the members are correlated and do not cancel.
        self.network_error = math.fsum(weight * member.network_error for weight, member in weighed)
        pairs = [
            (weight, member.residency) for weight, member in weighed if member.residency is not None and weight > 0
        ]
        saving = math.fsum(weight * residency.saving for weight, residency in pairs)
        self.residency = None
        if saving:
            scale = math.fsum(weight * residency.saving * residency.scale for weight, residency in pairs) / saving
            self.residency = Residency(saving, scale)

    @property
    def base_table(self) -> LookupTable | None:
        """Table of the first member that has one."""
        return next((member.base_table for member in self.members if member.base_table is not None), None)

    @property
    def pairs(self) -> tuple[LayerPair, ...]:
        """Weighted mean of the costs of pairs of the members; without such costs, they count as zero."""
        weights = [weight * member.calibration for weight, member in zip(self.weights_, self.members, strict=True)]
        return weighed_pairs([member.pairs for member in self.members], weights)

    @cached_property
    def beside(self) -> Mapping[OpSpec, Mapping[str, float]]:
        """Weighted mean of the costs beside neighbours of the members that know an operator."""
        return {op: self._mean_beside(op) for op in dict.fromkeys(op for item in self.members for op in item.beside)}

    def _mean_beside(self, op: OpSpec) -> dict[str, float]:
        used = self._used([_ask(member.estimate_op, op) for member in self.members])
        weights = _shares([weight for weight, _, _ in used])
        found: dict[str, float] = {}
        for weight, (_, member, _) in zip(weights, used, strict=True):
            for name, cost in member.beside.get(op, {}).items():
                found[name] = found.get(name, 0.0) + weight * member.calibration * cost
        return found

    def estimate_op(self, op: OpSpec) -> Estimate:
        """Return the weighted mean of the members' estimates."""
        return self._mean([_ask(member.estimate_op, op) for member in self.members], op.op_key)

    def estimate_choice(self, layer: str, choice: str, op: OpSpec) -> Estimate:
        """Return the weighted mean of the members' estimates of a candidate."""
        answers = [_ask(member.estimate_choice, layer, choice, op) for member in self.members]
        return self._mean(answers, f"{layer}:{choice}")

    @property
    def runs_unused(self) -> bool:
        """Whether operators that no output depends on count: where they do for the first member."""
        return self.members[0].runs_unused

    def check_plan(self, plan: MeasurePlan) -> None:
        """Raise `MismatchError` if a member is tied to another space than the plan."""
        for member in self.members:
            member.check_plan(plan)

    def total(self, parts: Any) -> Estimate:
        """Return the cost of a network from its parts; its interval is at least that of `fit`."""
        return self._widened(super().total(parts))

    def _estimate_traced(self, traced: Sequence[TracedOperator]) -> list[Estimate]:
        columns = [_ask_all(member, traced) for member in self.members]
        return [
            self._mean(answers, item.op.op_key)
            for item, answers in zip(traced, zip(*columns, strict=True), strict=True)
        ]

    def _mean(self, answers: Sequence[Estimate | None], name: str) -> Estimate:
        """Combine the members' estimates of one part, each with its own calibration."""
        used = self._used(answers)
        if not used:
            raise MissingEntryError(f"No member of the ensemble knows {name}.")
        combination = combination_of(self.metric)
        counted = [(weight, combination.counted(answer, member.calibration)) for weight, member, answer in used]
        lacking = len(used) < len(self.members) or any(answer.missing for _, _, answer in used)
        return replace(combination.whole(_mixture(counted)), missing=(name,) if lacking else ())

    def _used(self, answers: Sequence[Estimate | None]) -> list[tuple[float, LayerEstimator, Estimate]]:
        """Return the answers that count, with their members and weights: complete ones, if there is one."""
        whole = any(answer is not None and not answer.missing for answer in answers)
        return [
            (weight, member, answer)
            for weight, member, answer in zip(self.weights_, self.members, answers, strict=True)
            if answer is not None and not (whole and answer.missing)
        ]


class NetworkEnsemble(_Ensemble, NetworkEstimator):
    """Weighted mean of estimators of any kind, for whole networks.

    The interval covers the intervals of the members and their disagreement. A member without an estimate is listed in
    `Estimate.missing`, and its weight is distributed to the others.

    Parameters
    ----------
    members : sequence of Estimator
        At least two, of one metric and platform.
    weights : sequence of float, optional
        Weights of the members; equal by default. `fit` determines them.

    Attributes
    ----------
    weights_, errors_ : tuple of float
        As in `LayerEnsemble`.

    Raises
    ------
    MismatchError
        If members are of different metrics or platforms.
    InvalidValueError
        If there are fewer than two members, or a weight is negative.
    """

    def estimate(self, model: Any, example_inputs: Any = None) -> Estimate:
        """Return the weighted mean of the members' estimates of the network."""
        answers = [_ask(member.estimate, model, example_inputs) for member in self.members]
        used = [(weight, answer) for weight, answer in zip(self.weights_, answers, strict=True) if answer is not None]
        if not used:
            raise MissingEntryError("No member of the ensemble knows the network.")
        silent = [repr(member) for member, answer in zip(self.members, answers, strict=True) if answer is None]
        missing = dict.fromkeys([*(name for _, answer in used for name in answer.missing), *silent])
        return self._widened(replace(_mixture(used), missing=tuple(missing)))


def make_ensemble(
    members: Sequence[Estimator], weights: Sequence[float] | None = None
) -> LayerEnsemble | NetworkEnsemble:
    """Create an ensemble: layer-based if all members are, otherwise network-based.

    Raises
    ------
    MismatchError
        If members are of different metrics or platforms.
    InvalidValueError
        If there are fewer than two members, or a weight is negative.
    """
    layered = [member for member in members if isinstance(member, LayerEstimator)]
    if len(layered) == len(members):
        return LayerEnsemble(members=layered, weights=weights)
    return NetworkEnsemble(members=members, weights=weights)


def _ask(question: Any, *arguments: Any) -> Estimate | None:
    try:
        answer: Estimate = question(*arguments)
    except MissingEntryError:
        return None
    return answer


def _ask_all(member: LayerEstimator, traced: Sequence[TracedOperator]) -> list[Estimate | None]:
    """Estimate all parts of a network; one by one if a member lacks some."""
    try:
        return list(member._estimate_traced(traced))
    except MissingEntryError:
        found = [_ask(member.estimate_op, item.op) for item in traced]
    if not member.beside:
        return found
    ops = [item.op for item in traced]
    neighbours = neighbours_of(ops, [item.reads for item in traced])
    known = [(part, op, names) for part, op, names in zip(found, ops, neighbours, strict=True) if part is not None]
    placed = iter(member.beside_neighbours(*zip(*known, strict=True)) if known else ())
    return [None if part is None else next(placed) for part in found]


def _mixture(used: Sequence[tuple[float, Estimate]]) -> Estimate:
    """Return the weighted mean, with an interval that covers those of the members and their disagreement."""
    weights = _shares([weight for weight, _ in used])
    pairs = list(zip(weights, (answer for _, answer in used), strict=True))
    value = math.fsum(weight * answer.value for weight, answer in pairs)
    apart = NORMAL**2 * math.fsum(weight * (answer.value - value) ** 2 for weight, answer in pairs)
    below = math.sqrt(math.fsum(weight * (answer.value - answer.low) ** 2 for weight, answer in pairs) + apart)
    above = math.sqrt(math.fsum(weight * (answer.high - answer.value) ** 2 for weight, answer in pairs) + apart)
    return Estimate(value, max(0.0, value - below), value + above)


def _shares(weights: Sequence[float]) -> tuple[float, ...]:
    """Normalise the weights of members with an estimate; if all of them are zero, they count equally."""
    return _normalised(weights if any(weights) else None, len(weights))


def _normalised(weights: Sequence[float] | None, count: int) -> tuple[float, ...]:
    given = [1.0] * count if weights is None else [float(weight) for weight in weights]
    total = math.fsum(given)
    if len(given) != count or not all(weight >= 0 for weight in given) or not 0 < total < math.inf:
        raise InvalidValueError(
            f"The 'weights' of an ensemble must be {number_of(count, 'number')} >= 0, one a member. Got {list(given)}."
        )
    return tuple(weight / total for weight in given)


def _check_members(members: Sequence[Estimator]) -> None:
    if len(members) < 2:
        raise InvalidValueError(f"An ensemble has at least two members. Got {len(members)}.")
    for member in members:
        if not isinstance(member, Estimator):
            raise InvalidValueError(f"The members of an ensemble must be Estimators. Got {type(member).__name__}.")
        if member.metric != members[0].metric:
            raise MismatchError(f"An ensemble cannot mix {members[0].metric} and {member.metric}.")
        check_same_platform(members[0].platform, member.platform, "An ensemble")


def _check_measured(measured: ArrayLike, count: int) -> NDArray[np.float64]:
    truth = np.asarray(measured, dtype=np.float64)
    if truth.shape != (count,) or count < _LEAST:
        raise InvalidValueError(
            f"An ensemble is weighed by at least {_LEAST} networks, with one measurement each. Got "
            f"{number_of(count, 'network')} and measurements of shape {truth.shape}."
        )
    wrong = [index for index, value in enumerate(truth.tolist()) if not (math.isfinite(value) and value > 0)]
    if wrong:
        raise InvalidValueError(f"Measurements must be positive, finite numbers. Those at {wrong[:8]} are not.")
    return truth
