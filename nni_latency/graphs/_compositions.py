# SPDX-License-Identifier: Apache-2.0
"""Functions that files write out as several operators and that runtimes compute as one, such as GELU.

The forms are those that ONNX Runtime and OpenVINO both recognise; others are left as they are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nni_latency.graphs._memory_order import dims_of
from nni_latency.graphs._operator_features import MERGED
from nni_latency.operators import OUTSIDE, Graph, OpSpec, TracedOperator

#: Operators that may be inside of a function, and those that may be its last.
_INNER = frozenset(("add", "mul", "div", "pow", "sqrt", "erf", "tanh", "sigmoid", "mean"))
_JOINING = frozenset(("add", "sub", "mul", "div"))

#: Most operators on a path through a function.
_LONGEST = 8

#: Functions by the kinds of their operators, up to the one that joins the paths from what they read.
_FORMS = {
    name: Counter(kinds.split())
    for name, kinds in {
        "silu": "sigmoid mul",
        "gelu": "div erf add mul",
        "gelu halved first": "div erf add mul mul",
        "gelu by tanh": "pow mul add mul tanh add mul mul",
        "layer_norm": "mean sub pow mean add sqrt div",
        "rms_norm": "pow mean add sqrt div",
        "rms_norm by reciprocal": "pow mean add sqrt div mul",
    }.items()
}

#: Operators with a constant that follow, and belong to the function.
_ENDS = {
    "gelu": ("mul",),
    "layer_norm": ("mul", "add"),
    **dict.fromkeys(("rms_norm", "rms_norm by reciprocal"), ("mul",)),
}


@dataclass(frozen=True)
class _Region:
    """Operators that together read one result, and of which others read the last alone."""

    source: int
    members: frozenset[int]


@dataclass(frozen=True)
class _Function:
    """A function that is written out: its last operator, what it computes, all operators, and what it reads."""

    last: int
    op: OpSpec
    members: frozenset[int]
    source: int


def compose(graph: Graph) -> tuple[list[TracedOperator], list[int]]:
    """Replace the operators of which functions consist: the last one by the function, the others by merged ones.

    Returns
    -------
    operators : list of TracedOperator
        As many as before.
    owners : list of int
        For every operator, the index of the one whose cost includes it: itself, or the function.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from nni_latency.operators import chained
    >>> relu, sigmoid, product = (OpSpec.of(kind, [(1, 8)]) for kind in ("relu", "sigmoid", "mul"))
    >>> three = chained([relu, sigmoid, product]).operators
    >>> graph = Graph((*three[:2], replace(three[2], sources=(0, 1))), 3)
    >>> operators, owners = compose(graph)
    >>> [item.op.kind for item in operators], operators[2].sources, owners
    (['relu', 'merged', 'silu'], (0,), [0, 2, 2])
    """
    operators, owners = list(graph.operators), list(range(len(graph.operators)))
    for function in _functions(graph):
        for member in function.members:
            operators[member] = TracedOperator(operators[member].name, OpSpec.of(MERGED, []))
            owners[member] = function.last
        operators[function.last] = TracedOperator(operators[function.last].name, function.op, (function.source,))
    return operators, owners


def _functions(graph: Graph) -> Iterator[_Function]:
    """Return the functions that are written out in a network."""
    readers = graph.readers
    regions: dict[int, _Region] = {}
    for number in range(len(graph.operators)):
        region = _region(number, graph.operators, readers, regions)
        if region is None:
            continue
        regions[number] = region
        members = [graph.operators[member].op for member in sorted(region.members)]
        form = _form(members)
        if form and not _is_scaled_late(number, region, graph.operators):
            chain = _chain(number, _ENDS.get(form, ()), graph.operators, readers)
            op = _described(form.split()[0], members)
            yield _Function(chain[-1], op, region.members | set(chain), region.source)


def _is_scaled_late(number: int, region: _Region, operators: Sequence[TracedOperator]) -> bool:
    """Whether x multiplies half of 1 + erf(x / sqrt(2)), as newer exports of torch write GELU.

    ONNX Runtime recognises GELU only if half of x is multiplied, or the product halved.
    """
    halves = [operators[source] for source in operators[number].sources if operators[source].op.kind == "mul"]
    sources = {source for half in halves for source in half.sources} & region.members
    return any(operators[source].op.kind == "add" for source in sources)


def _chain(
    number: int, kinds: Sequence[str], operators: Sequence[TracedOperator], readers: Sequence[set[int]]
) -> list[int]:
    """Return an operator and those of the given kinds that follow it, each with constants alone."""
    chain = [number]
    for kind in kinds:
        after = next(iter(readers[chain[-1]])) if len(readers[chain[-1]]) == 1 else OUTSIDE
        if after == OUTSIDE or operators[after].op.kind != kind or len(operators[after].sources) != 1:
            break
        chain.append(after)
    return chain


def _region(
    number: int, operators: Sequence[TracedOperator], readers: Sequence[set[int]], regions: dict[int, _Region]
) -> _Region | None:
    """Return the operators between an operator with two sources and the nearest one on which both depend."""
    item = operators[number]
    if item.op.kind not in _JOINING or len(item.sources) != 2:
        return None
    one, other = (list(_path(source, operators, regions)) for source in item.sources)
    source = next((place for place in one if place in other), None)
    if source is None:
        return None
    members = {number}
    for place in (*one[: one.index(source)], *other[: other.index(source)]):
        members |= regions[place].members if place in regions else {place}
    if source in regions and readers[source] <= members:
        members |= regions[source].members
        source = regions[source].source
    if any(not readers[place] <= members for place in members - {number}):
        return None
    return _Region(source, frozenset(members))


def _path(number: int, operators: Sequence[TracedOperator], regions: dict[int, _Region]) -> Iterator[int]:
    """Return an operator and those before it, as long as each reads one result."""
    for _ in range(_LONGEST):
        yield number
        item = operators[number]
        if number in regions:
            number = regions[number].source
        elif item.op.kind in _INNER and len(item.sources) == 1:
            number = item.sources[0]
        else:
            return


def _form(ops: Sequence[OpSpec]) -> str:
    """Return the name of the form of which operators are an example, or nothing."""
    if not all(op.input_shapes and (op.kind != "mean" or _trailing(op)) for op in ops):
        return ""
    kinds = Counter(op.kind for op in ops)
    return next((name for name, form in _FORMS.items() if form == kinds), "")


def _trailing(mean: OpSpec) -> int:
    """Return the number of dimensions over which a mean is taken if they are the last ones, else 0."""
    places, rank = sorted(dims_of(mean)), len(mean.input_shapes[0])
    return len(places) if places == list(range(rank - len(places), rank)) else 0


def _described(function: str, ops: Sequence[OpSpec]) -> OpSpec:
    """Describe a function of the largest tensor that its operators read."""
    shape = max((op.input_shapes[0] for op in ops), key=math.prod)
    mean = next((op for op in ops if op.kind == "mean"), None)
    if mean is None:
        return OpSpec.of(function, [shape])
    sizes = "x".join(map(str, mean.input_shapes[0][-_trailing(mean) :]))
    return OpSpec.of(function, [shape], weights=f"{sizes}+{sizes}" if function == "layer_norm" else sizes)
