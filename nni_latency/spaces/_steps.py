# SPDX-License-Identifier: Apache-2.0
"""`Step`: operators that run together and the steps whose results they take; which of them an output depends on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nni_latency.operators import Flow
from nni_latency.spaces._neighbours import NOBODY, Neighbours
from nni_latency.spaces._varying import Choices, Invalid, Varying

#: Combinations of choices on which it may depend that memory is the same.
_LARGEST = 1000

ALWAYS, NEVER = Varying.constant(True), Varying.constant(False)


@dataclass(eq=False)
class Step:
    """Operators that count in the same networks.

    Parameters
    ----------
    operators : tuple of Varying
        Tuples of `OpSpec`, and of `Beside`, by choices.
    takes : tuple of (Step, Varying)
        Earlier steps, each with whether its result is taken.
    kept : Varying
        Whether it counts even if no output depends on it.
    """

    operators: tuple[Varying, ...] = ()
    takes: tuple[tuple[Step, Varying], ...] = ()
    kept: Varying = NEVER


#: The step of a tensor that no operator made, and of one of which it is not known which operator made it.
NOTHING, UNKNOWN = Step(), Step()


@dataclass(eq=False)
class Memory:
    """Memory that tensors share.

    Parameters
    ----------
    step : Step
        What wrote to it last.
    same : dict of Memory to (Varying or None)
        Other memory that is the same where a condition holds; None for one of too many choices.
    makers : Varying
        The ways to what it holds, as `Neighbours` describes them.
    age : int
        Number of those that were made before.
    """

    step: Step = NOTHING
    same: dict[Memory, Varying | None] = field(default_factory=dict)
    makers: Varying = NOBODY
    age: int = field(default_factory=itertools.count().__next__)

    def seen_since(self, age: int, n_copies: int) -> Memory:
        """Return a copy that is the same as this one, unless this is younger, and no other is the same."""
        same: dict[Memory, Varying | None] = {self: ALWAYS} if self.age < age or self.same or n_copies > 1 else {}
        return Memory(self.step, same, self.makers)

    def is_same(self, choices: Choices, other: Memory, condition: Varying | None) -> None:
        """Note that another one is the same where a condition holds."""
        self.same[other] = other.same[self] = _joined(either, choices, self.same.get(other, NEVER), condition)

    def links(self, choices: Choices) -> dict[Memory, Varying | None]:
        """Return all memory that is the same for some choices, also through others."""
        found: dict[Memory, Varying | None] = {}
        left: list[tuple[tuple[Memory, ...], Varying | None]] = [((self,), ALWAYS)]
        while left:
            path, before = left.pop()
            for other, same in path[-1].same.items():
                condition = _joined(both, choices, before, same)
                if other not in path and found.get(other, NEVER) is not None and not _is_never(condition):
                    found[other] = _joined(either, choices, found.get(other, NEVER), condition)
                    left.append(((*path, other), condition))
        return found


def _joined(
    join: Callable[[Choices, Varying, Varying], Varying], choices: Choices, one: Varying | None, other: Varying | None
) -> Varying | None:
    """Join two conditions; None if one is None, or they depend on too many choices."""
    found = None if one is None or other is None else join(choices, one, other)
    return found if found is not None and found.ids.size <= _LARGEST else None


def _is_never(condition: Varying | None) -> bool:
    return condition is not None and condition.values == (False,)


@dataclass
class FlowSteps:
    """Steps of a module or function.

    Parameters
    ----------
    all : list of Step
        In the order of execution.
    results : list of Step
        What made the tensors of the result.
    given : list of Step
        What wrote last to the tensors that it was given.
    makers, given_makers : list of Varying
        The ways to the tensors of the result, and to those that it was given afterwards.
    memory : list of dict of int to Varying
        What every tensor of the result shares memory with, by places as in `Flow`, and where.
    """

    all: list[Step]
    results: list[Step]
    given: list[Step]
    makers: list[Varying]
    given_makers: list[Varying]
    memory: list[dict[int, Varying]]


def steps_of(
    choices: Choices, flows: Varying, before: Sequence[Memory], neighbours: Neighbours | None, *, keeps: bool = False
) -> FlowSteps:
    """Divide a module or function into steps, by what it does for all choices to the memory that it is given.

    Operators that the same ends depend on are one step. The ends are the results, what is written to, and what cannot
    be followed, or all operators if each one counts; each has a place for every flow.
    """
    sources, makers = [memory.step for memory in before], [memory.makers for memory in before]
    known: list[Flow] = [flow for flow in flows.values if not isinstance(flow, Invalid)]
    number = choices.combine([flows], known.index)
    given = list(zip(*(flow.given for flow in known), strict=True))
    results = list(zip(*(flow.results for flow in known), strict=True))
    kept = [(-1 - n,) * len(known) for n in range(len(sources))]
    written = [places for places in given if places not in kept]
    made = [places for places in results if set(places) != {None} and places not in kept]
    ends = list(dict.fromkeys([*made, *written]))
    reached = [[flow.reached([place]) for flow, place in zip(known, end, strict=True)] for end in ends]
    last = [range(len(flow.operators)) if keeps else flow.lost for flow in known]
    reached.append([flow.reached(places) for flow, places in zip(known, last, strict=True)])

    def of_flow(values: Sequence[Any]) -> Varying:
        return choices.combine([number], values.__getitem__)

    def operators_at(found: Sequence[Sequence[int]]) -> tuple[Varying, ...]:
        """Return the operators of every flow at some places, and what counts beside their neighbours."""
        own = [tuple(flow.operators[place] for place in places) for flow, places in zip(known, found, strict=True)]
        if neighbours is None:
            return (of_flow(own),)
        pairs = (neighbours.inside(flow, places) for flow, places in zip(known, found, strict=True))
        joined = [(*ops, *items) for ops, items in zip(own, pairs, strict=True)]
        return of_flow(joined), *neighbours.across_flows(choices, known, number, found, makers)

    def ways_of(places: Sequence[int | None]) -> Varying:
        """Return the ways to a tensor that operators at some places make."""
        return neighbours.made(choices, known, number, places, makers) if neighbours else NOBODY

    operators = _by_ends(known, reached)
    shared = {taking: Step(operators_at(places)) for taking, places in operators.items() if len(taking) > 1}
    steps = []
    for end, found in enumerate(reached):
        takes = [(step, ALWAYS) for taking, step in shared.items() if end in taking]
        for n, source in enumerate(sources):
            if source is not NOTHING and any(-1 - n in places for places in found):
                takes.append((source, of_flow([-1 - n in places for places in found])))
        own = operators.get(frozenset([end]), [()] * len(known))
        steps.append(Step(operators_at(own), tuple(takes)))
    steps[-1].kept = of_flow([bool(places) for places in last])
    for step in (*shared.values(), *steps) if keeps else ():
        step.kept = ALWAYS
    if steps[-1].kept.values == (False,):
        steps.pop()
    by_end = dict(zip(ends, steps, strict=False))
    memory = zip(*(flow.memory for flow in known), strict=True)
    return FlowSteps(
        [*shared.values(), *steps],
        [by_end.get(places, NOTHING) for places in results],
        [by_end.get(places, source) for places, source in zip(given, sources, strict=True)],
        list(map(ways_of, results)),
        list(map(ways_of, given)),
        [{place: of_flow([item == place for item in places]) for place in set(places)} for places in memory],
    )


def _by_ends(
    flows: Sequence[Flow], reached: Sequence[Sequence[frozenset[int]]]
) -> dict[frozenset[int], list[tuple[int, ...]]]:
    """Return the places of the operators of every flow, by the ends that depend on them."""
    found: dict[frozenset[int], list[tuple[int, ...]]] = {}
    for number, flow in enumerate(flows):
        for place in range(len(flow.operators)):
            taking = frozenset(end for end, places in enumerate(reached) if place in places[number])
            if taking:
                found.setdefault(taking, [()] * len(flows))[number] += (place,)
    return found


def used_steps(choices: Choices, steps: Sequence[Step], ends: Iterable[Step]) -> dict[Step, Varying]:
    """Return for steps in the order of execution, and for all that they take, whether one of `ends` depends on them."""
    used = dict.fromkeys(ends, ALWAYS)
    for step in reversed(steps):
        used[step] = either(choices, used.get(step, NEVER), step.kept)
        for source, taken in step.takes:
            used[source] = either(choices, used.get(source, NEVER), both(choices, used[step], taken))
    return used


def counted(choices: Choices, steps: Iterable[Step], used: Mapping[Step, Varying]) -> list[Varying]:
    """Return the operators of steps where they are used, joined by what they depend on."""
    found = (where(choices, used[step], ops) for step in steps for ops in step.operators)
    return choices.joined([ops for ops in found if ops.values != ((),)])


def where(choices: Choices, condition: Varying, operators: Varying) -> Varying:
    """Return operators where a condition holds; what cannot be computed stays everywhere."""
    if condition.values == (True,):
        return operators
    idle = choices.combine([operators], lambda _: ())
    return choices.switch(condition, {True: operators, False: idle})


def is_chosen(choice: Varying, value: Any) -> Varying:
    """Return where a choice has a value; where it cannot be computed, this cannot either."""
    values = [item if isinstance(item, Invalid) else item == value for item in choice.values]
    distinct = tuple(dict.fromkeys(values))
    ids = np.array([distinct.index(item) for item in values])[choice.ids]
    return Varying(choice.labels, ids, distinct) if len(distinct) > 1 else Varying.constant(distinct[0])


def either(choices: Choices, one: Varying, other: Varying) -> Varying:
    """Return where one of two conditions holds."""
    if one.values == (False,) or other.values == (True,):
        return other
    return one if other.values == (False,) else choices.switch(one, {True: ALWAYS, False: other})


def both(choices: Choices, one: Varying, other: Varying) -> Varying:
    """Return where two conditions hold."""
    if one.values == (True,) or other.values == (False,):
        return other
    return one if other.values == (True,) else choices.switch(one, {True: other, False: NEVER})
