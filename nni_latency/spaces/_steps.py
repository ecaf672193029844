# SPDX-License-Identifier: Apache-2.0
"""`Step`: operators that run together and the steps whose results they take; which of them an output depends on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nni_latency.operators import Flow, OpSpec
from nni_latency.spaces._varying import Choices, Invalid, Varying

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


#: The step of a tensor that no operator made.
NOTHING = Step()


@dataclass(eq=False)
class Memory:
    """Memory that tensors share, and the step that wrote to it last."""

    step: Step = NOTHING


@dataclass
class Scope:
    """Steps of a part of a space, and the steps that had written to memory before this part did."""

    steps: list[Step] = field(default_factory=list)
    before: dict[Memory, Step] = field(default_factory=dict)

    def write(self, memory: Memory, step: Step) -> None:
        """Note that a step writes to memory."""
        self.before.setdefault(memory, memory.step)
        memory.step = step

    def undo(self) -> None:
        """Restore all memory."""
        for memory, step in self.before.items():
            memory.step = step

    def extend(self, scope: Scope) -> None:
        """Append a part that ran behind this one."""
        self.steps += scope.steps
        self.before = {**scope.before, **self.before}


@dataclass
class Part:
    """What a module does to any tensors of certain shapes.

    Parameters
    ----------
    given : list of Memory
        Memory of the tensors that it is given.
    starts : list of Step
        Stand for the steps that make them.
    steps : list of Step
        Its own.
    result : Any
        What it returns, with symbolic tensors.
    """

    given: list[Memory]
    starts: list[Step]
    steps: list[Step]
    result: Any

    def shorten(self, choices: Choices, memories: Iterable[Memory]) -> None:
        """Make one step of all, unless its results, which are in `memories`, depend on different ones of them."""
        own = set(self.steps)
        written = [memory for memory in (*self.given, *memories) if memory.step in own]
        ends = dict.fromkeys(memory.step for memory in written)
        always = all(step.kept.values == (True,) for step in self.steps)
        kept = any(True in step.kept.values for step in self.steps)
        if not self.steps or (not always and (kept or len(ends) > 1)):
            return
        used = used_steps(choices, self.steps, ends)
        takes = tuple((step, taken) for step, taken in used.items() if step not in own)
        whole = Step(tuple(counted(choices, self.steps, used)), takes, ALWAYS if always else NEVER)
        for memory in written:
            memory.step = whole
        self.steps = [whole]


@dataclass
class FlowSteps:
    """Steps of a module or function.

    Parameters
    ----------
    all : list of Step
        In the order of execution.
    results : list of (Step or int)
        What made the tensors of the result; a number for one that shares the memory of that tensor given.
    given : list of Step
        What wrote last to the tensors that it was given.
    """

    all: list[Step]
    results: list[Step | int]
    given: list[Step]


def steps_of(choices: Choices, flows: Varying, sources: Sequence[Step]) -> FlowSteps:
    """Divide a module or function into steps, by what it does for all choices to tensors made by some steps."""
    known: list[Flow] = [flow for flow in flows.values if not isinstance(flow, Invalid)]
    first = known[0]
    given = list(zip(*(flow.given for flow in known), strict=True))
    written = [n for n, places in enumerate(given) if set(places) != {-1 - n}]
    ends = {place for place in (*first.results, *(first.given[n] for n in written)) if place is not None and place >= 0}
    alike = all(replace(flow, operators=first.operators) == first for flow in known)
    if alike and (len(ends) > 1 or first.lost):
        steps = _by_operator(choices, flows, first, sources)
        writers = {-1 - n: source for n, source in enumerate(sources)} | dict(enumerate(steps))
    else:
        steps = [_at_once(choices, flows, written, sources)]
        writers = {}
    results: list[Step | int] = []
    for places in zip(*(flow.results for flow in known), strict=True):
        made = NOTHING if set(places) == {None} else writers.get(places[0], steps[0])
        results.append(given.index(places) if places in given else made)
    return FlowSteps(
        steps,
        results,
        [writers.get(given[n][0], steps[0]) if n in written else source for n, source in enumerate(sources)],
    )


def _by_operator(choices: Choices, flows: Varying, first: Flow, sources: Sequence[Step]) -> list[Step]:
    """Return one step for every operator; which takes which is the same for all choices."""
    writers = {-1 - n: source for n, source in enumerate(sources)}
    for number, taken in enumerate(first.sources):
        ops = choices.combine([flows], lambda flow, number=number: (flow.operators[number],))
        takes = tuple((writers[place], ALWAYS) for place in taken if writers[place] is not NOTHING)
        writers[number] = Step((ops,), takes, ALWAYS if number in first.lost else NEVER)
    lost = tuple((writers[place], ALWAYS) for place in first.lost if place < 0)
    steps = [writers[number] for number in range(len(first.operators))]
    return [*steps, Step((), lost, ALWAYS)] if lost else steps


def _at_once(choices: Choices, flows: Varying, written: Sequence[int], sources: Sequence[Step]) -> Step:
    """Return one step of all operators that the results, and what is written to, depend on."""

    def reached(flow: Flow) -> frozenset[int]:
        return flow.reached([*flow.results, *(flow.given[n] for n in written), *flow.lost])

    def needed(flow: Flow) -> tuple[OpSpec, ...]:
        places = reached(flow)
        return tuple(op for place, op in enumerate(flow.operators) if place in places)

    needs = choices.combine([flows], reached)
    takes = (
        (source, choices.combine([needs], lambda places, place=-1 - n: place in places))
        for n, source in enumerate(sources)
        if source is not NOTHING
    )
    kept = choices.combine([flows], lambda flow: bool(flow.lost))
    return Step((choices.combine([flows], needed),), tuple(takes), kept)


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
