# SPDX-License-Identifier: Apache-2.0
"""`Graph`: the operators of a network in order, with shapes and sources; and its key."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from nni_latency.errors import LatencyWarning
from nni_latency.operators._neighbours import neighbours_of
from nni_latency.operators._op_spec import OpSpec

#: Granularity of operators: leaf modules, or calls of torch functions.
By = Literal["module", "graph"]

#: Stands for the output of a network among the readers of a result.
OUTSIDE = -1

#: Commutative operators.
_COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum", "eq"})


class TracingWarning(LatencyWarning):
    """Warns that a network could not be traced as requested, and how it was traced instead."""


@dataclass(frozen=True)
class TracedOperator:
    """One operator of a forward pass.

    Parameters
    ----------
    name : str
        Qualified name of the module; for a function, that of the calling module and the function.
    op : OpSpec
        Description of the operator.
    sources : tuple of int
        Indices of the operators whose results it takes; inputs of the network are not listed.
    last_call : int
        Index of its last call of a torch function, counting views and properties, or of its node in an ONNX file; -1 if
        it has none.
    details : tuple of (str, str), default=()
        All attributes in the ONNX file as text, including those that do not affect the cost.
    parameters : int or None, default=None
        Number of parameters not used by earlier operators; None if shared parameters are unknown.
    reads : tuple of int, default=()
        Index of the operator behind each tensor that it takes, where one is behind several; otherwise `sources`.
    """

    name: str
    op: OpSpec
    sources: tuple[int, ...] = ()
    last_call: int = -1
    details: tuple[tuple[str, str], ...] = ()
    parameters: int | None = None
    reads: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.reads:
            object.__setattr__(self, "reads", self.sources)


@dataclass(frozen=True)
class Graph:
    """Operators of a network in order of execution, and their data flow.

    Parameters
    ----------
    operators : tuple of TracedOperator
        Operators in order.
    n_calls : int
        Total number of calls of torch functions, counting views and properties, or of nodes of an ONNX file.
    outputs : tuple of tuple of int
        Shapes of the outputs.
    inputs : tuple of tuple of int
        Shapes of the inputs.
    remarks : tuple of str
        Assumptions made to read the network, such as the iterations of a data-dependent loop.
    returned : tuple of int or None, default=None
        Indices of the operators whose results are the outputs, or may be; None if they are unknown.

    Examples
    --------
    >>> relu = OpSpec.of("relu", [(1, 8)])
    >>> Graph((TracedOperator("a", relu), TracedOperator("b", relu, (0,))), 2, ((1, 8),)).edges
    ((0, 1),)
    """

    operators: tuple[TracedOperator, ...]
    n_calls: int
    outputs: tuple[tuple[int, ...], ...] = ()
    inputs: tuple[tuple[int, ...], ...] = ()
    remarks: tuple[str, ...] = ()
    returned: tuple[int, ...] | None = None

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Pairs of operator indices: source and consumer."""
        return tuple((source, number) for number, item in enumerate(self.operators) for source in item.sources)

    @cached_property
    def readers(self) -> list[set[int]]:
        """Indices of the operators that take each result; -1 stands for the output of the network.

        Examples
        --------
        >>> relu = OpSpec.of("relu", [(1, 8)])
        >>> Graph((TracedOperator("a", relu), TracedOperator("b", relu, (0,))), 2, returned=(1,)).readers
        [{1}, {-1}]
        """
        found: list[set[int]] = [set() for _ in self.operators]
        for source, number in self.edges:
            found[source].add(number)
        for number in self.returned or ():
            found[number].add(OUTSIDE)
        return found

    def without_unused(self) -> Graph:
        """Return the graph without operators that no output depends on.

        Eager torch runs them. An export to ONNX and a compiler remove them.

        Examples
        --------
        >>> relu = OpSpec.of("relu", [(1, 8)])
        >>> graph = Graph((TracedOperator("a", relu), TracedOperator("unused", relu, (0,))), 2, returned=(0,))
        >>> [item.name for item in graph.without_unused().operators]
        ['a']
        """
        if self.returned is None:
            return self
        used, left = set(self.returned), list(self.returned)
        while left:
            new = set(self.operators[left.pop()].sources) - used
            used |= new
            left += new
        if len(used) == len(self.operators):
            return self
        numbers = {number: place for place, number in enumerate(sorted(used))}

        def renumbered(item: TracedOperator) -> TracedOperator:
            sources, reads = (tuple(numbers[source] for source in some) for some in (item.sources, item.reads))
            return replace(item, sources=sources, reads=reads)

        operators = tuple(renumbered(self.operators[number]) for number in numbers)
        return replace(self, operators=operators, returned=tuple(numbers[number] for number in self.returned))

    @cached_property
    def neighbours(self) -> list[tuple[str, ...]]:
        """Neighbours of every operator, see `neighbours_of`."""
        return neighbours_of([item.op for item in self.operators], [item.reads for item in self.operators])

    @cached_property
    def digest(self) -> str:
        """Identifier of the network: its operators in order and their sources."""
        lines = [f"{item.op.op_key}<{','.join(map(str, item.sources))}" for item in self.operators]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:24]


