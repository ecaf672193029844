# SPDX-License-Identifier: Apache-2.0
"""Interfaces of estimators, their result `Estimate`, and the share of a layer in a network."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, get_args

import nni_latency.operators as operators
from nni_latency.costs import Cost
from nni_latency.errors import InvalidValueError
from nni_latency.hook_checks import COUNT, FLAG, NOT_NEGATIVE, Check, Guard, Pluggable, is_number
from nni_latency.operators import By, Graph, OpSpec, TracedOperator
from nni_latency.platforms import Platform
from nni_latency.tables import LayerPair, LookupTable, MeasurePlan, Residency, cost_beside
from nni_latency.units import METRICS, combination_of


@dataclass(frozen=True)
class Estimate(Cost):
    """An estimated cost with its interval.

    Parameters
    ----------
    value, low, high : float
        Cost and its interval, in the SI unit of the metric.
    missing : tuple of str, default=()
        Parts that the value omits or takes from the nearest known one.

    Examples
    --------
    >>> a, b = Estimate(1.0, 0.9, 1.3), Estimate(2.0, 1.6, 2.4)
    >>> round(Estimate.sum([a, b]).high, 3)
    3.5
    """

    missing: tuple[str, ...] = ()

    @classmethod
    def of(cls, cost: Cost, missing: tuple[str, ...] = ()) -> Estimate:
        """Create an estimate from the value and interval of another cost."""
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

    Thread-safe. `estimate` changes neither the estimator nor the model.

    Notes
    -----
    Verbs have one meaning here and in `nni_latency.kernels`, `nni_latency.graphs` and `nni_latency.energy`.
    ``estimate`` takes a network and its inputs and returns an `Estimate`, a value with its interval; ``estimate_op``,
    ``estimate_sample`` and similar methods do so for the named item. ``predict(X)`` takes many rows in the format of
    ``fit`` and returns only their values, an array of shape (n,); ``predict_interval`` and other methods with the
    prefix ``predict_`` return several such arrays. ``measure`` runs networks on a device.
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
    #: Whether `estimate` also takes paths of ONNX files.
    reads_onnx: bool = False

    def __repr__(self) -> str:
        platform = getattr(self, "platform", None)
        where = f" on {platform.id}" if isinstance(platform, Platform) else ", not fitted"
        return f"{type(self).__name__}({getattr(self, 'metric', 'cost')}{where})"

    def resolve(self) -> Estimator:
        """Return the estimator to use in a search: this one, or an equivalent simpler one."""
        return self

    #: Preferred batch size of `estimate_all`.
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
            Any module, including a frozen model of an NNI space.
        example_inputs : Tensor or tuple of Tensor
            Inputs of the forward pass.

        Returns
        -------
        Estimate
            Cost in the SI unit of `metric`.

        Raises
        ------
        InvalidValueError
            If the model and the inputs do not match.
        MissingEntryError
            If the estimator lacks the data for an estimate.
        """


