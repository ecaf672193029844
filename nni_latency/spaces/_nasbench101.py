# SPDX-License-Identifier: Apache-2.0
"""How the cell of NAS-Bench-101 runs on symbolic tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, cast

import torch
from torch import nn

from nni_latency.estimators import Derived
from nni_latency.operators import Flow, OpSpec
from nni_latency.spaces._neighbours import NOBODY, Beside, Way
from nni_latency.spaces._steps import ALWAYS, Memory
from nni_latency.spaces._symbolic import SymbolicTensor, TensorSpec
from nni_latency.spaces._varying import Varying, user_code
from nni_latency.spaces._walker import Walker


@dataclass(frozen=True)
class Vertex:
    """What one vertex of a pruned cell computes.

    Parameters
    ----------
    op : str
        Name of its operator.
    sharers : int
        Vertices that share the output's channels.
    rank : int
        Place among them of the first that it leads to; the first ones get a channel more where they do not divide.
    inputs : int
        Vertices that it takes.
    projected : bool
        Whether it takes the cell's input, too.
    """

    op: str
    sharers: int
    rank: int
    inputs: int
    projected: bool

    def channels(self, out: int) -> int:
        """Return its channels in a cell with `out` of them."""
        return out // self.sharers + (self.rank < out % self.sharers)


@dataclass(frozen=True)
class Output:
    """What a cell's output joins: the number of vertices, and whether it adds the cell's input.

    A single vertex is the output itself; `op` is its operator, and empty otherwise.
    """

    sharers: int
    projected: bool
    op: str = ""


@dataclass(frozen=True)
class Edge:
    """What one vertex of a pruned cell takes from another one.

    Parameters
    ----------
    source : Vertex
        The earlier vertex, as if the cell's input was all it takes.
    sink : Vertex or Output
        What takes its result, as if that was all, or one of two inputs of a vertex.
    place : int
        Place of the result among the inputs of the sink, from 1; all places behind the first are alike in a vertex.
    """

    source: Vertex
    sink: Vertex | Output
    place: int


def run_nasbench101_cell(derived: list[Derived], walker: Walker, cell: Any, inputs: SymbolicTensor) -> SymbolicTensor:
    """Note the operators of a cell, by what every vertex computes (the rules of arXiv:1902.09635, section 2).

    The channels of a vertex follow from all edges together, so every vertex has its own derived label.
    """
    last = cell.max_num_nodes - 1
    if f"{cell.label}/output" not in walker.choices.values:
        _derive(derived, walker, cell.label, list(cell.op_candidates), last)
    parts = _CellParts(walker, cell)
    names = [*(f"vertex{place}" for place in range(1, last)), "output"]
    kinds = [walker.choices.label(f"{cell.label}/{name}") for name in names]
    operators = [walker.choices.combine([kind, inputs.spec], parts.operators) for kind in kinds]
    made = NOBODY
    if walker.log.neighbours:
        before = inputs.memory.makers
        operators += [walker.choices.combine([kind, inputs.spec, before], parts.pairs) for kind in kinds]
        edges = (walker.choices.label(_edge(cell.label, *places)) for places in _edges(last))
        operators += [walker.choices.combine([edge, inputs.spec], parts.pairs_of_edge) for edge in edges]
        made = walker.choices.combine([kinds[-1], inputs.spec, before], parts.made)
    spec = walker.choices.combine([inputs.spec], partial(_with_channels, cell.out_features))
    step = walker.log.step(operators, [(inputs.memory.step, ALWAYS)])
    return SymbolicTensor(walker, spec, Memory(step, makers=made))


def _edge(cell: str, source: int, sink: int) -> str:
    return f"{cell}/edge{source}-{sink}"


def _edges(last: int) -> Iterator[tuple[int, int]]:
    """Yield the vertices that an edge may lie between, without the cell's input."""
    return itertools.combinations(range(1, last + 1), 2)


