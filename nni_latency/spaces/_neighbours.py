# SPDX-License-Identifier: Apache-2.0
"""Operators beside their neighbours, found while a space is walked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from nni_latency.operators import Flow, OpSpec, is_passed, producer, reader, ways_to
from nni_latency.spaces._varying import Choices, Varying


@dataclass(frozen=True)
class Beside:
    """An operator beside a neighbour. Immutable.

    Parameters
    ----------
    op : OpSpec
        The operator.
    neighbour : str
        The neighbour, as in `nni_latency.operators.neighbours_of`.
    """

    op: OpSpec
    neighbour: str


@dataclass(frozen=True)
class Maker:
    """What later operators have to know of one that made a tensor. Immutable.

    Parameters
    ----------
    kind : str
        Its kind; empty if it is looked through, or no operator has a cost beside it.
    op : OpSpec or None
        The operator, if it has costs beside its readers.
    """

    kind: str
    op: OpSpec | None


#: Operators that made a tensor, from the last one back to one that is not looked through.
Way = tuple[Maker, ...]

#: The ways to a tensor that no operator made.
NOBODY = Varying.constant(((),))


def pairs_of(beside: Mapping[OpSpec, Iterable[str]]) -> frozenset[Beside]:
    """List operators beside neighbours, by the neighbours of each operator; what is not beside one is left out."""
    return frozenset(Beside(op, name) for op, names in beside.items() for name in names if name)


@dataclass(frozen=True)
class Neighbours:
    """What is noted of operators and their neighbours. Immutable.

    Parameters
    ----------
    wanted : frozenset of Beside
        Operators beside neighbours that count.
    """

    wanted: frozenset[Beside]

    @cached_property
    def _producers(self) -> frozenset[str]:
        return frozenset(item.neighbour for item in self.wanted if item.neighbour.startswith("<"))

    @cached_property
    def _read(self) -> frozenset[OpSpec]:
        return frozenset(item.op for item in self.wanted if item.neighbour.startswith(">"))

    def maker(self, op: OpSpec) -> Maker | None:
        """Describe an operator that makes a tensor; None if it has no part in anything that counts."""
        kind = op.kind if not is_passed(op) and producer(op.kind) in self._producers else ""
        known = op if op in self._read else None
        return Maker(kind, known) if kind or known else None

    def pairs(self, op: OpSpec, way: Iterable[Maker]) -> Iterator[Beside]:
        """Yield what counts if an operator reads a tensor that was made in some way."""
        for maker in way:
            if maker.kind and (found := Beside(op, producer(maker.kind))) in self.wanted:
                yield found
            if (
                maker.op is not None
                and not is_passed(op)
                and (found := Beside(maker.op, reader(op.kind))) in self.wanted
            ):
                yield found

    def way(self, flow: Flow, places: Iterable[int]) -> Way:
        """Describe the operators of a flow at some places."""
        makers = (self.maker(flow.operators[place]) for place in places)
        return tuple(maker for maker in makers if maker is not None)

    def inside(self, flow: Flow, places: Iterable[int]) -> tuple[Beside, ...]:
        """List what counts where operators of a flow read what others in it have made."""
        return tuple(
            pair
            for place in places
            for way, _ in _ways_into(flow, place)
            for pair in self.pairs(flow.operators[place], self.way(flow, way))
        )

    def across(self, flow: Flow, places: Iterable[int], number: int, ways: Sequence[Way]) -> tuple[Beside, ...]:
        """List what counts where operators of a flow read the given tensor `number`, made in some ways."""
        return tuple(
            pair
            for place in places
            for _, end in _ways_into(flow, place)
            if end == -1 - number
            for way in ways
            for pair in self.pairs(flow.operators[place], way)
        )

    def across_flows(
        self,
        choices: Choices,
        flows: Sequence[Flow],
        number: Varying,
        places: Sequence[Sequence[int]],
        makers: Sequence[Varying],
    ) -> list[Varying]:
        """Return the same for the operators of several flows at some places, by what made the given tensors."""
        found = []
        for given, ways in enumerate(makers):
            reads = any(
                end == -1 - given
                for flow, own in zip(flows, places, strict=True)
                for place in own
                for _, end in _ways_into(flow, place)
            )
            if reads and ways.values != NOBODY.values:
                found.append(
                    choices.combine(
                        [number, ways],
                        lambda chosen, way, given=given: self.across(flows[chosen], places[chosen], given, way),
                    )
                )
        return [pairs for pairs in found if pairs.values != ((),)]

    def made(
        self,
        choices: Choices,
        flows: Sequence[Flow],
        number: Varying,
        places: Sequence[int | None],
        makers: Sequence[Varying],
    ) -> Varying:
        """Return the ways to a tensor that one of some flows makes.

        Parameters
        ----------
        choices : Choices
            Labels and values of the space.
        flows : sequence of Flow
            The flows.
        number : Varying
            Which of them runs.
        places : sequence of (int or None)
            What makes the tensor in each flow, as in `Flow`.
        makers : sequence of Varying
            The ways to each of the tensors that they are given.
        """
        routes = [
            [((), None)] if place is None else list(ways_to(place, flow.operators, flow.sources))
            for flow, place in zip(flows, places, strict=True)
        ]
        given = sorted({-1 - end for ways in routes for _, end in ways if end is not None})

        def joined(chosen: int, *ways: Sequence[Way]) -> tuple[Way, ...]:
            behind = dict(zip(given, ways, strict=True))
            return tuple(
                (*self.way(flows[chosen], own), *rest)
                for own, end in routes[chosen]
                for rest in (((),) if end is None else behind[-1 - end])
            )

        return choices.combine([number, *(makers[place] for place in given)], joined)


def _ways_into(flow: Flow, place: int) -> Iterator[tuple[tuple[int, ...], int | None]]:
    """Yield the ways to all tensors that an operator of a flow reads."""
    for source in flow.sources[place]:
        yield from ways_to(source, flow.operators, flow.sources)
