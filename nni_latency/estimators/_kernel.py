# SPDX-License-Identifier: Apache-2.0
"""`KernelEstimator`: divides a network into the kernels of its runtime and sums their costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from nni_latency.errors import MismatchError, MissingEntryError
from nni_latency.estimators._base import Estimate, LayerEstimator
from nni_latency.operators import (
    FusionRules,
    Graph,
    OpSpec,
    Trace,
    TracedOperator,
    chained,
    divide,
    group_of,
    layout_changes,
    parts_of,
)
from nni_latency.platforms import Platform, check_same_platform
from nni_latency.units import combination_of

#: Groups of operators that a kernel applies to data in registers.
_JOINING = ("elementwise", "normalisation")


class KernelCosts(Protocol):
    """Interface of kernel costs: predictors or a table. Thread-safe."""

    @property
    def platform(self) -> Platform:
        """Platform of the costs."""

    @property
    def metric(self) -> str:
        """Metric of the costs."""

    def estimate_fused(self, ops: Sequence[OpSpec]) -> Estimate | None:
        """Return the cost of operators fused to one kernel; None if the kernel is unknown.

        Parameters
        ----------
        ops : sequence of OpSpec
            One or more operators in order.
        """


class KernelEstimator(LayerEstimator):
    """Sums the costs of the kernels of a network.

    A network is traced, its operators are divided by the fusion rules of the runtime (`nni_latency.operators.fuse`),
    and the cost of every kernel is predicted. For an unknown kernel, the longest known prefix counts, plus the
    additional reads of the other operators: adding a shortcut costs a third of an addition.

    Parameters
    ----------
    rules : FusionRules
        Fusion rules of the runtime.
    costs : KernelCosts
        Costs of kernels.
    fallback : LayerEstimator, optional
        Estimator of operators that are unknown to `costs` even as single kernels.
    constant : float, default=0.0
        Overhead of the runtime per run that is not part of the kernel costs, in the unit of the metric.

    Raises
    ------
    MismatchError
        If the rules and the costs are of different runtimes, or the fallback is of another platform or metric.

    Examples
    --------
    >>> import torch
    >>> from nni_latency.operators import FusionRule
    >>> class Costs:
    ...     platform, metric = Platform("cpu"), "latency"
    ...     def estimate_fused(self, ops):
    ...         return Estimate(0.5, 0.4, 0.6)
    >>> rules = FusionRules(Platform("cpu"), (FusionRule(("linear", "relu"), True),))
    >>> network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2))
    >>> KernelEstimator(rules, Costs()).estimate(network, torch.zeros(1, 3)).value
    1.0
    """

    by = "graph"

    def __init__(
        self,
        rules: FusionRules,
        costs: KernelCosts,
        *,
        fallback: LayerEstimator | None = None,
        constant: float = 0.0,
    ) -> None:
        rules.check_runtime(costs.platform)
        if fallback is not None:
            check_same_platform(costs.platform, fallback.platform, "A fallback for kernels")
            if fallback.metric != costs.metric:
                raise MismatchError(f"An estimator of {fallback.metric} cannot stand in for one of {costs.metric}.")
        self.rules, self.costs, self.fallback, self.constant = rules, costs, fallback, constant
        self.platform, self.metric = costs.platform, costs.metric

    def estimate(self, model: Any, example_inputs: Any = None) -> Estimate:
        """Divide a network, its `nni_latency.operators.Graph` or an ONNX file into kernels, and sum their costs."""
        if isinstance(model, Graph):
            graph = model if self.runs_unused else model.without_unused()
            return self.total(self._estimate_traced(graph.operators))
        return super().estimate(model, example_inputs)

    def estimate_op(self, op: OpSpec) -> Estimate:
        """Estimate an operator or a block, whose operators run in sequence and are divided into kernels.

        Raises
        ------
        MissingEntryError
            If an operator is unknown.
        """
        return self._together(self._estimate_traced(chained(parts_of(op)).operators))

    def _estimate_traced(self, traced: Sequence[TracedOperator]) -> list[Estimate]:
        """Assign the cost of every kernel to its first operator; the others cost nothing."""
        nothing = combination_of(self.metric).nothing
        found = [Estimate(nothing, nothing, nothing)] * len(traced)
        kernels = divide(Trace(tuple(traced), len(traced)), self.rules)
        changes = layout_changes(traced, kernels, self.rules)
        for kernel in kernels:
            cost = self._kernel([traced[number].op for number in kernel])
            found[kernel[0]] = self._with_changes(cost, changes.get(kernel[0], ()))
        return found

    def _with_changes(self, cost: Estimate, shapes: Sequence[tuple[int, ...]]) -> Estimate:
        """Add the cost of layout conversions of tensors, each as that of an activation, which copies them."""
        copies = [self.costs.estimate_fused([OpSpec.of("relu", [shape])]) for shape in shapes]
        known = [copy for copy in copies if copy is not None]
        return self._together([cost, *known]) if known else cost

    def _kernel(self, ops: Sequence[OpSpec]) -> Estimate:
        """Return the cost of operators of one kernel: of the longest known prefix, plus the rest."""
        known = ((end, self.costs.estimate_fused(ops[:end])) for end in range(len(ops), 0, -1))
        end, first = next(((end, cost) for end, cost in known if cost is not None), (1, None))
        if len(ops) == 1:
            return self._alone(ops[0]) if first is None else first
        return self._together([self._kernel(ops[:1]) if first is None else first, *map(self._joining, ops[end:])])

    def _joining(self, op: OpSpec) -> Estimate:
        """Return the additional cost of an operator in a kernel: its other reads, or its full cost.

        Normalisation and activation find their input in registers. An addition reads its other input, a share of its
        traffic as a single kernel.
        """
        if group_of(op) not in _JOINING:
            return self._kernel([op])
        numbers = [math.prod(shape) for shape in op.input_shapes]
        besides = sum(numbers) - max(numbers, default=0)
        if op.kind == "batch_norm" or not besides:
            nothing = combination_of(self.metric).nothing
            return Estimate(nothing, nothing, nothing)
        share = besides / (sum(numbers) + max(numbers))
        return self._kernel([op]).mapped(lambda value: share * value)

    def _together(self, parts: Sequence[Estimate]) -> Estimate:
        """Return the cost of parts of a network, without the overhead of a run."""
        combination = combination_of(self.metric)
        return combination.whole(combination.total_cost(Estimate, map(combination.counted, parts)))

    def _alone(self, op: OpSpec) -> Estimate:
        if self.fallback is None:
            raise MissingEntryError(
                f"Nothing is known of the operator {op.op_key} on {self.platform.id}. Measure kernels of its kind, or "
                "give a 'fallback', such as a table of operators."
            )
        found = self.fallback.estimate_op(op)
        return Estimate.of(found, (op.op_key, *found.missing))
