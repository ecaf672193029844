"""`fuse`: the operators of a network, divided into the kernels that a runtime makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import TopologicalSorter

from nni_latency.operators._feature_table import work_of
from nni_latency.operators._fusion_rules import FusionRule, FusionRules, reads_whole
from nni_latency.operators._op_spec import OpSpec
from nni_latency.operators._trace import Trace, TracedOperator


def fuse(trace: Trace, rules: FusionRules) -> list[tuple[TracedOperator, ...]]:
    """Divide a network into kernels.

    Every operator is looked at in the order of execution. It joins the kernel of an operator whose result it takes, if
    a rule says so, that result is the last of its kernel, is taken whole, and nothing else reads it; a rule may allow
    the last (``shared``). Where it takes several results, such as an addition, the kernel that was computed last comes
    first, because all others are ready by then.

    Parameters
    ----------
    trace : Trace
        The network, see `nni_latency.operators.trace`.
    rules : FusionRules
        What the runtime fuses.

    Returns
    -------
    list of tuple of TracedOperator
        Every operator once, in the order of execution inside a kernel and over all of them.

    Examples
    --------
    >>> from nni_latency.operators import FusionRule
    >>> from nni_latency.platforms import Platform
    >>> ops = [OpSpec.of("sigmoid", [(1, 8)]), OpSpec.of("neg", [(1, 8)]), OpSpec.of("exp", [(1, 8)])]
    >>> rules = FusionRules(Platform("cpu"), (FusionRule(("sigmoid", "neg"), True),))
    >>> [[item.op.kind for item in kernel] for kernel in fuse(chained(ops), rules)]
    [['sigmoid', 'neg'], ['exp']]
    """
    return [tuple(trace.operators[number] for number in kernel) for kernel in divide(trace, rules)]


def divide(trace: Trace, rules: FusionRules) -> list[tuple[int, ...]]:
    """Divide a network into kernels, as `fuse` does; return the numbers of the operators of each."""
    division = _Division(trace, rules)
    for number in range(len(trace.operators)):
        division.place(number)
    return division.ordered()


def chained(ops: Sequence[OpSpec]) -> Trace:
    """Make a trace of operators of which each takes what the one before it returned.

    Parameters
    ----------
    ops : sequence of OpSpec
        In order.
    """
    operators = (TracedOperator("", op, (number - 1,) if number else ()) for number, op in enumerate(ops))
    return Trace(tuple(operators), len(ops))


class _Division:
    """Kernels while they are found: their operators, and what they end with once weights are folded."""

    def __init__(self, trace: Trace, rules: FusionRules) -> None:
        self._operators, self._rules = trace.operators, rules
        self._kernels: list[list[int]] = []
        self._ends: list[list[OpSpec]] = []
        self._kernel_of: dict[int, int] = {}
        self._readers: list[set[int]] = [set() for _ in trace.operators]
        for number, item in enumerate(trace.operators):
            for source in item.sources:
                self._readers[source].add(number)

    def place(self, number: int) -> None:
        """Put an operator into the kernel that takes it, or a new one."""
        op = self._operators[number].op
        for source in sorted(self._operators[number].sources, reverse=True):
            kernel = self._kernel_of[source]
            rule = self._rules.find(self._ends[kernel], op)
            if rule is not None and self._may_join(number, source, rule):
                self._kernels[kernel].append(number)
                self._kernel_of[number] = kernel
                if not rule.folds:
                    self._ends[kernel].append(op)
                return
        self._kernel_of[number] = len(self._kernels)
        self._kernels.append([number])
        self._ends.append([op])

    def ordered(self) -> list[tuple[int, ...]]:
        """Return the kernels so that each comes after those whose results it takes, and else as they were called."""
        inputs = {number: self._inputs(number) for number in range(len(self._kernels))}
        sorter, found = TopologicalSorter(inputs), []
        sorter.prepare()
        ready = list(sorter.get_ready())
        while ready:
            first = min(ready, key=lambda kernel: self._kernels[kernel][-1])
            ready.remove(first)
            found.append(tuple(self._kernels[first]))
            sorter.done(first)
            ready += sorter.get_ready()
        return found

    def _may_join(self, number: int, source: int, rule: FusionRule) -> bool:
        if not rule.fused or self._kernels[self._kernel_of[source]][-1] != source:
            return False
        if self._readers[source] != {number} and not rule.shared:
            return False
        whole = reads_whole(self._operators[number].op, work_of(self._operators[source].op)[0].outputs)
        return whole and not self._waits(number, self._kernel_of[source])

    def _waits(self, number: int, kernel: int) -> bool:
        """Whether an operator takes what can only be computed after a kernel, which it then cannot be part of."""
        asked = {self._kernel_of[source] for source in self._operators[number].sources} - {kernel}
        seen: set[int] = set()
        while asked:
            other = asked.pop()
            if other == kernel:
                return True
            seen.add(other)
            asked |= self._inputs(other) - seen
        return False

    def _inputs(self, kernel: int) -> set[int]:
        """Return the kernels whose results a kernel takes."""
        sources = (source for number in self._kernels[kernel] for source in self._operators[number].sources)
        return {self._kernel_of[source] for source in sources} - {kernel}
