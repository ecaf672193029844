# SPDX-License-Identifier: Apache-2.0
"""Cost of a network and of each of its operators or layers, by any estimator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nni_latency.errors import InvalidValueError
from nni_latency.estimators._additive import paired_parts
from nni_latency.estimators._base import Estimate, Estimator, LayerEstimator, LayerShare, layer_shares
from nni_latency.estimators._measuring import MeasuringEstimator
from nni_latency.operators import (
    Features,
    Graph,
    OpSpec,
    count_graph,
    onnx_inputs,
    precision_remarks,
    read_onnx,
    require_operators,
    trace,
)
from nni_latency.tables import MeasurePlan


@dataclass(frozen=True)
class OperatorShare:
    """Cost of an operator of a network.

    Parameters
    ----------
    name : str
        Qualified name of the operator.
    op : OpSpec
        Description of the operator.
    estimate : Estimate
        Cost of the operator; the costs of all operators add up to that of the network.
    share : float
        Share of the network's cost.
    """

    name: str
    op: OpSpec
    estimate: Estimate
    share: float


@dataclass(frozen=True)
class Breakdown:
    """Cost of a network and of each of its operators.

    Parameters
    ----------
    total : Estimate
        Cost of the network.
    operators : tuple of OperatorShare
        Operators in order of execution; empty if the estimator only supports whole networks.
    features : Features
        Sum over all operators.
    uncounted : tuple of str
        Kinds of operators of which `features` only contains elements and bytes, from their shapes.
    remarks : tuple of str
        Assumptions about the network.
    """

    total: Estimate
    operators: tuple[OperatorShare, ...]
    features: Features
    uncounted: tuple[str, ...]
    remarks: tuple[str, ...] = ()

    @property
    def costliest(self) -> list[OperatorShare]:
        """The operators, most expensive first."""
        return sorted(self.operators, key=lambda item: item.share, reverse=True)


def break_down(
    estimator: Estimator, model: Any, example_inputs: Any = None, *, batch_size: int | None = None
) -> Breakdown:
    """Estimate a network, operator by operator if the estimator supports it.

    Parameters
    ----------
    estimator : Estimator
        Any estimator; one that measures on demand measures the network.
    model : nn.Module, str or Path
        Any network, or an ONNX file for layer-based and measuring estimators.
    example_inputs : Tensor, tuple or dict
        As for `nni_latency.operators.trace`; for an ONNX file, only needed for dynamic input sizes.
    batch_size : int, optional
        Batch size of an ONNX file.

    Raises
    ------
    InvalidValueError
        If the model and the inputs do not match, or the model has no operators.
    MissingEntryError
        If the estimator lacks the data for an estimate.
    MeasurementError
        If the estimator measures and the network cannot be run.

    Examples
    --------
    >>> import torch
    >>> from nni_latency.estimators import ModuleEstimator
    >>> from nni_latency.testing import FakeRuntime
    >>> network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    >>> estimator = ModuleEstimator(runtime=FakeRuntime(lambda op: 3.0 if op.kind == "linear" else 1.0), store="memory")
    >>> found = break_down(estimator, network, torch.zeros(1, 3))
    >>> [(item.name, round(item.share, 9)) for item in found.operators]
    [('0', 0.75), ('1', 0.25)]
    """
    is_file = isinstance(model, (str, Path))
    if is_file and (isinstance(estimator, MeasuringEstimator) or estimator.reads_onnx):
        example_inputs = list(onnx_inputs(model, batch_size, example_inputs).args)
    if isinstance(estimator, LayerEstimator):
        graph = estimator.executed(model, example_inputs, batch_size)
    elif is_file:
        graph = _of_onnx(estimator, model, example_inputs, batch_size)
    else:
        graph = trace(model, example_inputs)
    traced = graph.operators
    require_operators(traced, str(model) if is_file else type(model).__name__)
    precision = precision_remarks([item.op for item in traced], estimator.platform.precision)
    remarks = (*graph.remarks, *precision)
    counted = count_graph(graph)
    features, uncounted = counted.features, counted.uncounted
    if not isinstance(estimator, LayerEstimator):
        return Breakdown(estimator.estimate(model, example_inputs), (), features, uncounted, remarks)
    if isinstance(estimator, MeasuringEstimator):
        estimator.measure([(model, example_inputs)])
    costs = estimator._estimate_traced(traced)
    shares = layer_shares(estimator, [(item.name, "", cost) for item, cost in zip(traced, costs, strict=True)])
    operators = tuple(
        OperatorShare(item.name, item.op, share.estimate, share.share)
        for item, share in zip(traced, shares, strict=True)
    )
    return Breakdown(estimator.total(costs), operators, features, uncounted, remarks)


def _of_onnx(estimator: Estimator, path: str | Path, example_inputs: Any, batch_size: int | None) -> Graph:
    if not (isinstance(estimator, MeasuringEstimator) or estimator.reads_onnx):
        raise InvalidValueError(f"{estimator!r} takes networks of torch, and no ONNX files such as {str(path)!r}.")
    return read_onnx(path, batch_size, example_inputs)


def estimate_selection(estimator: Estimator, plan: MeasurePlan, selection: Mapping[str, str]) -> Estimate:
    """Estimate a network of a plan with any estimator.

    Parameters
    ----------
    estimator : Estimator
        A layer-based estimator estimates every part; a network-based or measuring one gets the whole network, built on
        the fly.
    plan : MeasurePlan
        Plan of the space.
    selection : mapping of str to str
        ``{layer: choice}`` with every layer.

    Raises
    ------
    MissingEntryError
        If the estimator lacks the data for an estimate.
    MismatchError
        If the estimator is a table of another space, input size or batch size.
    """
    if isinstance(estimator, LayerEstimator) and not isinstance(estimator, MeasuringEstimator):
        return estimator.total(part for _, _, part in _estimated_parts(estimator, plan, selection))
    import torch

    return estimator.estimate(plan.network_of(selection)(), torch.zeros(plan.input_shape))


def estimate_layers(estimator: Estimator, plan: MeasurePlan, selection: Mapping[str, str]) -> list[LayerShare]:
    """Return the cost of every layer of a network of a plan; the costs add up to the total.

    Raises
    ------
    InvalidValueError
        If the estimator is not layer-based.
    """
    if not isinstance(estimator, LayerEstimator):
        raise InvalidValueError(f"{estimator!r} estimates whole networks and cannot be taken apart by layer.")
    return layer_shares(estimator, _estimated_parts(estimator, plan, selection))


def _estimated_parts(
    estimator: LayerEstimator, plan: MeasurePlan, selection: Mapping[str, str]
) -> list[tuple[str, str, Estimate]]:
    estimator.check_plan(plan)
    parts = []
    for layer in plan.layers:
        choice = selection[layer.name]
        op = layer.candidates[choice].op
        parts.append((layer.name, choice, estimator.estimate_choice(layer.name, choice, op)))
    return paired_parts(estimator, parts, {layer.name: list(layer.candidates) for layer in plan.layers})
