# SPDX-License-Identifier: Apache-2.0
"""`ModelAnalysis`: work, memory and cost of every block of a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nni_latency.analysis._partition import BlockOperators, count_params, split_into_blocks, split_onnx
from nni_latency.analysis._suggestions import BlockNumbers, suggest
from nni_latency.errors import InvalidValueError, check_ints, is_int
from nni_latency.estimators import ActsEstimator, Estimate, Estimator, LayerEstimator
from nni_latency.notebook import Drawn, bar_chart
from nni_latency.operators import (
    Features,
    InputShape,
    OpSpec,
    count_operators,
    initialised,
    precision_remarks,
    read_onnx,
    require_operators,
    trace,
)
from nni_latency.units import format_count, format_metric, format_percent, number_of


@dataclass(frozen=True)
class BlockAnalysis:
    """Work, memory and cost of a block. Immutable.

    Parameters
    ----------
    name, kind : str
        Qualified name and class of the module.
    features : Features
        Multiply-adds, FLOPs (two per multiply-add plus all others), ACTS, INP, and bytes read and written.
    params : int
        Parameters.
    latency : Estimate or None
        Latency of the block; None without an estimator, or with one for whole networks only.
    share : float
        Share of the network's latency; without an estimator, of its FLOPs.
    uncounted : tuple of str
        Kinds of operators not counted in the features.
    ops : tuple of OpSpec
        Operators in order.
    """

    name: str
    kind: str
    features: Features
    params: int
    latency: Estimate | None
    share: float
    uncounted: tuple[str, ...]
    ops: tuple[OpSpec, ...]

    @property
    def intensity(self) -> float:
        """FLOPs per byte read or written."""
        return self.features.flops / self.features.memory if self.features.memory else 0.0


class ModelAnalysis(Drawn):
    """A network decomposed into blocks. Immutable.

    Parameters
    ----------
    model : nn.Module, str or Path
        Any network, which is neither changed nor run on data; or an ONNX file, whose input shape is only needed if it
        is dynamic.
    input_shape : sequence of int
        Shape of the input without the batch, such as ``(3, 224, 224)``. For several inputs give `example_inputs`.
    batch_size : int, optional
        Inputs per run; by default 1, or the batch size of an ONNX file. A fixed size of a file is changed only if it is
        a batch, which reaches the outputs.
    estimator : Estimator, optional
        Estimator of the latency of blocks. Where its platform does not execute operators that no output depends on,
        they are left out.
    depth : int, optional
        Depth of the blocks in the module tree; by default natural blocks are chosen.
    example_inputs : Tensor, tuple or dict, optional
        Inputs, as an alternative to the shape.

    Attributes
    ----------
    blocks : tuple of BlockAnalysis
        Blocks in the order of execution.
    features : Features
        Of the whole network.
    params : int
        Parameters of the whole network, used or not.
    latency : Estimate or None
        Of the whole network.
    uncounted : tuple of str
        Kinds of operators not counted in the features.
    remarks : tuple of str
        Assumptions about the network.

    Raises
    ------
    InvalidValueError
        If the input does not match the network, the network has no operators, or a number is out of range.

    Examples
    --------
    >>> analysis = ModelAnalysis(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), (3, 8, 8), 1)
    >>> [(block.name, block.features.acts) for block in analysis.blocks]
    [('0', 288), ('1', 0)]
    """

    def __init__(
        self,
        model: nn.Module | str | Path,
        input_shape: Sequence[int] | None = None,
        batch_size: int | None = None,
        *,
        estimator: Estimator | None = None,
        depth: int | None = None,
        example_inputs: Any = None,
    ) -> None:
        self.batch_size = 1 if batch_size is None and isinstance(model, nn.Module) else batch_size
        self.estimator = estimator
        inputs = example_inputs
        if inputs is None and (input_shape is not None or isinstance(model, nn.Module)):
            inputs = _inputs(input_shape, batch_size, is_file=not isinstance(model, nn.Module))
        if isinstance(model, nn.Module):
            assumed: tuple[str, ...] = ()
            ready = initialised(model, inputs)
            graph = trace(ready, inputs, "graph")
            if isinstance(estimator, LayerEstimator) and not estimator.runs_unused:
                graph = graph.without_unused()
            parts = split_into_blocks(ready, graph, depth)
            self.latency = None if estimator is None else estimator.estimate(model, inputs)
            self.params = count_params(ready, set())
        else:
            graph = read_onnx(model, batch_size, inputs)
            assumed, parts = graph.remarks, split_onnx(graph)
            self.latency = _cost_in_place(estimator, parts) if isinstance(estimator, LayerEstimator) else None
            self.params = sum(part.params for part in parts)
        require_operators(parts, type(model).__name__ if isinstance(model, nn.Module) else str(model))
        self.remarks = assumed
        if estimator is not None:
            self.remarks += precision_remarks((op for part in parts for op in part.ops), estimator.platform.precision)
        counted = count_operators(op for part in parts for op in part.ops)
        self.features, self.uncounted = counted.features, counted.uncounted
        self.blocks = tuple(_analyse(parts, estimator, self.features))

    def __repr__(self) -> str:
        cost = f"{format_count(self.features.flops)} FLOPs"
        if self.latency is not None and self.estimator is not None:
            cost += f", {format_metric(self.latency.value, self.estimator.metric)} on {self.estimator.platform.id}"
        return f"ModelAnalysis({number_of(len(self.blocks), 'block')}, {format_count(self.params)} parameters, {cost})"

    def _repr_html_(self) -> str:
        return bar_chart(
            repr(self),
            [(f"{block.name} {block.kind}", block.share, format_percent(block.share)) for block in self.blocks],
        )

    @property
    def bottlenecks(self) -> list[BlockAnalysis]:
        """The blocks, most expensive first."""
        return sorted(self.blocks, key=lambda block: block.share, reverse=True)

    @property
    def suggestions(self) -> list[str]:
        """Suggested changes supported by the numbers, one sentence each."""
        flops, params = max(1, self.features.flops), max(1, self.params)
        numbers = [
            BlockNumbers(
                name=block.name,
                ops=block.ops,
                latency=None if block.latency is None else _cost(self.estimator, block.ops).value,
                share=block.share,
                flops_share=block.features.flops / flops,
                params_share=block.params / params,
                intensity=block.intensity,
            )
            for block in self.bottlenecks
        ]
        known = self.estimator is not None and all(block.latency is not None for block in self.blocks)
        return suggest(numbers, (lambda ops: _cost(self.estimator, ops).value) if known else None)


def _inputs(input_shape: Any, batch_size: int | None, *, is_file: bool) -> Any:
    sizes = list(input_shape) if isinstance(input_shape, (tuple, list)) else []
    if not sizes or not all(is_int(size, 1) for size in sizes):
        raise InvalidValueError(
            "The 'input_shape' must be whole numbers > 0 without the batch, such as (3, 224, 224). "
            f"Got {input_shape!r}."
        )
    if batch_size is not None:
        check_ints("a ModelAnalysis", {"batch_size": batch_size}, batch_size=1)
    shape = InputShape(tuple(sizes))
    return [shape] if is_file else torch.empty(shape.shape(batch_size or 1), device="meta")


def _analyse(parts: list[BlockOperators], estimator: Estimator | None, whole: Features) -> list[BlockAnalysis]:
    counted = [count_operators(part.ops) for part in parts]
    costed = isinstance(estimator, LayerEstimator)
    costs = [_cost_in_place(estimator, [part]) if costed else None for part in parts]
    total = sum(cost.value for cost in costs if cost is not None)
    shares = [
        cost.value / total if cost is not None and total else item.features.flops / max(1, whole.flops)
        for cost, item in zip(costs, counted, strict=True)
    ]
    return [
        BlockAnalysis(
            name=part.name,
            kind=part.kind,
            features=item.features,
            params=part.params,
            latency=cost,
            share=share,
            uncounted=item.uncounted,
            ops=part.ops,
        )
        for part, item, cost, share in zip(parts, counted, costs, shares, strict=True)
    ]


def _cost(estimator: Any, ops: Sequence[OpSpec], neighbours: Sequence[Sequence[str] | None] | None = None) -> Estimate:
    """Estimate the total cost of operators beside their neighbours, or in any place."""
    if isinstance(estimator, ActsEstimator):
        return estimator.estimate_block(ops)
    parts = [estimator.estimate_op(op) for op in ops]
    found: Estimate = estimator.total(
        parts if neighbours is None else estimator.beside_neighbours(parts, ops, neighbours)
    )
    return found


def _cost_in_place(estimator: Any, blocks: Sequence[BlockOperators]) -> Estimate:
    """Estimate the total cost of blocks of a network."""
    neighbours = [names for block in blocks for names in block.neighbours]
    return _cost(estimator, [op for block in blocks for op in block.ops], neighbours)
