# SPDX-License-Identifier: Apache-2.0
"""`Flow`: the operators of a module or function, and the tensors that they take and write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nni_latency.operators._graph import TracedOperator
from nni_latency.operators._inputs import memory_of, tensors_in
from nni_latency.operators._op_spec import OpSpec


@dataclass(frozen=True)
class Flow:
    """Operators of a module or function, and the tensors that they take and write. Immutable.

    A place is the index of an operator, or ``-1 - i`` for the tensor `i` of those that were given.

    Parameters
    ----------
    operators : tuple of OpSpec
        In order of execution.
    sources : tuple of tuple of int
        Places of the tensors that every operator takes, one for each tensor.
    results : tuple of (int or None)
        Places that made the tensors of the result; None for a tensor that no operator made.
    memory : tuple of int
        What the tensors of the result share memory with: the place of a tensor that was given, or else the index of the
        first such tensor of the result.
    given : tuple of int
        Places that wrote last to the tensors that were given: an operator, or the tensor itself.
    lost : tuple of int
        Places whose use cannot be followed.

    Examples
    --------
    >>> relu, exp = (OpSpec.of(kind, [(1, 8)]) for kind in ("relu", "exp"))
    >>> flow = Flow((relu, exp), ((-1,), (-2,)), (0,), (0,), (-1, -2), ())
    >>> sorted(flow.reached(flow.results))
    [-1, 0]
    """

    operators: tuple[OpSpec, ...]
    sources: tuple[tuple[int, ...], ...]
    results: tuple[int | None, ...]
    memory: tuple[int, ...]
    given: tuple[int, ...]
    lost: tuple[int, ...]

    def reached(self, ends: Iterable[int | None]) -> frozenset[int]:
        """Return the places that some depend on, these included."""
        left = [place for place in ends if place is not None]
        found = set(left)
        while left:
            place = left.pop()
            new = set(self.sources[place]) - found if place >= 0 else set()
            found |= new
            left += new
        return frozenset(found)


class Ledger:
    """Operators recorded at one granularity, and the writer of each piece of memory.

    Parameters
    ----------
    given : sequence of Tensor, default=()
        Tensors that are sources as operators are, by places below zero as in `Flow`.
    """

    def __init__(self, given: Sequence[torch.Tensor] = ()) -> None:
        self.operators: list[TracedOperator] = []
        self._given = given
        self._writers = {memory_of(tensor): -1 - number for number, tensor in enumerate(given)}
        # The tensors are kept alive, so that memory identifiers are not reused.
        self._kept: list[Any] = []
        # Operators whose use cannot be followed.
        self._lost: list[int] = []

    def append(
        self,
        name: str,
        op: OpSpec,
        sources: Sequence[int],
        result: Any,
        last_call: int,
        parameters: int,
        within: Any = (),
    ) -> None:
        """Record an operator; ``within`` are the results of its calls, which may be in place."""
        for tensor in tensors_in([within, result]):
            self._writers[memory_of(tensor)] = len(self.operators)
            self._kept.append(tensor)
        if not any(True for _ in tensors_in(result)):
            self._lost.append(len(self.operators))
        distinct = tuple(dict.fromkeys(sources))
        self.operators.append(
            TracedOperator(name, op, distinct, last_call, parameters=parameters, reads=tuple(sources))
        )

    def sources(self, arguments: Any) -> list[int]:
        """Return the writer of each tensor in some arguments."""
        known = (self._writers.get(memory_of(tensor)) for tensor in tensors_in(arguments))
        return [number for number in known if number is not None]

    def returned(self, result: Any, inputs: Any) -> tuple[int, ...] | None:
        """Return the operators that made the result of the network, and those that may have; None if it is unknown."""
        found = self.sources(result)
        own = set(map(memory_of, tensors_in(inputs)))
        is_known = found or any(memory_of(tensor) in own for tensor in tensors_in(result))
        return tuple(dict.fromkeys([*found, *self._lost])) if is_known else None

    def lose_track(self, arguments: Any) -> None:
        """Note that the arguments are used in a way that is not followed, such as in an assignment to a part of one."""
        self._lost += self.sources(arguments)

    def flow(self, result: Any) -> Flow:
        """Return what was recorded, given what the module or function returned."""
        given, made = (list(map(memory_of, some)) for some in (self._given, tensors_in(result)))
        return Flow(
            tuple(item.op for item in self.operators),
            tuple(item.reads for item in self.operators),
            tuple(map(self._writers.get, made)),
            tuple(-1 - given.index(item) if item in given else made.index(item) for item in made),
            tuple(self._writers[item] for item in given),
            tuple(dict.fromkeys(self._lost)),
        )


def flow_of_call(op: OpSpec | None, arguments: Any, result: Any, given: Sequence[torch.Tensor]) -> Flow:
    """Return the flow of one call of a function; without a description, it is no operator."""
    ledger = Ledger(given)
    if op is not None:
        ledger.append(op.kind, op, ledger.sources(arguments), result, 0, 0)
    elif result is None:
        ledger.lose_track(arguments)
    return ledger.flow(result)
