"""The interfaces of estimators, and the answer they give."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nni_latency.errors import InvalidValueError
from nni_latency.operators import By, OpSpec, capture_operators
from nni_latency.platforms import Platform
from nni_latency.tables import MeasurePlan, Residency
from nni_latency.units import METRIC_COMBINATIONS


@dataclass(frozen=True)
class Estimate:
    """What something costs, as far as is known.

    Parameters
    ----------
    value, low, high : float
        Cost and its interval, in the SI unit of the metric.
    missing : tuple of str, default=()
        What the value does not rest on as it should: parts that were left out, or taken from the nearest known one.

    Examples
    --------
    >>> a, b = Estimate(1.0, 0.9, 1.3), Estimate(2.0, 1.6, 2.4)
    >>> round(Estimate.sum([a, b]).high, 3)
    3.5
    """

    value: float
    low: float
    high: float
    missing: tuple[str, ...] = ()

    @classmethod
    def sum(cls, parts: Iterable[Estimate], factor: float = 1.0) -> Estimate:
        """Add up the costs of parts that were measured independently, times a factor.

        The half-widths of the intervals add up like standard deviations: root of the sum of squares.
        """
        items = list(parts)
        value = math.fsum(item.value for item in items)
        below = math.sqrt(math.fsum((item.value - item.low) ** 2 for item in items))
        above = math.sqrt(math.fsum((item.high - item.value) ** 2 for item in items))
        missing = tuple(name for item in items for name in item.missing)
        return cls(factor * value, factor * (value - below), factor * (value + above), missing)

    @classmethod
    def largest(cls, parts: Iterable[Estimate]) -> Estimate:
        """Return the largest of costs that do not add up, such as the memory that layers need one after another."""
        items = list(parts)
        missing = tuple(name for item in items for name in item.missing)
        value, low, high = (max(getattr(item, name) for item in items) for name in ("value", "low", "high"))
        return cls(value, low, high, missing)

    def inverted(self) -> Estimate:
        """Return one over the cost: the time of one input for a throughput, and back."""
        return Estimate(1 / self.value, 1 / self.high, 1 / max(self.low, 1e-300), self.missing)

    def through(self, residency: Residency | None) -> Estimate:
        """Return the estimate of a network whose parts add up to this one, given what small networks save."""
        if residency is None:
            return self
        value, low, high = (float(residency(number)) for number in (self.value, self.low, self.high))
        return Estimate(value, low, high, self.missing)


class Estimator(ABC):
    """What answers "what does this network cost?" on one platform, for one metric.

    Safe to use from several threads. `estimate` changes neither the estimator nor the model.
    """

    metric: str
    platform: Platform

    @abstractmethod
    def estimate(self, model: Any, example_inputs: Any = None) -> Estimate:
        """Estimate the cost of a whole network.

        Parameters
        ----------
        model : nn.Module
            Any module, a frozen model of an NNI space among them.
        example_inputs : Tensor or tuple of Tensor
            What its forward pass takes.

        Returns
        -------
        Estimate
            In the SI unit of `metric`.

        Raises
        ------
        InvalidValueError
            If model and inputs do not fit each other.
        MissingEntryError
            If the estimator knows too little to answer.
        """


class LayerEstimator(Estimator):
    """Layer-based: the network's cost is made of its operators' costs, for most metrics as their calibrated sum."""

    #: What counts as one operator; see `nni_latency.operators.trace`.
    by: By = "module"
    #: Factor on the sum.
    calibration: float = 1.0
    #: What small networks save, for the calibrated sum.
    residency: Residency | None = None

    @abstractmethod
    def estimate_op(self, op: OpSpec) -> Estimate:
        """Estimate the cost of one operator or block.

        Raises
        ------
        MissingEntryError
            If it does not know the operator.
        """

    def estimate_choice(self, layer: str, choice: str, op: OpSpec) -> Estimate:
        """Estimate one candidate of a plan, before calibration; an estimator that knows places may tell them apart.

        Parameters
        ----------
        layer, choice : str
            Names in the plan.
        op : OpSpec
            What the plan says the candidate computes.

        Raises
        ------
        MissingEntryError
            If it does not know the operator.
        """
        return self.estimate_op(op)

    def check_plan(self, plan: MeasurePlan) -> None:
        """Raise `MismatchError` if the estimator belongs to another space than the plan; most know any space."""

    def estimate(self, model: Any, example_inputs: Any = None) -> Estimate:
        """Estimate the cost of a whole network: capture its operators and add them up."""
        if example_inputs is None:
            raise InvalidValueError(
                f"{type(self).__name__}.estimate needs 'example_inputs': costs depend on the shapes. Got None."
            )
        ops = capture_operators(model, example_inputs, self.by)
        return self.total(self._estimate_ops([op for _, op in ops]))

    def total(self, parts: Iterable[Estimate]) -> Estimate:
        """Return the cost of a network that has these parts.

        It is their calibrated sum, less what a small network saves; for a throughput the same of the times of one
        input; for memory that layers need one after another the largest of them.
        """
        combination = METRIC_COMBINATIONS[self.metric]
        if combination == "max":
            return Estimate.largest(parts)
        if combination == "inverse":
            times = (part.inverted() for part in parts)
            return Estimate.sum(times, self.calibration).through(self.residency).inverted()
        return Estimate.sum(parts, self.calibration).through(self.residency)

    def _estimate_ops(self, ops: list[OpSpec]) -> list[Estimate]:
        return [self.estimate_op(op) for op in ops]


class NetworkEstimator(Estimator):
    """Network-based: the network is costed as a whole."""
