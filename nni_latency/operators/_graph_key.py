"""`graph_key`: what tells a network from others, however its operators are named or ordered."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from nni_latency.operators._trace import Trace, TracedOperator

#: Operators whose inputs may change places.
_COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum", "eq"})


def graph_key(graph: Trace) -> str:
    """Return what tells a network from others: equal for equal networks, however operators are named or ordered.

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
    """Name every operator by itself and by those whose results it takes."""
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
