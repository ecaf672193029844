"""`Graph`: every operator of a network, in order, with its true shapes and its sources; and its key."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from nni_latency.errors import LatencyWarning
from nni_latency.operators._op_spec import OpSpec

#: What counts as one operator: a leaf module, or a call of a torch function.
By = Literal["module", "graph"]

#: Operators whose inputs may change places.
_COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum", "eq"})


class TracingWarning(LatencyWarning):
    """Warns that a network could not be traced in the way asked for, and how it was traced instead."""


@dataclass(frozen=True)
class TracedOperator:
    """One operator of a forward pass.

    Parameters
    ----------
    name : str
        Where it is called: the name of its module in the tree; for a function, that of the module that calls it and
        the function.
    op : OpSpec
        What it computes.
    sources : tuple of int
        Numbers of the operators whose results it takes; none for the inputs of the network.
    last_call : int
        Number of its last call of a torch function, views and properties counted, or of its node in an ONNX file; -1 if
        it has none.
    details : tuple of (str, str), default=()
        All attributes that an ONNX file gives of it, as text, those included that do not decide what it costs.
    parameters : int or None, default=None
        Parameters that it takes and no operator before it takes; None where it is not known which are the same.
    """

    name: str
    op: OpSpec
    sources: tuple[int, ...] = ()
    last_call: int = -1
    details: tuple[tuple[str, str], ...] = ()
    parameters: int | None = None


@dataclass(frozen=True)
class Graph:
    """The operators of a network in order of execution, and which takes whose results.

    Parameters
    ----------
    operators : tuple of TracedOperator
        In order.
    n_calls : int
        Calls of torch functions in all, views and properties counted; or nodes of an ONNX file.
    outputs : tuple of tuple of int
        Shapes of what the network returns.
    inputs : tuple of tuple of int
        Shapes of what it takes.
    remarks : tuple of str
        What had to be assumed of the network to read it, such as how often a loop runs whose end depends on data.

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

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Pairs of operators, by number, of which the second takes what the first returned."""
        return tuple((source, number) for number, item in enumerate(self.operators) for source in item.sources)

    @cached_property
    def digest(self) -> str:
        """What identifies the network: its operators in order, and where each takes its inputs from."""
        lines = [f"{item.op.op_key}<{','.join(map(str, item.sources))}" for item in self.operators]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:24]


#: The same: what a forward pass leaves.
Trace = Graph


def graph_key(graph: Trace) -> str:
    """Return what identifies a network: equal for equal networks, however operators are named or ordered.

    Every operator is known by what it computes on which results, and by what becomes of its own result. Networks in
    which all operators are alike in both are taken to be equal; inputs of a sum or product may change places.

    Parameters
    ----------
    graph : Trace
        Operators in an order in which they can run, as `nni_latency.operators.trace` and `read_onnx` give them.

    Returns
    -------
    str
        32 hexadecimal digits.

    References
    ----------
    .. [1] N. Shervashidze et al., "Weisfeiler-Lehman Graph Kernels", JMLR 12 (2011), 2539-2561, from which the way of
       naming nodes by their neighbours comes.

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
    """Name every operator by what it computes and by those whose results it takes."""
    names: list[str] = []
    for item in operators:
        sources = [names[source] for source in item.sources]
        details = map("=".join, item.details)
        taken = sorted(sources) if _is_commutative(item) else sources
        names.append(_hashed([item.op.op_key, *details, "takes", *taken]))
    return names


def _from_results(operators: Sequence[TracedOperator], above: Sequence[str]) -> list[str]:
    """Name every operator by those that take its result, as which of their inputs, and so on to the end."""
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
