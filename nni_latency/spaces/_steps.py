# SPDX-License-Identifier: Apache-2.0
"""`Step`: operators that run together and the steps whose results they take; which of them an output depends on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nni_latency.operators import Flow, OpSpec
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
        Tuples of `OpSpec` by choices.
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
    age : int
        Number of those that were made before.
    """

    step: Step = NOTHING
    same: dict[Memory, Varying | None] = field(default_factory=dict)
    age: int = field(default_factory=itertools.count().__next__)

    def seen_since(self, age: int, n_copies: int) -> Memory:
        """Return a copy that is the same as this one, unless this is younger, and no other is the same."""
        return Memory(self.step, {self: ALWAYS} if self.age < age or self.same or n_copies > 1 else {})

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
    memory : list of dict of int to Varying
        What every tensor of the result shares memory with, by places as in `Flow`, and where.
    """

    all: list[Step]
    results: list[Step]
    given: list[Step]
    memory: list[dict[int, Varying]]


def steps_of(choices: Choices, flows: Varying, sources: Sequence[Step]) -> FlowSteps:
    """Divide a module or function into steps, by what it does for all choices to tensors made by some steps.

    Operators that the same ends depend on are one step. The ends are the results, what is written to, and what cannot
    be followed; each has a place for every flow.
    """
    known: list[Flow] = [flow for flow in flows.values if not isinstance(flow, Invalid)]
    number = choices.combine([flows], known.index)
    given = list(zip(*(flow.given for flow in known), strict=True))
    results = list(zip(*(flow.results for flow in known), strict=True))
    kept = [(-1 - n,) * len(known) for n in range(len(sources))]
    written = [places for places in given if places not in kept]
    made = [places for places in results if set(places) != {None} and places not in kept]
    ends = list(dict.fromkeys([*made, *written]))
    reached = [[flow.reached([place]) for flow, place in zip(known, end, strict=True)] for end in ends]
    reached.append([flow.reached(flow.lost) for flow in known])

    def of_flow(values: Sequence[Any]) -> Varying:
        return choices.combine([number], values.__getitem__)

    operators = _by_ends(known, reached)
    shared = {taking: Step((of_flow(ops),)) for taking, ops in operators.items() if len(taking) > 1}
    steps = []
    for end, found in enumerate(reached):
        takes = [(step, ALWAYS) for taking, step in shared.items() if end in taking]
        for n, source in enumerate(sources):
            if source is not NOTHING and any(-1 - n in places for places in found):
                takes.append((source, of_flow([-1 - n in places for places in found])))
        own = operators.get(frozenset([end]), [()] * len(known))
        steps.append(Step((of_flow(own),), tuple(takes)))
    steps[-1].kept = of_flow([bool(flow.lost) for flow in known])
    if steps[-1].kept.values == (False,):
        steps.pop()
    by_end = dict(zip(ends, steps, strict=False))
    memory = zip(*(flow.memory for flow in known), strict=True)
    return FlowSteps(
        [*shared.values(), *steps],
        [by_end.get(places, NOTHING) for places in results],
        [by_end.get(places, source) for places, source in zip(given, sources, strict=True)],
        [{place: of_flow([item == place for item in places]) for place in set(places)} for places in memory],
    )


def _by_ends(
    flows: Sequence[Flow], reached: Sequence[Sequence[frozenset[int]]]
) -> dict[frozenset[int], list[tuple[OpSpec, ...]]]:
    """Return the operators of every flow, by the ends that depend on them."""
    found: dict[frozenset[int], list[tuple[OpSpec, ...]]] = {}
    for number, flow in enumerate(flows):
        for place, op in enumerate(flow.operators):
            taking = frozenset(end for end, places in enumerate(reached) if place in places[number])
            if taking:
                found.setdefault(taking, [()] * len(flows))[number] += (op,)
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
