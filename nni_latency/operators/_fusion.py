# SPDX-License-Identifier: Apache-2.0
"""Fusion: rules for which operators a runtime runs as one kernel, and division of a network by these rules."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import TopologicalSorter
from typing import Annotated

from pydantic import Field, FiniteFloat, NonNegativeFloat

from nni_latency.errors import InvalidValueError, MismatchError
from nni_latency.operators._feature_table import work_of
from nni_latency.operators._graph import Trace, TracedOperator
from nni_latency.operators._op_spec import OpSpec, family_of
from nni_latency.platforms import RUNTIME_FACT, Platform

#: Equivalent kinds, under whose names rules are also looked up.
_SAME = {
    **dict.fromkeys(("hardtanh", "clamp"), "relu6"),
    **dict.fromkeys(("concat", "concatenate"), "cat"),
    "multiply": "mul",
    "global_average_pool": "adaptive_avg_pool2d",
}

#: Kinds whose inputs may differ in size without broadcasting.
_JOINING = frozenset(("cat", "concat", "concatenate", "stack", "matmul", "bmm"))


@dataclass(frozen=True)
class FusionTimes:
    """Latencies of two neighbours, separately and together. Immutable.

    Parameters
    ----------
    before, last, together : float
        Latency of the operators before the last one, of the last one, and of all in one network, without the constant
        overhead of the runtime [s].
    margin : float, default=0.0
        Uncertainty of `share`, from the intervals of the latencies.
    """

    before: Annotated[FiniteFloat, Field(description="T1: the operators before the last one [s]")]
    last: Annotated[FiniteFloat, Field(description="T2: the last one [s]")]
    together: Annotated[FiniteFloat, Field(description="T12: all of them in one network [s]")]
    margin: Annotated[
        NonNegativeFloat, Field(description="error of the saving (T1 + T2 - T12) / min(T1, T2), as a share")
    ] = 0.0

    @property
    def share(self) -> float:
        """Saving of running together, as a share of the shorter latency; 0 if that is too short to measure."""
        shorter = min(self.before, self.last)
        return (self.before + self.last - self.together) / shorter if shorter > 0 else 0.0

    @property
    def clear(self) -> bool:
        """Whether the share including its margin lies on one side of 0.5.

        Above 0.5, the margin must also be at most 0.5: with many repeated tests, an outlier would otherwise count as a
        saving.
        """
        above = self.share - self.margin > 0.5 and self.margin <= 0.5
        return above or self.share + self.margin < 0.5


@dataclass(frozen=True)
class FusionRule:
    """Rule for whether an operator is fused with the operators before it. Immutable.

    Parameters
    ----------
    kinds : tuple of str
        Two or more kinds or families (`family_of`) of consecutive operators: the rule applies to the last one, if the
        kernel ends with the others.
    fused : bool
        Whether the last operator joins the kernel.
    shared : bool, default=False
        Whether it also joins if the result before it has other readers, or is an output of the network.
    folds : bool, default=False
        Whether the last operator is folded into the weights of those before it, like batch normalisation; the next
        operator is then treated as if it were absent.
    times : FusionTimes, optional
        Measured latencies.
    source : str, default=""
        Other source of the rule, such as the runtime's own model.

    Examples
    --------
    >>> FusionRule(("conv2d", "relu"), True, times=FusionTimes(4e-4, 1e-4, 4e-4)).name
    'conv2d + relu'
    """

    kinds: Annotated[tuple[str, ...], Field(description="kinds or families of operators that follow each other")]
    fused: Annotated[bool, Field(description="whether the last one runs in the kernel of those before it")]
    shared: Annotated[bool, Field(description="whether it does although the result before it is read elsewhere")] = (
        False
    )
    folds: Annotated[bool, Field(description="whether it becomes part of the weights of those before it")] = False
    times: Annotated[FusionTimes | None, Field(description="what was measured")] = None
    source: Annotated[str, Field(description="how else it is known")] = ""

    def __post_init__(self) -> None:
        if len(self.kinds) < 2 or not all(self.kinds):
            raise InvalidValueError(
                "A fusion rule must name two kinds of operators or more, such as conv2d and relu. "
                f"Got {list(self.kinds)!r}."
            )

    @property
    def name(self) -> str:
        """The kinds in readable form."""
        return " + ".join(self.kinds)


@dataclass(frozen=True, repr=False)
class FusionRules:
    """Fusion rules of a runtime. Immutable.

    Parameters
    ----------
    platform : Platform
        Platform of the measurements; the rules apply to its runtime and version.
    rules : tuple of FusionRule, default=()
        One rule per known sequence of kinds.
    constant : float, default=0.0
        Constant overhead of the runtime per run of a network [s].
    failures : mapping of str to str, optional
        Sequences of kinds that could not be tested, with the reason.
    campaign : str, optional
        Measuring campaign in the database from which the rules are derived.
    plain : tuple of str, default=()
        Kinds of operators that do not support the memory layout of convolutions: their input is converted from it, and
        their result back to it.
    blocks : mapping of str to int, optional
        Kinds that support that layout only if the channels of all inputs are multiples of this block size.

    Raises
    ------
    InvalidValueError
        If two rules have the same kinds.

    Examples
    --------
    >>> rules = FusionRules(Platform("cpu"), (FusionRule(("conv2d", "relu"), True),))
    >>> conv = OpSpec.of("conv2d", [(1, 3, 8, 8)], out_channels=4, kernel_size=1, stride=1, groups=1, bias=True)
    >>> rules.find([conv], OpSpec.of("relu", [(1, 4, 8, 8)])).fused
    True
    """

    platform: Platform
    rules: tuple[FusionRule, ...] = ()
    constant: float = 0.0
    failures: Mapping[str, str] = field(default_factory=dict)
    campaign: str | None = None
    plain: tuple[str, ...] = ()
    blocks: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self._by_kinds) != len(self.rules):
            twice = next(rule.name for rule in self.rules if self._by_kinds[rule.kinds] is not rule)
            raise InvalidValueError(f"There must be one fusion rule for a sequence of kinds. Got two for {twice}.")

    def __repr__(self) -> str:
        return f"FusionRules({self.platform.id}, {len(self.fused)} of {len(self.rules)} fused)"

    @property
    def runtime(self) -> str:
        """Name of the runtime."""
        return self.platform.runtime

    @property
    def fused(self) -> tuple[FusionRule, ...]:
        """The rules under which operators are fused."""
        return tuple(rule for rule in self.rules if rule.fused)

    @property
    def unclear(self) -> tuple[FusionRule, ...]:
        """The measured rules with inconclusive latencies."""
        return tuple(rule for rule in self.rules if rule.times is not None and not rule.times.clear)

    @cached_property
    def _by_kinds(self) -> dict[tuple[str, ...], FusionRule]:
        return {rule.kinds: rule for rule in self.rules}

    @cached_property
    def _longest(self) -> int:
        return max((len(rule.kinds) for rule in self.rules), default=0)

    def find(self, before: Sequence[OpSpec], last: OpSpec) -> FusionRule | None:
        """Return the rule for an operator after others: the longest match, families before kinds.

        Parameters
        ----------
        before : sequence of OpSpec
            Last operators of the kernel, without those folded into weights.
        last : OpSpec
            The operator that may join the kernel.
        """
        for length in range(min(len(before), self._longest - 1), 0, -1):
            names = [_names(op) for op in (*before[-length:], last)]
            for kinds in itertools.product(*names):
                if kinds in self._by_kinds:
                    return self._by_kinds[kinds]
        return None

    def layout_of(self, ops: Sequence[OpSpec], before: bool | None) -> bool | None:
        """Return whether the operators of a kernel use the memory layout of convolutions.

        Parameters
        ----------
        ops : sequence of OpSpec
            Operators of the kernel.
        before : bool or None
            Whether its input is in that layout; None if unknown.

        Returns
        -------
        bool or None
            The layout of the input if the operators support any.
        """
        if any(map(self._is_plain, ops)):
            return False
        return True if ops[0].kind.startswith("conv2d") else before

    def _is_plain(self, op: OpSpec) -> bool:
        names = _names(op)
        if not set(names).isdisjoint(self.plain):
            return True
        block = max((self.blocks.get(name, 1) for name in names), default=1)
        return any(shape[1] % block for shape in op.input_shapes if len(shape) > 1)

    def check_runtime(self, platform: Platform) -> None:
        """Raise `MismatchError` if the rules belong to another runtime, precision or version than a platform.

        Parameters
        ----------
        platform : Platform
            Platform for which networks are divided into kernels; its device may differ.
        """
        mine, asked = _runtime_of(self.platform), _runtime_of(platform)
        if any(one and other and one != other for one, other in zip(mine, asked, strict=True)):
            raise MismatchError(
                f"The fusion rules are those of the runtime {_written(mine)}, not of {_written(asked)}: "
                "another runtime makes other kernels. Find out its own with: nni-latency learn kernels --fusion all"
            )


def _runtime_of(platform: Platform) -> tuple[str, str, str]:
    """Return name, precision and version of a runtime; the version is empty if unknown."""
    facts = platform.facts
    return platform.runtime, platform.precision, str(facts.get(f"{RUNTIME_FACT}version", facts.get("torch", "")))


def _written(runtime: tuple[str, str, str]) -> str:
    name, precision, version = runtime
    return f"{name} {version} in {precision}" if version else f"{name} in {precision}"


def _names(op: OpSpec) -> tuple[str, ...]:
    """Return all names of an operator in rules, most specific first."""
    return tuple(dict.fromkeys((family_of(op), op.kind, _SAME.get(op.kind, op.kind))))


def reads_whole(op: OpSpec, numbers: int) -> bool:
    """Whether an operator may read a result of this size unchanged: neither a part of it, nor broadcast."""
    sizes = [math.prod(shape) for shape in op.input_shapes]
    return numbers in sizes and (op.kind in _JOINING or numbers == max(sizes))


def fuse(trace: Trace, rules: FusionRules) -> list[tuple[TracedOperator, ...]]:
    """Divide a network into kernels.

    Operators are processed in the order of execution. An operator joins the kernel of a source if a rule fuses them,
    the source is the last of its kernel, its result is taken whole, no other operator takes it, and the network does
    not return it, unless the rule is ``shared``. With several sources, such as for an addition, the kernel computed
    last is tried first, because all others are ready by then.

    Parameters
    ----------
    trace : Trace
        The network, see `nni_latency.operators.trace`.
    rules : FusionRules
        Rules of the runtime.

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
    """Divide a network into kernels like `fuse`; return the indices of the operators of each kernel."""
    division = _Division(trace, rules)
    for number in range(len(trace.operators)):
        division.place(number)
    return division.ordered()


