"""The cell of NAS-Bench-101: a graph whose pruned shape decides the channels of every vertex."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import nn

from nni_latency.estimators import Derived
from nni_latency.operators import OpSpec
from nni_latency.spaces._symbolic_tensor import SymbolicTensor, TensorSpec
from nni_latency.spaces._varying import user_code
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
    """What a cell's output joins: the number of vertices, and whether it adds the cell's input."""

    sharers: int
    projected: bool


def run_nasbench101_cell(derived: list[Derived], walker: Walker, cell: Any, inputs: SymbolicTensor) -> SymbolicTensor:
    """Note the operators of a cell, by what every vertex computes (the rules of arXiv:1902.09635, section 2).

    The channels of a vertex follow from all edges together, so every vertex has a derived label of its own.
    """
    last = cell.max_num_nodes - 1
    if f"{cell.label}/output" not in walker.choices.values:
        _derive(derived, walker, cell.label, list(cell.op_candidates), last)
    parts = _CellParts(walker, cell)
    for place in range(1, last):
        kind = walker.choices.label(f"{cell.label}/vertex{place}")
        walker.records.append(walker.choices.combine([kind, inputs.spec], parts.of_vertex))
    kind = walker.choices.label(f"{cell.label}/output")
    walker.records.append(walker.choices.combine([kind, inputs.spec], parts.of_output))
    return SymbolicTensor(walker, walker.choices.combine([inputs.spec], partial(_with_channels, cell.out_features)))


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
    walker.choices.add(f"{cell}/output", [Output(*kind) for kind in itertools.product(range(last), (False, True))])
    outputs = (*(f"{cell}/vertex{place}" for place in places), f"{cell}/output")
    derived.append(Derived(outputs, labels, partial(_parts_of, cell, places)))


def _parts_of(cell: str, places: Sequence[int], sample: Mapping[str, Any]) -> tuple[Any, ...]:
    vertices, output = analyse(cell, sample)
    return (*(vertices.get(place) for place in places), output)


def analyse(cell: str, sample: Mapping[str, Any]) -> tuple[dict[int, Vertex], Output]:
    """Prune the graph of a sample and describe what every remaining vertex computes.

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
    return vertices, Output(len(sharing), 0 in sources[last])


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
        outputs = ends[0] if len(taken) == 1 else torch.cat(ends, 1)
        for projection in inputs:
            outputs += projection
        return outputs


class _CellParts:
    """The operators of the parts of one cell; each part is traced once."""

    def __init__(self, walker: Walker, cell: Any) -> None:
        self._walker = walker
        self._cell = cell
        self._known: dict[Any, tuple[OpSpec, ...]] = {}

    def of_vertex(self, kind: Vertex | None, spec: TensorSpec) -> tuple[OpSpec, ...]:
        """List the operators of a vertex of a cell with an input like `spec`."""
        if kind is None:
            return ()
        channels = kind.channels(self._cell.out_features)
        inside = _with_channels(channels, spec)
        taken = kind.inputs + kind.projected
        return (
            *(self._projection(channels, spec) if kind.projected else ()),
            *(self._walker.operators(_Sum(), [inside] * taken, "graph") if taken > 1 else ()),
            *self._part(("op", kind.op, channels, inside), lambda: self._cell.op_candidates[kind.op](channels), inside),
        )

    def of_output(self, kind: Output, spec: TensorSpec) -> tuple[OpSpec, ...]:
        """List the operators that make the output."""
        out = self._cell.out_features
        projection = self._projection(out, spec) if kind.projected else ()
        if not kind.sharers:
            return projection
        shares = [out // kind.sharers + (rank < out % kind.sharers) for rank in range(kind.sharers)]
        taken = [*shares, *([out] if kind.projected else [])]
        return (
            *projection,
            *self._walker.operators(_Ends(kind.projected), [_with_channels(share, spec) for share in taken], "graph"),
        )

    def _projection(self, channels: int, spec: TensorSpec) -> tuple[OpSpec, ...]:
        return self._part(
            ("projection", channels, spec), lambda: self._cell.projection(self._cell.in_features, channels), spec
        )

    def _part(self, key: Any, make: Callable[[], nn.Module], spec: TensorSpec) -> tuple[OpSpec, ...]:
        if key not in self._known:
            with user_code(), torch.device("meta"):
                module = make()
            self._known[key] = self._walker.operators(module, [spec])
        return self._known[key]


@lru_cache(maxsize=4096)
def _with_channels(channels: int, spec: TensorSpec) -> TensorSpec:
    """Describe a tensor with another number of channels."""
    return TensorSpec.of(torch.empty((spec.shape[0], channels, *spec.shape[2:]), dtype=spec.dtype, device="meta"))
