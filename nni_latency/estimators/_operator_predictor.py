# SPDX-License-Identifier: Apache-2.0
"""`OperatorPredictor`: predicts the cost of unmeasured operators from measured ones of the same family."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nni_latency.costs import NORMAL, Cost
from nni_latency.errors import MissingEntryError
from nni_latency.estimators._base import Estimate, LayerEstimator
from nni_latency.operators import OpSpec, family_of, size_of_attribute, work_of
from nni_latency.platforms import Platform
from nni_latency.regression import CORRELATIONS, Posterior, Spectrum, proportional, squared_distances
from nni_latency.tables import Entry
from nni_latency.units import number_of

Array = NDArray[np.float64]

#: Grid of length scales [doublings of a feature], deviations from the plain model, and noise, as logarithms of times.
_SCALES, _DEVIATIONS, _NOISES = (1.5, 3.0, 6.0, 12.0), (0.1, 0.3, 0.6), (0.02, 0.05, 0.1, 0.2)

#: Largest number of operators of a family for this choice; the others only serve as training data.
_ENOUGH = 250

#: Smaller families share a plain model with all other kinds.
_FEWEST = 6

#: Nominal weights: seconds per call, per multiply-add, per element read, written, and per parameter.
_NOMINAL = (5e-6, 3e-11, 5e-10, 5e-10, 5e-10)

#: Strength of the regularisation towards nominal weights, relative to one measured operator.
_REGULARISATION = 0.2

#: Minimum constant as a share of the smallest cost.
_LEAST_CONSTANT = 0.1

#: Additional standard deviation of the logarithm for families with little data.
_UNSURE = 0.5


class OperatorPredictor:
    """Predicts the cost of operators from measured ones of the same family.

    A family is a kind of operator; convolutions are divided into depthwise, grouped, pointwise and dense ones, which
    use different code. Its plain model is a sum with positive weights of a constant, multiply-adds, elements read and
    written, and parameters. A Gaussian process over the logarithms of shapes and attributes [1]_ models the deviation
    from it and reverts to the plain model far from the measured operators, so that predictions remain proportional to
    the work. The intervals are calibrated on operators left out.

    Parameters
    ----------
    ops : sequence of OpSpec
        Measured operators.
    costs : sequence of float
        Cost of each operator, positive.

    References
    ----------
    .. [1] C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press (2006), chapters 2
       and 5.

    Examples
    --------
    >>> ops = [OpSpec.of("relu", [(1, 2**k, 8, 8)]) for k in range(10)]
    >>> predictor = OperatorPredictor(ops, [1e-6 + 1e-9 * 64 * 2**k for k in range(10)])
    >>> round(predictor.estimate_op(OpSpec.of("relu", [(1, 96, 8, 8)])).value * 1e6, 1)
    7.1
    """

    def __init__(self, ops: Sequence[OpSpec], costs: Sequence[float]) -> None:
        self.ops, self.costs = tuple(ops), tuple(costs)

    def estimate_op(self, op: OpSpec) -> Estimate | None:
        """Predict the cost of an operator, which `missing` names; None if its kind was not measured."""
        family = self._families.get(family_of(op)) or self._kinds.get(op.kind)
        return None if family is None else Estimate.of(family.estimate_op(op), (f"predicted: {op.op_key}",))

    def guess(self, op: OpSpec) -> Estimate | None:
        """Estimate the cost of an operator of an unmeasured kind from its operations and data movement.

        The interval reflects the error of the plain model of all kinds on measured operators. `missing` names the
        operator. None without measurements.
        """
        if not self.ops:
            return None
        value = float((_terms([op]) @ self._shared_weights).item())
        off = np.abs(np.log(np.array(self.costs)) - np.log(_terms(self.ops) @ self._shared_weights))
        reach = math.exp(max(NORMAL * _UNSURE, float(np.quantile(off, 0.95))))
        return Estimate(value, value / reach, value * reach, (f"guessed by its size: {op.op_key}",))

    @cached_property
    def spreads(self) -> dict[str, tuple[int, float]]:
        """Number of operators of each family, and their median leave-one-out error as a ratio."""
        return {
            name: (len(family.ops), float(np.median(np.abs(np.expm1(family.left_out)))))
            for name, family in self._families.items()
            if len(family.ops) > 1
        }

    @cached_property
    def _families(self) -> dict[str, _Family]:
        return self._models(family_of)

    @cached_property
    def _kinds(self) -> dict[str, _Family]:
        """Models by kind, for families without measured members."""
        return self._models(lambda op: op.kind, unsure=_UNSURE)

    def _models(self, name_of: Callable[[OpSpec], str], unsure: float = 0.0) -> dict[str, _Family]:
        members: dict[str, list[tuple[OpSpec, float]]] = defaultdict(list)
        for op, cost in zip(self.ops, self.costs, strict=True):
            members[name_of(op)].append((op, cost))
        found = {}
        for name, known in members.items():
            ops, costs = [op for op, _ in known], np.array([cost for _, cost in known])
            weights = _plain_weights(ops, costs) if len(ops) >= _FEWEST else self._shared_weights
            found[name] = _Family(ops, costs, weights, unsure)
        return found

    @cached_property
    def _shared_weights(self) -> Array:
        return _plain_weights(self.ops, np.array(self.costs))


class _Family:
    """Plain model of a family and the Gaussian process over its residuals."""

    def __init__(self, ops: Sequence[OpSpec], costs: Array, weights: Array, unsure: float) -> None:
        self.ops, self.weights, self.unsure = ops, weights, unsure
        descriptions = [describe(op) for op in ops]
        self.names = sorted({name for description in descriptions for name in description})
        self.points = _points(descriptions, self.names)
        residuals = np.log(costs) - np.log(_terms(ops) @ weights)
        # With few members, the mean underestimates the uncertainty of the offset.
        self.offset = float(np.median(residuals))
        self.residuals = residuals - self.offset
        self.scale, self.deviation, self.noise = self._choose()
        covariance = self._kernel(self.points, self.points) + self.noise**2 * np.eye(len(ops))
        self._posterior = Posterior(covariance, self.residuals)
        self.width = self._calibrate()

    @cached_property
    def left_out(self) -> Array:
        """Logarithmic leave-one-out error of every member."""
        return self._posterior.left_out()[0]

    def estimate_op(self, op: OpSpec) -> Cost:
        description = describe(op)
        point = _points([description], self.names)
        near = self._kernel(point, self.points)
        mean = self._posterior.mean(near).item() if len(self.ops) > 1 else 0.0
        left = self._posterior.variances(near, np.array([self.deviation**2])).item()
        unseen = _UNSURE * bool(set(description) - set(self.names))
        sigma = math.hypot(math.sqrt(left + self.noise**2) * self.width, self.unsure, unseen)
        value = float((_terms([op]) @ self.weights).item() * math.exp(self.offset + mean))
        reach = math.exp(NORMAL * sigma)
        return Cost(value, value / reach, value * reach)

    def _kernel(self, one: Array, other: Array) -> Array:
        return self.deviation**2 * _correlation(one, other, self.scale)

    def _choose(self) -> tuple[float, float, float]:
        """Choose scale, deviation and noise that maximise the leave-one-out likelihood."""
        if len(self.ops) < _FEWEST:
            return _SCALES[1], _UNSURE, _NOISES[1]
        chosen = np.linspace(0, len(self.ops) - 1, min(len(self.ops), _ENOUGH)).astype(int)
        points, residuals = self.points[chosen], self.residuals[chosen]
        best, least = (_SCALES[0], _DEVIATIONS[0], _NOISES[0]), math.inf
        for scale in _SCALES:
            spectrum = Spectrum(_correlation(points, points, scale), residuals)
            for deviation, noise in itertools.product(_DEVIATIONS, _NOISES):
                errors, variances = spectrum.left_out((noise / deviation) ** 2)
                variances = deviation**2 * variances
                loss = float(np.sum(np.log(variances) + errors**2 / variances))
                if loss < least:
                    best, least = (scale, deviation, noise), loss
        return best

    def _calibrate(self) -> float:
        """Return the factor that calibrates standard deviations on leave-one-out errors."""
        if len(self.ops) < _FEWEST:
            return 1.0
        errors, variances = self._posterior.left_out()
        ratios = np.abs(errors) / np.sqrt(variances)
        return float(max(0.5, np.quantile(ratios, 0.95) / NORMAL))


def describe(op: OpSpec) -> dict[str, float]:
    """Return numeric features of an operator: operations, reads and writes, shapes and attributes.

    Text values become separate features with the value 1.
    """
    macs, inputs, outputs, params = _amounts(op)
    shape = op.input_shapes[0] if op.input_shapes else ()
    found: dict[str, float] = {"macs": macs, "inputs": inputs, "outputs": outputs, "params": params}
    if len(shape) > 2:
        found |= {"channels": shape[1], "area": math.prod(shape[2:]), "edge": shape[-1]}
    if op.input_shapes[1:]:
        found |= {"count": len(op.input_shapes), "second": math.prod(op.input_shapes[1])}
    for name, value in op.attributes:
        if isinstance(value, str):
            if name not in ("calls", "weights", "learned"):
                found[f"{name}={value}"] = 1.0
        elif name != "out" and math.isfinite(number := float(size_of_attribute(value))):
            found[name] = abs(number)
    return found


def nominal_time(op: OpSpec) -> float:
    """Return the time of an operator with nominal weights [s], a rough measure of its size."""
    return math.fsum(weight * term for weight, term in zip(_NOMINAL, (1.0, *_amounts(op)), strict=True))


def _amounts(op: OpSpec) -> tuple[float, float, float, float]:
    """Return multiply-adds, elements read and written, and parameters."""
    features, _ = work_of(op)
    return features.macs, features.inputs, features.outputs, features.params


def _terms(ops: Sequence[OpSpec]) -> Array:
    """Return the terms of the plain model, (n_ops, 5); the constant first."""
    return np.array([(1.0, *_amounts(op)) for op in ops])


def _plain_weights(ops: Sequence[OpSpec], costs: Array) -> Array:
    """Fit positive weights to relative errors, regularised towards nominal weights at the observed speed.

    The constant stays positive, so that every operator has a cost.
    """
    terms = _terms(ops)
    usual = np.array(_NOMINAL) * float(np.median(costs / (terms @ np.array(_NOMINAL))))
    return proportional(terms, costs, _LEAST_CONSTANT, usual, _REGULARISATION / usual)


def _points(descriptions: Sequence[Mapping[str, float]], names: Sequence[str]) -> Array:
    """Return logarithms to the base 2, (n, n_names); a doubling corresponds to 1."""
    return np.array([[math.log2(1 + description.get(name, 0.0)) for name in names] for description in descriptions])


def _correlation(one: Array, other: Array, scale: float) -> Array:
    return CORRELATIONS["gaussian"](np.sqrt(squared_distances(one, other)) / scale)


class PredictedRest(LayerEstimator):
    """Wraps a measuring estimator for a whole space: networks are measured, single operators predicted.

    A `ModuleEstimator` measures an operator that was not seen in a network alone, which takes seconds each and ignores
    the effect of a network on the caches. Here, it is predicted from the operators of its family seen in networks, and
    listed in `missing`.

    Parameters
    ----------
    estimator : ModuleEstimator or GraphEstimator
        Estimator with measured networks.
    ops : iterable of OpSpec
        Operators to estimate; those seen in networks are the training data.

    Raises
    ------
    MissingEntryError
        If no operator was seen in a network.
    """

    metric = "latency"

    def __init__(self, estimator: Any, ops: Iterable[OpSpec]) -> None:
        self.estimator = estimator
        self.by = estimator.by
        self.platform: Platform = estimator.platform
        self.known: dict[OpSpec, Estimate] = {op: estimator.estimate_op(op) for op in ops if estimator.has_met(op)}
        if not self.known:
            raise MissingEntryError("No operator was measured in a network yet. Measure some networks first.")

    def __repr__(self) -> str:
        return f"PredictedRest({self.estimator!r}, {number_of(len(self.known), 'operator')})"

    def estimate_op(self, op: OpSpec) -> Estimate:
        """Return the measured cost, or predict it."""
        if op in self.known:
            return self.known[op]
        found = self._predictor.estimate_op(op) or self._predictor.guess(op)
        assert found is not None, op
        return found

    @cached_property
    def _predictor(self) -> OperatorPredictor:
        return OperatorPredictor(list(self.known), [item.value for item in self.known.values()])


#: Counts that define the distance of two operators.
_NEAR_BY = ("macs", "acts", "inp", "params", "memory")


def nearest_entry(op: OpSpec | None, entries: Iterable[Entry]) -> Entry | None:
    """Return the entry with the nearest operator: of the same kind if possible, with the closest counts."""
    counted = [entry for entry in entries if entry.features is not None]
    if op is None or not counted:
        return None
    wanted = work_of(op)[0]

    def distance(entry: Entry) -> tuple[bool, float]:
        have = entry.features
        logs = (abs(math.log((getattr(wanted, n) + 1) / (getattr(have, n) + 1))) for n in _NEAR_BY)
        return entry.op is None or entry.op.kind != op.kind, sum(logs)

    return min(counted, key=distance)
