"""The interfaces of estimators, the answer they give, and the share of one layer in a network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import nni_latency.operators as operators
from nni_latency.costs import Cost
from nni_latency.errors import InvalidValueError
from nni_latency.hook_checks import COUNT, FLAG, Check, Guard, Pluggable, is_number
from nni_latency.operators import By, OpSpec, TracedOperator
from nni_latency.platforms import Platform
from nni_latency.tables import MeasurePlan, Residency
from nni_latency.units import METRICS, combination_of


@dataclass(frozen=True)
class Estimate(Cost):
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

    missing: tuple[str, ...] = ()

    @classmethod
    def of(cls, cost: Cost, missing: tuple[str, ...] = ()) -> Estimate:
        """Take over value and interval of any record of a cost."""
        return cls(cost.value, cost.low, cost.high, missing)

    @classmethod
    def _joined(cls, parts: Sequence[Estimate], value: float, low: float, high: float) -> Estimate:
        return cls(value, low, high, tuple(name for part in parts for name in part.missing))


def _is_estimate(answer: Any) -> bool:
    return (
        isinstance(answer, Estimate)
        and all(is_number(number) for number in (answer.value, answer.low))
        and isinstance(answer.missing, tuple)
    )


_ESTIMATE: Check = ("an Estimate", _is_estimate)


class Estimator(Pluggable, ABC):
    """Estimates the cost of networks on one platform, for one metric.

    Safe to use from several threads. `estimate` changes neither the estimator nor the model.

    Notes
    -----
    Here and in `nni_latency.kernels`, `nni_latency.graphs` and `nni_latency.energy` a verb means one thing.
    ``estimate`` takes a network and its inputs and returns an `Estimate`, a value with its interval; ``estimate_op``,
    ``estimate_sample`` and the like do so for the one thing that they name. ``predict(X)`` takes many rows of what
    ``fit`` takes and returns their values alone, an array of shape (n,); ``predict_interval`` and other names that
    begin with ``predict_`` return several such arrays. ``measure`` runs networks on a device.
    """

    _kind = "estimator"
    _guards: ClassVar[Mapping[str, Guard]] = {
        "estimate": Guard(_ESTIMATE),
        "estimate_all": Guard(
            ("a list of Estimate", lambda answer: isinstance(answer, list) and all(map(_is_estimate, answer)))
        ),
        "resolve": Guard(("an Estimator", lambda answer: isinstance(answer, Estimator))),
    }
    _attributes: ClassVar[Mapping[str, Check]] = {
        "metric": (f"one of {', '.join(METRICS)}", lambda value: isinstance(value, str) and value in METRICS),
        "platform": ("a nni_latency.Platform", lambda value: isinstance(value, Platform)),
        "reads_onnx": FLAG,
        "batch": COUNT,
    }

    metric: str
    platform: Platform
    #: Whether `estimate` takes the paths of ONNX files, too.
    reads_onnx: bool = False

    def __repr__(self) -> str:
        platform = getattr(self, "platform", None)
        where = f" on {platform.id}" if isinstance(platform, Platform) else ", not fitted"
        return f"{type(self).__name__}({getattr(self, 'metric', 'cost')}{where})"

    def resolve(self) -> Estimator:
        """Return what answers in a search: this estimator, or a simpler one that knows as much."""
        return self

    #: Networks that are best asked for at once, with `estimate_all`.
    batch: int = 1

    def estimate_all(self, networks: Iterable[tuple[Any, Any]]) -> list[Estimate]:
        """Estimate several networks, each with its example inputs; raises as `estimate`."""
        return [self.estimate(model, inputs) for model, inputs in networks]

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

    _guards: ClassVar[Mapping[str, Guard]] = {
        **Estimator._guards,
        "estimate_op": Guard(_ESTIMATE),
        "estimate_choice": Guard(_ESTIMATE),
        "total": Guard(_ESTIMATE),
        "check_plan": Guard(),
    }
    _attributes: ClassVar[Mapping[str, Check]] = {
        **Estimator._attributes,
        "by": (f"one of {', '.join(get_args(By))}", lambda value: value in get_args(By)),
        "calibration": ("a number above 0", lambda value: is_number(value, least=0) and value > 0),
        "network_error": ("a number of 0 or more", lambda value: is_number(value, least=0)),
    }

    #: What counts as one operator; see `nni_latency.operators.trace`.
    by: By = "module"
    #: Factor on the sum.
    calibration: float = 1.0
    #: What small networks save, for the calibrated sum.
    residency: Residency | None = None
    #: By how much networks differ from what their parts say, beyond chance: a standard deviation, as a share.
    network_error: float = 0.0

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
        return self.total(self._estimate_traced(operators.trace(model, example_inputs, self.by).operators))

    def total(self, parts: Iterable[Estimate]) -> Estimate:
        """Return the cost of a network that has these parts.

        It is their calibrated sum, less what a small network saves; for a throughput the same of the times of one
        input; for memory that layers need one after another the largest of them.
        """
        combination = combination_of(self.metric)
        counted = (combination.counted(part, self.calibration) for part in parts)
        whole = combination.whole(combination.total_cost(Estimate, counted), self.residency)
        return whole.with_error(self.network_error)

    def _estimate_traced(self, traced: Sequence[TracedOperator]) -> list[Estimate]:
        """Estimate every operator of a network; an estimator that looks at their edges overrides this."""
        return self._estimate_ops([item.op for item in traced])

    def _estimate_ops(self, ops: list[OpSpec]) -> list[Estimate]:
        return [self.estimate_op(op) for op in ops]


class NetworkEstimator(Estimator):
    """Network-based: the network is costed as a whole."""


@dataclass(frozen=True)
class LayerShare:
    """The cost of one layer of a network."""

    name: str
    choice: str
    estimate: Estimate
    share: float


def layer_shares(estimator: LayerEstimator, parts: Sequence[tuple[str, str, Estimate]]) -> list[LayerShare]:
    """Take the cost of a network apart: the parts, each with layer and choice, scaled so that they make it up.

    A share is that of the sum; for a throughput that of the time; for memory that layers need one after another that of
    the largest.
    """
    combination = combination_of(estimator.metric)
    weights = [combination.counted(part.value) for _, _, part in parts]
    total = combination.total(weights)
    factor = estimator.total(part for _, _, part in parts).value / combination.whole(total) if total else 1.0
    return [
        LayerShare(name, choice, part.scaled(factor), weight / total if total else 0.0)
        for (name, choice, part), weight in zip(parts, weights, strict=True)
    ]