class LayerEstimator(Estimator):
    """Layer-based estimator: combines the costs of operators, for most metrics by a calibrated sum."""

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
        **dict.fromkeys(("constant", "network_error"), NOT_NEGATIVE),
    }

    #: Granularity of operators; see `nni_latency.operators.trace`.
    by: By = "module"
    #: Calibration factor of the sum.
    calibration: float = 1.0
    #: Cost of a run that is not part of any operator, added to the calibrated sum.
    constant: float = 0.0
    #: Saving of small networks, for the calibrated sum.
    residency: Residency | None = None
    #: Relative standard deviation of networks from the sum of their parts, beyond noise.
    network_error: float = 0.0

    @abstractmethod
    def estimate_op(self, op: OpSpec) -> Estimate:
        """Estimate the cost of one operator or block.

        Raises
        ------
        MissingEntryError
            If the operator is unknown.
        """

    def estimate_choice(self, layer: str, choice: str, op: OpSpec) -> Estimate:
        """Estimate one candidate of a plan, before calibration; the cost may depend on the layer.

        Parameters
        ----------
        layer, choice : str
            Names in the plan.
        op : OpSpec
            Operator of the candidate in the plan.

        Raises
        ------
        MissingEntryError
            If the operator is unknown.
        """
        return self.estimate_op(op)

    @property
    def pairs(self) -> tuple[LayerPair, ...]:
        """What neighbouring layers cost beyond the sum of their parts, before calibration; by default nothing.

        An estimator with such costs is tied to a space, see `check_plan`.
        """
        return ()

    @property
    def beside(self) -> Mapping[OpSpec, Mapping[str, float]]:
        """What operators cost more, or less, beside their neighbours, before calibration; by default nothing.

        For each operator: its costs by neighbour, see `nni_latency.tables.Entry`.
        """
        return {}

    @property
    def base_table(self) -> LookupTable | None:
        """Table with the layers of a space in which the estimator looks first; by default none."""
        return None

    def check_plan(self, plan: MeasurePlan) -> None:
        """Raise `MismatchError` if the estimator is tied to another space than the plan; most support any space."""

    def estimate(self, model: Any, example_inputs: Any = None) -> Estimate:
        """Estimate the cost of a whole network, or of an ONNX file: capture its operators and sum their costs."""
        if example_inputs is None and not isinstance(model, (str, Path)):
            raise InvalidValueError(
                f"{type(self).__name__}.estimate needs 'example_inputs': costs depend on the shapes. Got None."
            )
        return self.total(self._estimate_traced(self.executed(model, example_inputs).operators))

    def executed(self, model: Any, example_inputs: Any = None, batch_size: int | None = None) -> Graph:
        """Return the operators of a network or an ONNX file that the platform executes.

        Exports to ONNX and compilers remove operators that no output depends on.

        Parameters
        ----------
        model : nn.Module, str or Path
            The network or the file.
        example_inputs : Tensor, tuple or dict
            As for `nni_latency.operators.trace`; for an ONNX file, only needed for dynamic input sizes.
        batch_size : int, optional
            Batch size of an ONNX file.
        """
        if isinstance(model, (str, Path)):
            graph = operators.read_onnx(model, batch_size, example_inputs)
        else:
            graph = operators.trace(model, example_inputs, self.by)
        return graph if self.runs_unused else graph.without_unused()

    @property
    def runs_unused(self) -> bool:
        """Whether operators that no output depends on count: where the platform executes them."""
        return self.platform.runs_unused

    def total(self, parts: Iterable[Estimate]) -> Estimate:
        """Return the cost of a network from its parts.

        This is their calibrated sum, less the saving of a small network; for throughput, the same for the times per
        input; for memory reused between layers, the maximum.
        """
        combination = combination_of(self.metric)
        counted = [combination.counted(part, self.calibration) for part in parts]
        if self.constant:
            counted.append(Estimate(self.constant, self.constant, self.constant))
        whole = combination.whole(combination.total_cost(Estimate, counted), self.residency)
        return whole.with_error(self.network_error)

    def beside_neighbours(
        self, parts: Sequence[Estimate], ops: Sequence[OpSpec], neighbours: Sequence[Sequence[str] | None]
    ) -> list[Estimate]:
        """Return the costs of operators of a network beside their neighbours; what falls below zero goes to the others.

        Parameters
        ----------
        parts : sequence of Estimate
            Costs of the operators in any place.
        ops : sequence of OpSpec
            The operators.
        neighbours : sequence of (sequence of str or None)
            Neighbours of each, as in `nni_latency.operators.neighbours_of`; None where they are unknown.
        """
        known = self.beside
        more = [
            0.0 if names is None else cost_beside(known.get(op, {}), names)
            for op, names in zip(ops, neighbours, strict=True)
        ]
        shifted = [part.shifted(cost) for part, cost in zip(parts, more, strict=True)]
        values = [part.value + cost for part, cost in zip(parts, more, strict=True)]
        if not any(value < 0 for value in values):
            return shifted
        whole, left = max(0.0, math.fsum(values)), math.fsum(part.value for part in shifted)
        return [part.scaled(whole / left if left else 0.0) for part in shifted]

    def _estimate_traced(self, traced: Sequence[TracedOperator]) -> list[Estimate]:
        """Estimate every operator of a network; overridden by estimators that use the data flow."""
        ops = [item.op for item in traced]
        parts = self._estimate_ops(ops)
        if not self.beside:
            return parts
        return self.beside_neighbours(parts, ops, operators.neighbours_of(ops, [item.reads for item in traced]))

    def _estimate_ops(self, ops: list[OpSpec]) -> list[Estimate]:
        return [self.estimate_op(op) for op in ops]


class NetworkEstimator(Estimator):
    """Network-based estimator: estimates the network as a whole."""


@dataclass(frozen=True)
class LayerShare:
    """The cost of one layer of a network."""

    name: str
    choice: str
    estimate: Estimate
    share: float


def layer_shares(estimator: LayerEstimator, parts: Sequence[tuple[str, str, Estimate]]) -> list[LayerShare]:
    """Decompose the cost of a network into layers, scaled so that the shares add up to it.

    A share refers to the sum; for throughput, to the time; for memory reused between layers, to the maximum.
    """
    combination = combination_of(estimator.metric)
    weights = [combination.counted(part.value) for _, _, part in parts]
    total = combination.total(weights)
    factor = estimator.total(part for _, _, part in parts).value / combination.whole(total) if total else 1.0
    return [
        LayerShare(name, choice, part.scaled(factor), weight / total if total else 0.0)
        for (name, choice, part), weight in zip(parts, weights, strict=True)
    ]
