# SPDX-License-Identifier: Apache-2.0
"""Visits of a profile: networks, and operators alone on reused inputs or inputs from memory."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from nni_latency.datasets import BatchedNetworks
from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.measurement import Failure, Protocol, Record, Subject, flush_size
from nni_latency.operators import OpSpec, TracedOperator, build_operator, given_shapes, work_of
from nni_latency.profiling._models import ProfiledModel, structure_of

#: Modes of an operator alone: with one input and its weights in the cache, or cycling through copies of both that
#: exceed the cache.
WAYS = ("reused", "memory")

#: Numbers of runs of an operator per run of its subject: the smallest that reaches the minimum duration [s]. The set is
#: small, so that the subject stays the same when the operator is timed again inside its model.
_RUNS, _LONG = (1, 4, 16), 0.01

#: Smallest and largest number of copies of an operator and its inputs.
_FEWEST, _MOST = 2, 256

Made = Callable[[], tuple[nn.Module, list[Any]]]


class ProfileSchedule(BatchedNetworks):
    """Batches of subjects, each visited in several rounds.

    A campaign also holds earlier measurements of the same platform and batch size. They neither count nor use the
    budget.

    Parameters
    ----------
    subjects : sequence of Subject
        Networks or operators, in the order of measurement.
    protocol : Protocol
        Measurement protocol; its budget ends the campaign, and its rounds limit the visits of a subject.
    weights : mapping of str to int
        Number of elements of each subject by key.
    n_calls : mapping of str to int, optional
        Number of calls of each network with timed calls. A network with another number is recorded as failed.
    required : bool, default=True
        Whether to raise if no subject can be run.
    """

    kind = "profile"

    def __init__(
        self,
        subjects: Sequence[Subject],
        protocol: Protocol,
        *,
        weights: Mapping[str, int],
        n_calls: Mapping[str, int] | None = None,
        required: bool = True,
    ) -> None:
        super().__init__(subjects, protocol, anchors=(), weights=weights, calls=n_calls is not None)
        self.n_calls = dict(n_calls or {})
        self._required = required

    def observe(self, records: Sequence[Record]) -> None:
        """Add the records of one round that belong to its subjects."""
        own = [record for record in records if record.subjects[0] in self.networks]
        if own:
            super().observe(own)
        self.next = records[0].round + 1

    def fail(self, failure: Failure) -> None:
        """Exclude a subject."""
        if failure.subject in self.networks:
            super().fail(failure)

    def sees_calls(self, keys: Sequence[str]) -> bool:
        """Return whether calls are timed, in every visit of a network."""
        return self.calls

    def is_done(self, key: str) -> bool:
        """Whether a subject needs no further visit, because it is precise enough or failed."""
        return not self._wants(key)

    def _wants(self, key: str) -> bool:
        return len(self.visits.get(key, ())) < self.protocol.rounds and super()._wants(key)

    def _check(self) -> None:
        if self._required:
            super()._check()


def runs_for(seconds: float) -> int:
    """Return the number of runs of an operator of a given duration per run of its subject.

    >>> runs_for(0.8), runs_for(0.004), runs_for(0.00002)
    (1, 4, 16)
    """
    return next((runs for runs in _RUNS if runs * seconds >= _LONG), _RUNS[-1])


def alone_subject(item: TracedOperator, model: ProfiledModel, way: str, runs: int = _RUNS[-1]) -> Subject:
    """Return the subject that measures an operator alone: a loop, whose time is divided by the number of its runs.

    A meter cannot separate a cache flush between two runs from the operator. Instead, the loop cycles through copies of
    the operator and of its inputs, which evict each other from the caches; a loop continues where the previous one
    ended.

    Parameters
    ----------
    item : TracedOperator
        The operator and its place in the network.
    model : ProfiledModel
        The network that contains it. A leaf module that cannot be built from its key is taken from the network with its
        inputs.
    way : {"reused", "memory"}
        Whether to reuse one input, or to take inputs and weights from memory.
    runs : int, default=16
        Number of runs of the operator per run of the subject.

    Returns
    -------
    Subject
        Its `specification` contains the number of ``runs`` of the operator per run, and of ``copies``.

    Raises
    ------
    InvalidValueError
        If the operator can neither be built from its key nor taken from the network.
    """
    op = item.op
    copies = copies_of(op) if way == "memory" else 1
    specification = {
        "operator": op.op_key,
        "way": way,
        "runs": runs,
        "copies": copies,
        "numbers": size_of(op) * copies,
    }
    return Subject(
        f"{way} {runs}/{copies} {op.op_key}",
        partial(_make_loop, _maker(item, model), runs, copies),
        (1,),
        "operator",
        op.op_key,
        specification,
    )


def copies_of(op: OpSpec) -> int:
    """Return the number of copies of an operator whose inputs and weights exceed the caches."""
    cache = flush_size() // 2
    return max(_FEWEST, min(_MOST, math.ceil(cache / (4 * size_of(op)))))


def size_of(op: OpSpec) -> int:
    """Return the number of elements that an operator reads: inputs and weights."""
    return max(1, sum(math.prod(shape) for shape in given_shapes(op)) + work_of(op)[0].params)


def _maker(item: TracedOperator, model: ProfiledModel) -> Made:
    """Return the builder of an operator and its arguments."""
    try:
        with torch.device("meta"):
            build_operator(item.op)
    except UnknownNameError as error:
        if item.name not in dict(structure_of(model.build).named_modules()):
            raise InvalidValueError(str(error)) from error
        return partial(_taken, model.build, model.inputs, item.name)
    return partial(_built, item.op)


def _built(op: OpSpec) -> tuple[nn.Module, list[Any]]:
    """Build an operator from its key, with random inputs.

    One that works in place writes into its input again and again: zeros, which stay what they are.
    """
    generator, dtype = torch.Generator().manual_seed(0), getattr(torch, op.dtype)
    made = [torch.randn(shape, generator=generator).to(dtype) for shape in given_shapes(op)]
    return build_operator(op), [torch.zeros_like(tensor) for tensor in made] if op.get("inplace") else made


def _taken(build: Callable[[], nn.Module], inputs: Any, name: str) -> tuple[nn.Module, list[Any]]:
    """Take a leaf module from its network, with the arguments of its first call there."""
    network = build().eval()
    leaf, found = network.get_submodule(name), list[Any]()

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not found:
            found.append(_Arguments(args, kwargs))

    handle = leaf.register_forward_pre_hook(note, with_kwargs=True)
    try:
        with torch.inference_mode():
            network(*_example(inputs), **getattr(inputs, "kwargs", {}))
    finally:
        handle.remove()
    return _Called(leaf, found[0]), [tensor.clone() for tensor in found[0].tensors]


def _example(inputs: Any) -> tuple[Any, ...]:
    if isinstance(inputs, tuple):
        return (torch.randn(*inputs, generator=torch.Generator().manual_seed(0)),)
    return tuple(inputs.args)


class _Arguments:
    """Arguments of a call, with the numbers of tensors in their places."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.tensors: list[torch.Tensor] = []
        self.args = [self._place(item) for item in args]
        self.kwargs = {name: self._place(item) for name, item in kwargs.items()}

    def _place(self, item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return (False, item)
        self.tensors.append(item)
        return (True, len(self.tensors) - 1)


class _Called(nn.Module):
    """Calls a leaf module as its network did."""

    def __init__(self, leaf: nn.Module, arguments: _Arguments) -> None:
        super().__init__()
        self.leaf, self._args, self._kwargs = leaf, arguments.args, arguments.kwargs

    def forward(self, *tensors: torch.Tensor) -> Any:
        def fill(item: tuple[bool, Any]) -> Any:
            is_tensor, value = item
            return tensors[value] if is_tensor else value

        return self.leaf(*map(fill, self._args), **{name: fill(item) for name, item in self._kwargs.items()})


def _make_loop(made: Made, runs: int, copies: int) -> nn.Module:
    operator, inputs = made()
    return _Loop(operator, inputs, runs, copies)


class _Loop(nn.Module):
    """Runs copies of an operator in turns, each on a separate input.

    Parameters
    ----------
    operator : nn.Module
        Operator with positional inputs.
    inputs : sequence of Tensor
        Inputs of the operator.
    runs : int
        Runs of the operator per run of the loop.
    copies : int
        Number of copies of operator and inputs.
    """

    def __init__(self, operator: nn.Module, inputs: list[torch.Tensor], runs: int, copies: int) -> None:
        super().__init__()
        self.operators = nn.ModuleList([operator, *(copy.deepcopy(operator) for _ in range(copies - 1))])
        self._runs, self._count = runs, len(inputs)
        self._next = 0
        self._turns: list[tuple[nn.Module, list[torch.Tensor]]] = []
        for number in range(copies):
            for place, tensor in enumerate(inputs):
                self.register_buffer(f"input{number}_{place}", tensor.clone() if number else tensor)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        turns = self._current_turns()
        for run in range(self._next, self._next + self._runs):
            operator, inputs = turns[run % len(turns)]
            operator(*inputs)
        self._next = (self._next + self._runs) % len(turns)
        return given

    def _current_turns(self) -> list[tuple[nn.Module, list[torch.Tensor]]]:
        """Return the copies, each with its input; looked up anew once a runtime has moved them."""
        if not (self._turns and self._count and self._turns[0][1][0] is self.get_buffer("input0_0")):
            self._turns = [
                (operator, [self.get_buffer(f"input{number}_{place}") for place in range(self._count)])
                for number, operator in enumerate(self.operators)
            ]
        return self._turns
