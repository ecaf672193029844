"""The interfaces of estimators, and the answer they give."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nni_latency.errors import InvalidValueError
from nni_latency.operators import OpSpec, capture_operators
from nni_latency.platforms import Platform


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
    """Layer-based: the network's cost is the calibrated sum of its operators' costs."""

    #: Factor on the sum.
    calibration: float = 1.0

    @abstractmethod
    def estimate_op(self, op: OpSpec) -> Estimate:
        """Estimate the cost of one operator or block.

        Raises
        ------
        MissingEntryError
            If it does not know the operator.
        """

    def estimate(self, model: Any, example_inputs: Any = None) -> Estimate:
        """Estimate the cost of a whole network: capture its operators and add them up."""
        if example_inputs is None:
            raise InvalidValueError(
                f"{type(self).__name__}.estimate needs 'example_inputs': costs depend on the shapes. Got None."
            )
        ops = capture_operators(model, example_inputs)
        return Estimate.sum(self._estimate_ops([op for _, op in ops]), self.calibration)

    def _estimate_ops(self, ops: list[OpSpec]) -> list[Estimate]:
        return [self.estimate_op(op) for op in ops]


class NetworkEstimator(Estimator):
    """Network-based: the network is costed as a whole."""