def _derive(derived: list[Derived], walker: Walker, cell: str, ops: Sequence[str], last: int) -> None:
    labels = (
        f"{cell}/num_nodes",
        *(f"{cell}/op{place}" for place in range(1, last)),
        *(f"{cell}/input{place}" for place in range(1, last + 1)),
    )
    kinds = [
        Vertex(op, sharers, rank, inputs, projected)
        for op, sharers, inputs, projected in itertools.product(ops, range(1, last), range(last - 1), (False, True))
        for rank in range(sharers)
        if inputs or projected
    ]
    places = range(1, last)
    for place in places:
        walker.choices.add(f"{cell}/vertex{place}", [None, *kinds])
    joined = (Output(sharers, projected) for sharers in range(last) for projected in (False, True))
    several = [kind for kind in joined if kind.sharers + kind.projected > 1 or kind.projected]
    walker.choices.add(f"{cell}/output", [*several, *(Output(1, False, op) for op in ops)])
    outputs = (*(f"{cell}/vertex{place}" for place in places), f"{cell}/output")
    between: tuple[tuple[int, int], ...] = ()
    if walker.log.neighbours:
        between = tuple(_edges(last))
        sources = [replace(kind, inputs=0, projected=True) for kind in kinds]
        known = dict.fromkeys(
            Edge(source, sink, place) for source in dict.fromkeys(sources) for sink, place in _sinks(source, ops)
        )
        for places_of_edge in between:
            walker.choices.add(_edge(cell, *places_of_edge), [None, *known])
        outputs += tuple(_edge(cell, *places_of_edge) for places_of_edge in between)
    derived.append(Derived(outputs, labels, partial(_parts_of, cell, places, between)))


def _sinks(source: Vertex, ops: Sequence[str]) -> Iterator[tuple[Vertex | Output, int]]:
    """Yield what may take the result of a vertex, and the place of the result there."""
    for op, rank in itertools.product(ops, range(source.sharers)):
        alone = Vertex(op, source.sharers, rank, 1, False)
        yield alone, 1
        yield from ((replace(alone, inputs=2), place) for place in (1, 2))
    yield Output(source.sharers, False), 1 + source.rank


def _parts_of(
    cell: str, places: Sequence[int], between: Sequence[tuple[int, int]], sample: Mapping[str, Any]
) -> tuple[Any, ...]:
    vertices, output, edges = analyse(cell, sample)
    return (*(vertices.get(place) for place in places), output, *(edges.get(place) for place in between))


def analyse(cell: str, sample: Mapping[str, Any]) -> tuple[dict[int, Vertex], Output, dict[tuple[int, int], Edge]]:
    """Prune the graph of a sample; describe what every remaining vertex computes, and the edges between them.

    Raises
    ------
    ValueError
        If no path leads from the input to the output.
    """
    last = sample[f"{cell}/num_nodes"] - 1
    sources = {place: tuple(sample[f"{cell}/input{place}"]) for place in range(1, last + 1)}
    kept = _useful(sources, last)
    inner = [place for place in range(1, last) if place in kept]
    sharing = [place for place in inner if place in sources[last]]
    ranks = {place: rank for rank, place in enumerate(sharing)}
    for place in reversed(inner):
        if place not in ranks:
            ranks[place] = min(ranks[other] for other in inner if other > place and place in sources[other])
    vertices = {
        place: Vertex(
            sample[f"{cell}/op{place}"],
            len(sharing),
            ranks[place],
            sum(source in kept and source > 0 for source in sources[place]),
            0 in sources[place],
        )
        for place in inner
    }
    output = Output(len(sharing), 0 in sources[last])
    if output == Output(1, False):
        output = replace(output, op=vertices[sharing[0]].op)
    return vertices, output, _edges_between(vertices, sources, last)