def chained(ops: Sequence[OpSpec]) -> Trace:
    """Return a trace of a chain of operators.

    Parameters
    ----------
    ops : sequence of OpSpec
        Operators in order.
    """
    operators = (TracedOperator("", op, (number - 1,) if number else ()) for number, op in enumerate(ops))
    return Trace(tuple(operators), len(ops))


class _Division:
    """Kernels under construction: their operators, and their last operators after folding."""

    def __init__(self, trace: Trace, rules: FusionRules) -> None:
        self._operators, self._rules = trace.operators, rules
        self._kernels: list[list[int]] = []
        self._ends: list[list[OpSpec]] = []
        self._kernel_of: dict[int, int] = {}
        self._readers = trace.readers

    def place(self, number: int) -> None:
        """Add an operator to a kernel that it can join, or to a new one."""
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
        """Return the kernels in topological order, ties in the order of calls."""
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
        """Whether an operator depends on results computed after a kernel, which it therefore cannot join."""
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
        """Return the source kernels of a kernel."""
        sources = (source for number in self._kernels[kernel] for source in self._operators[number].sources)
        return {self._kernel_of[source] for source in sources} - {kernel}


def layout_changes(
    traced: Sequence[TracedOperator], kernels: Sequence[tuple[int, ...]], rules: FusionRules
) -> dict[int, list[tuple[int, ...]]]:
    """Return which results a runtime converts to another memory layout, once per target layout.

    Parameters
    ----------
    traced : sequence of TracedOperator
        Operators of a network.
    kernels : sequence of tuple of int
        Indices of the operators of every kernel, in the order of execution.
    rules : FusionRules
        Define the layouts that operators support.

    Returns
    -------
    dict of int to list of tuple of int
        Shapes of converted results, by the first operator of the reading kernel.
    """
    layouts: dict[int, bool | None] = {}
    found: dict[int, list[tuple[int, ...]]] = {}
    done: set[tuple[int, bool]] = set()
    for kernel in kernels:
        taken = [
            (source, shape)
            for number in kernel
            for source, shape in zip(traced[number].sources, traced[number].op.input_shapes, strict=False)
            if source not in kernel
        ]
        layout = rules.layout_of([traced[number].op for number in kernel], _shared([layouts[at] for at, _ in taken]))
        layouts |= dict.fromkeys(kernel, layout)
        for source, shape in taken:
            if None not in (layouts[source], layout) and layouts[source] is not layout and (source, layout) not in done:
                done.add((source, bool(layout)))
                found.setdefault(kernel[0], []).append(shape)
    return found


def _shared(layouts: Sequence[bool | None]) -> bool | None:
    """Return the common layout of several inputs: plain unless all are in the layout of convolutions."""
    if False in layouts:
        return False
    return True if True in layouts else None
