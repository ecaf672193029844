# SPDX-License-Identifier: Apache-2.0
"""`StepLog`: the steps that a walk through a space notes, and what they write to memory."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nni_latency.spaces._neighbours import NOBODY, Neighbours
from nni_latency.spaces._steps import (
    ALWAYS,
    NEVER,
    NOTHING,
    UNKNOWN,
    Memory,
    Step,
    both,
    counted,
    steps_of,
    used_steps,
)
from nni_latency.spaces._varying import Choices, TooManyChoicesError, Varying


@dataclass
class Scope:
    """Steps of a part of a space, and what had written to memory before this part did: a step, and makers."""

    steps: list[Step] = field(default_factory=list)
    before: dict[Memory, tuple[Step, Varying]] = field(default_factory=dict)

    def write(self, memory: Memory, step: Step, makers: Varying) -> None:
        """Note that a step writes to memory."""
        self.before.setdefault(memory, (memory.step, memory.makers))
        memory.step, memory.makers = step, makers

    def undo(self) -> None:
        """Restore all memory."""
        for memory, (step, makers) in self.before.items():
            memory.step, memory.makers = step, makers

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
    links : mapping of Memory to mapping of Memory to (Varying or None)
        Where memory of the result is the same as other memory of the result or given.
    """

    given: list[Memory]
    starts: list[Step]
    steps: list[Step]
    result: Any
    links: Mapping[Memory, Mapping[Memory, Varying | None]]

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


class StepLog:
    """Notes the steps of a walk in the order of execution, and what they write to memory.

    Parameters
    ----------
    choices : Choices
        Labels and values of the space.
    keeps : bool
        Whether operators count that no output depends on.
    neighbours : Neighbours or None
        Operators with costs beside neighbours.

    Attributes
    ----------
    follows : bool
        Whether it is followed which operators make a tensor.
    """

    def __init__(self, choices: Choices, *, keeps: bool, neighbours: Neighbours | None) -> None:
        self.keeps, self.neighbours = keeps, neighbours
        self.follows = not keeps or neighbours is not None
        self.scope = Scope()
        self._choices = choices

    def step(self, operators: Sequence[Varying], takes: Sequence[tuple[Step, Varying]], kept: Varying = NEVER) -> Step:
        """Note operators that count in the same networks, and the steps whose results they take."""
        sources = tuple((source, taken) for source, taken in takes if source is not NOTHING)
        step = Step(tuple(operators), sources if self.follows else (), ALWAYS if self.keeps else kept)
        self.scope.steps.append(step)
        return step

    def either(self, cases: Mapping[Any, Step], chosen: Mapping[Any, Varying]) -> Step:
        """Note a step that takes the result of the step of the case that is chosen."""
        return self.step((), [(step, chosen[value]) for value, step in cases.items()]) if self.follows else NOTHING

    def flow(self, flows: Varying, given: Sequence[Memory]) -> list[Memory]:
        """Note what a module or function does for all choices to some memory; return the memory of its results."""
        if not self.follows:
            self.step([self._choices.combine([flows], lambda flow: flow.operators)], ())
            return []
        sources = [memory.step for memory in given]
        steps = steps_of(self._choices, flows, given, self.neighbours, keeps=self.keeps)
        self.scope.steps += steps.all
        for memory, source, writer, makers in zip(given, sources, steps.given, steps.given_makers, strict=True):
            if writer is not source:
                self.write(memory, writer, makers)
        known = {-1 - place: memory for place, memory in enumerate(given)}
        for place, (writer, makers, shared) in enumerate(zip(steps.results, steps.makers, steps.memory, strict=True)):
            same = {known[other]: where for other, where in shared.items() if other != place}
            always = [memory for memory, where in same.items() if False not in where.values]
            known[place] = always[0] if always else Memory(writer, makers=makers)
            for memory, where in same.items() if not always else ():
                known[place].is_same(self._choices, memory, where)
        return [known[place] for place in range(len(steps.results))]

    def replay(self, part: Part, given: Sequence[Memory]) -> dict[Memory, Memory]:
        """Note the steps of a part on other memory; return what stands for the memory that the part knows."""
        steps = {NOTHING: NOTHING, UNKNOWN: UNKNOWN}
        steps.update(zip(part.starts, [memory.step for memory in given], strict=True))

        def now(step: Step) -> Step:
            if step not in steps and self.follows:
                raise TooManyChoicesError("The networks cannot be followed: a module takes what another one has kept.")
            return steps.get(step, NOTHING)

        for step in part.steps:
            steps[step] = self.step(step.operators, [(now(source), taken) for source, taken in step.takes], step.kept)
        memories = dict(zip(part.given, given, strict=True))
        for start, (then, memory) in zip(part.starts, memories.items(), strict=True):
            if then.step is not start:
                self.write(memory, now(then.step), then.makers)
        for memory in part.links:
            if memory not in memories:
                memories[memory] = Memory(now(memory.step), makers=memory.makers)
        for memory, links in part.links.items():
            for other, same in links.items():
                memories[memory].is_same(self._choices, memories[other], same)
        return memories

    def write(self, memory: Memory, step: Step, makers: Varying) -> None:
        """Note that a step writes to memory, and to what is the same for some choices."""
        self.scope.write(memory, step, makers)
        for other, same in memory.links(self._choices).items():
            if same is None:
                self.scope.write(other, UNKNOWN, NOBODY)
            else:
                differs = self._choices.combine([same], operator.not_)
                changed = self._choices.switch(same, {True: makers, False: other.makers})
                self.scope.write(other, self.step((), [(step, same), (other.step, differs)]), changed)

    @contextlib.contextmanager
    def aside(self) -> Iterator[Scope]:
        """Note steps in a separate list; what they write to memory is undone if it fails."""
        outer, self.scope = self.scope, Scope()
        try:
            yield self.scope
        except BaseException:
            self.scope.undo()
            raise
        finally:
            self.scope = outer

    def select(self, choice: Varying, chosen: Mapping[Any, Varying], cases: Mapping[Any, Sequence[Step]]) -> None:
        """Note the steps of all cases of a choice; they count where theirs is chosen."""
        nothing = dict.fromkeys(cases, Varying.constant(()))
        if not self.follows:
            noted: dict[tuple[str, ...], dict[Any, Varying]] = {}
            for value, steps in cases.items():
                for ops in self._choices.joined([ops for step in steps for ops in step.operators]):
                    noted.setdefault(ops.labels, {})[value] = ops
            self.step([self._choices.switch(choice, {**nothing, **found}) for found in noted.values()], ())
            return
        for value, steps in cases.items():
            for step in steps:
                step.operators = tuple(self._choices.switch(choice, {**nothing, value: ops}) for ops in step.operators)
                step.kept = both(self._choices, chosen[value], step.kept)
            self.scope.steps += steps