def _edges_between(
    vertices: Mapping[int, Vertex], sources: Mapping[int, Sequence[int]], last: int
) -> dict[tuple[int, int], Edge]:
    """Describe the edges of a pruned graph; those from the cell's input, and one that is the output, are left out."""
    found = {}
    for sink in (*vertices, last):
        taken = sorted(place for place in sources[sink] if place in vertices)
        for number, source in enumerate(taken, 1):
            start = replace(vertices[source], inputs=0, projected=True)
            if sink == last:
                if len(taken) > 1 or 0 in sources[last]:
                    found[source, sink] = Edge(start, Output(start.sharers, False), number)
            elif len(taken) + (0 in sources[sink]) > 1:
                end = replace(vertices[sink], inputs=2, projected=False)
                found[source, sink] = Edge(start, end, min(number, 2))
            else:
                found[source, sink] = Edge(start, replace(vertices[sink], projected=False), 1)
    return found


def _useful(sources: Mapping[int, Sequence[int]], last: int) -> set[int]:
    """Return the vertices that lie on a path from the input to the output."""
    reached = {0}
    for place in range(1, last + 1):
        if any(source in reached for source in sources[place]):
            reached.add(place)
    if last not in reached:
        raise ValueError("No path of the cell leads from its input to its output.")
    needed, waiting = {last}, [last]
    while waiting:
        for source in sources.get(waiting.pop(), ()):
            if source in reached and source not in needed:
                needed.add(source)
                waiting.append(source)
    return needed


class _Sum(nn.Module):
    """Adds up the inputs of a vertex."""

    def forward(self, *taken: torch.Tensor) -> Any:
        return sum(taken)


class _Ends(nn.Module):
    """Joins the vertices that lead to the output, and adds the cell's input if it leads there too."""

    def __init__(self, projected: bool) -> None:
        super().__init__()
        self.projected = projected

    def forward(self, *taken: torch.Tensor) -> torch.Tensor:
        ends, inputs = (taken[:-1], taken[-1:]) if self.projected else (taken, ())
        outputs = torch.cat(ends, 1)
        for projection in inputs:
            outputs += projection
        return outputs


class _Composed:
    """Flows put together: the operators of one after those of another, on some given tensors."""

    def __init__(self) -> None:
        self._operators: list[OpSpec] = []
        self._sources: list[tuple[int, ...]] = []

    def append(self, flow: Flow, given: Sequence[int]) -> int:
        """Run a flow on tensors, named by their places; return the place of its only result."""
        first = len(self._operators)

        def now(place: int) -> int:
            return first + place if place >= 0 else given[-1 - place]

        self._operators += flow.operators
        self._sources += [tuple(map(now, places)) for places in flow.sources]
        (result,) = flow.results
        assert result is not None, flow
        return now(result)

    def flow(self, result: int, n_given: int) -> Flow:
        """Return the whole flow of some given tensors."""
        given = tuple(-1 - number for number in range(n_given))
        return Flow(tuple(self._operators), tuple(self._sources), (result,), (0,), given, ())


