"""The cost of a network and of each of its operators or layers, by any estimator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nni_latency.errors import InvalidValueError
from nni_latency.estimators._base import Estimate, Estimator, LayerEstimator, LayerShare, layer_shares
from nni_latency.estimators._measuring import MeasuringEstimator
from nni_latency.operators import (
    By,
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
    """What one operator of a network costs.

    Parameters
    ----------
    name : str
        Where it is called.
    op : OpSpec
        What it computes.
    estimate : Estimate
        Its cost, so that all add up to the network's.
    share : float
        Of the network's cost.
    """

    name: str
    op: OpSpec
    estimate: Estimate
    share: float


@dataclass(frozen=True)
class Breakdown:
    """The cost of a network and of each of its operators.

    Parameters
    ----------
    total : Estimate
        Of the network.
    operators : tuple of OperatorShare
        In order of execution; none where the estimator knows whole networks alone.
    features : Features
        Counts over all operators.
    uncounted : tuple of str
        Kinds of operators of which `features` has what their shapes say alone: elements and bytes.
    remarks : tuple of str
        What had to be assumed of the network.
    """

    total: Estimate
    operators: tuple[OperatorShare, ...]
    features: Features
    uncounted: tuple[str, ...]
    remarks: tuple[str, ...] = ()

    @property
    def costliest(self) -> list[OperatorShare]:
        """The operators, the costliest first."""
        return sorted(self.operators, key=lambda item: item.share, reverse=True)


def break_down(
    estimator: Estimator, model: Any, example_inputs: Any = None, *, batch_size: int | None = None
) -> Breakdown:
    """Estimate a network, operator by operator where the estimator can.

    Parameters
    ----------
    estimator : Estimator
        Any; one that measures on demand does so.
    model : nn.Module, str or Path
        Any network; or an ONNX file, for estimators that know operators or measure.
    example_inputs : Tensor, tuple or dict
        As for `nni_latency.operators.trace`; for an ONNX file only where it leaves the sizes of its inputs open.
    batch_size : int, optional
        Inputs of a run of an ONNX file.

    Raises
    ------
    InvalidValueError
        If model and inputs do not fit each other, or nothing in the model takes time.
    MissingEntryError
        If the estimator knows too little to answer.
    MeasurementError
        If it measures, and the network cannot be run.

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
    by: By = estimator.by if isinstance(estimator, LayerEstimator) else "module"
    if isinstance(model, (str, Path)):
        if isinstance(estimator, MeasuringEstimator) or estimator.reads_onnx:
            example_inputs = list(onnx_inputs(model, batch_size, example_inputs).args)
        graph = _of_onnx(estimator, model, example_inputs, batch_size)
    else:
        graph = trace(model, example_inputs, by)
    traced = graph.operators
    require_operators(traced, str(model) if isinstance(model, (str, Path)) else type(model).__name__)
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
    if not (isinstance(estimator, (MeasuringEstimator, LayerEstimator)) or estimator.reads_onnx):
        raise InvalidValueError(f"{estimator!r} takes networks of torch, and no ONNX files such as {str(path)!r}.")
    return read_onnx(path, batch_size, example_inputs)


def estimate_selection(estimator: Estimator, plan: MeasurePlan, selection: Mapping[str, str]) -> Estimate:
    """Estimate a network of a plan, with any estimator.

    Parameters
    ----------
    estimator : Estimator
        A layer-based one is asked for every part; one that is network-based, or measures on demand, gets the whole
        network, made on the spot.
    plan : MeasurePlan
        The space.
    selection : mapping of str to str
        ``{layer: choice}`` with every layer.

    Raises
    ------
    MissingEntryError
        If the estimator knows too little to answer.
    MismatchError
        If it is a table of another space, input size or batch size.
    """
    if isinstance(estimator, LayerEstimator) and not isinstance(estimator, MeasuringEstimator):
        return estimator.total(part for _, _, part in _estimated_parts(estimator, plan, selection))
    import torch

    return estimator.estimate(plan.network_of(selection)(), torch.zeros(plan.input_shape))


def estimate_layers(estimator: Estimator, plan: MeasurePlan, selection: Mapping[str, str]) -> list[LayerShare]:
    """List what every layer of a network of a plan costs, so that they add up to the whole.

    Raises
    ------
    InvalidValueError
        If the estimator cannot be taken apart by layer.
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
    return parts