#: Alias: the graph recorded from a forward pass.
Trace = Graph


def graph_key(graph: Trace) -> str:
    """Return the identifier of a network, independent of the names and the order of its operators.

    Every operator is labelled by its computation and its sources, and by the use of its result. Networks with the same
    labels are considered equal; the inputs of a sum or product are unordered.

    Parameters
    ----------
    graph : Trace
        Operators in topological order, as returned by `nni_latency.operators.trace` and `read_onnx`.

    Returns
    -------
    str
        32 hexadecimal digits.

    References
    ----------
    .. [1] N. Shervashidze et al., "Weisfeiler-Lehman Graph Kernels", JMLR 12 (2011), 2539-2561, the
       source of labelling nodes by their neighbours.

    Examples
    --------
    >>> from nni_latency.operators import OpSpec
    >>> relu, exp, add = (OpSpec.of(kind, [(1, 8)]) for kind in ("relu", "exp", "add"))
    >>> one = Trace((TracedOperator("a", relu), TracedOperator("b", exp), TracedOperator("c", add, (0, 1))), 3)
    >>> other = Trace((TracedOperator("x", exp), TracedOperator("y", relu), TracedOperator("z", add, (0, 1))), 3)
    >>> graph_key(one) == graph_key(other)
    True
    """
    operators = graph.operators
    above = _from_inputs(operators)
    below = _from_results(operators, above)
    outputs = sorted("x".join(map(str, shape)) for shape in graph.outputs)
    return _hashed([*sorted(map("".join, zip(above, below, strict=True))), "outputs", *outputs])[:32]


def _from_inputs(operators: Sequence[TracedOperator]) -> list[str]:
    """Label every operator by its computation and its sources."""
    names: list[str] = []
    for item in operators:
        sources = [names[source] for source in item.sources]
        details = map("=".join, item.details)
        taken = sorted(sources) if _is_commutative(item) else sources
        names.append(_hashed([item.op.op_key, *details, "takes", *taken]))
    return names


def _from_results(operators: Sequence[TracedOperator], above: Sequence[str]) -> list[str]:
    """Label every operator by its consumers and the input positions, recursively."""
    takers: list[list[tuple[int, int]]] = [[] for _ in operators]
    for number, item in enumerate(operators):
        for place, source in enumerate(item.sources):
            takers[source].append((number, 0 if _is_commutative(item) else place))
    names = [""] * len(operators)
    for number in reversed(range(len(operators))):
        taken = sorted(f"{above[taker]}{names[taker]}{place}" for taker, place in takers[number])
        names[number] = _hashed([above[number], *taken])
    return names


def _is_commutative(item: TracedOperator) -> bool:
    return item.op.kind in _COMMUTATIVE


def _hashed(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()