class _CellParts:
    """The parts of one cell; each module is traced once.

    The tensors given to a part are the input of the cell, and the vertices that it takes.
    """

    def __init__(self, walker: Walker, cell: Any) -> None:
        self._walker = walker
        self._cell = cell
        self._known: dict[Any, Flow] = {}
        self._pairs: dict[Any, tuple[Beside, ...]] = {}

    def operators(self, kind: Vertex | Output | None, spec: TensorSpec) -> tuple[OpSpec, ...]:
        """List the operators of a part of a cell with an input like `spec`."""
        return () if kind is None else self._flow(kind, spec).operators

    def pairs(self, kind: Vertex | Output | None, spec: TensorSpec, before: Sequence[Way]) -> tuple[Beside, ...]:
        """List what counts beside neighbours in a part, by what made the cell's input."""
        neighbours = self._walker.log.neighbours
        if kind is None or neighbours is None:
            return ()
        key = (kind, spec, tuple(before))
        if key not in self._pairs:
            flow = self._flow(kind, spec)
            places = range(len(flow.operators))
            self._pairs[key] = (*neighbours.inside(flow, places), *neighbours.across(flow, places, 0, before))
        return self._pairs[key]

    def pairs_of_edge(self, edge: Edge | None, spec: TensorSpec) -> tuple[Beside, ...]:
        """List what counts beside neighbours where a part takes the result of another one."""
        neighbours = self._walker.log.neighbours
        if edge is None or neighbours is None:
            return ()
        key = (edge, spec)
        if key not in self._pairs:
            flow = self._flow(edge.sink, spec)
            ways = self.made(edge.source, spec, ((),))
            self._pairs[key] = neighbours.across(flow, range(len(flow.operators)), edge.place, ways)
        return self._pairs[key]

    def made(self, kind: Vertex | Output, spec: TensorSpec, before: Sequence[Way]) -> tuple[Way, ...]:
        """Return the ways to the result of a part, by what made the cell's input."""
        neighbours = self._walker.log.neighbours
        if neighbours is None:
            return ((),)
        if isinstance(kind, Output) and kind.op:
            kind = Vertex(kind.op, 1, 0, 0, True)
        flow, makers = self._flow(kind, spec), Varying.constant(tuple(before))
        never = [NOBODY] * (len(flow.given) - 1)
        made = neighbours.made(self._walker.choices, [flow], Varying.constant(0), flow.results, [makers, *never])
        return cast(tuple[Way, ...], made.values[0])

    def _flow(self, kind: Vertex | Output, spec: TensorSpec) -> Flow:
        key = (kind, spec)
        if key not in self._known:
            self._known[key] = self._output(kind, spec) if isinstance(kind, Output) else self._vertex(kind, spec)
        return self._known[key]

    def _vertex(self, kind: Vertex, spec: TensorSpec) -> Flow:
        channels = kind.channels(self._cell.out_features)
        inside = _with_channels(channels, spec)
        made, taken = _Composed(), list(range(-2, -2 - kind.inputs, -1))
        if kind.projected:
            taken.append(made.append(self._projection(channels, spec), [-1]))
        start = taken[0]
        if len(taken) > 1:
            start = made.append(self._walker.flow(_Sum(), [inside] * len(taken), "graph"), taken)
        op = self._part(("op", kind.op, channels, inside), lambda: self._cell.op_candidates[kind.op](channels), inside)
        return made.flow(made.append(op, [start]), 1 + kind.inputs)

    def _output(self, kind: Output, spec: TensorSpec) -> Flow:
        out, made = self._cell.out_features, _Composed()
        taken = list(range(-2, -2 - kind.sharers, -1))
        specs = [
            _with_channels(out // kind.sharers + (rank < out % kind.sharers), spec) for rank in range(kind.sharers)
        ]
        if kind.projected:
            taken.append(made.append(self._projection(out, spec), [-1]))
            specs.append(_with_channels(out, spec))
        result = taken[0]
        if kind.sharers and not kind.op:
            result = made.append(self._walker.flow(_Ends(kind.projected), specs, "graph"), taken)
        return made.flow(result, 1 + kind.sharers)

    def _projection(self, channels: int, spec: TensorSpec) -> Flow:
        return self._part(
            ("projection", channels, spec), lambda: self._cell.projection(self._cell.in_features, channels), spec
        )

    def _part(self, key: Any, make: Callable[[], nn.Module], spec: TensorSpec) -> Flow:
        if key not in self._known:
            with user_code(), torch.device("meta"):
                module = make()
            self._known[key] = self._walker.flow(module, [spec])
        return self._known[key]


@lru_cache(maxsize=4096)
def _with_channels(channels: int, spec: TensorSpec) -> TensorSpec:
    """Describe a tensor with another number of channels."""
    return TensorSpec.of(torch.empty((spec.shape[0], channels, *spec.shape[2:]), dtype=spec.dtype, device="meta"))
