# SPDX-License-Identifier: Apache-2.0
"""`PointSchedule`: batch sizes that fit into memory and budget, and blocks timed as inside a network.

Inside a network the input of a block has just been computed, and its weights were last used a whole forward pass ago.
Therefore a feeder runs before every block. It writes as much memory as a small network touches between two visits of a
block, which flushes small caches and leaves large ones in the state they would have; runs a twin of the block, because
a network executes the code of its operators repeatedly; and recomputes the block's input.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from nni_latency.errors import MeasurementError
from nni_latency.measurement import (
    NETWORK_TRAFFIC,
    Chain,
    Failure,
    Kind,
    Measurement,
    Protocol,
    Record,
    Schedule,
    Subject,
    Summary,
    is_narrow,
    quantile,
)
from nni_latency.micro_benchmarks._blocks import Block
from nni_latency.operators import Inputs, OpSpec, capture_operators
from nni_latency.units import format_seconds

#: A block and the batch sizes at which to measure it, smallest first.
Series = tuple[Block, tuple[int, ...]]

#: Longest run of one point, and total time of the search for points, as shares of the budget.
_LONGEST, _FINDING = 6e-4, 0.4

#: Share of the free memory that one run may use.
_MEMORY = 0.5

#: Fewest rounds in which a point is measured.
_FEWEST_ROUNDS = 3

#: Prefix of the key of a feeder, followed by the key of its block.
FEEDER = "feeder of "


@dataclass(frozen=True)
class Point:
    """One block at one batch size, with the index of the block."""

    number: int
    block: Block
    batch: int

    @property
    def key(self) -> str:
        """Unique name of the point."""
        return f"{self.block.name}-b{self.batch}"

    @cached_property
    def ops(self) -> tuple[OpSpec, ...]:
        """The operators that the block executes."""
        with torch.device("meta"):
            module, inputs = self.block.build(), torch.empty(*self.block.input_shape(self.batch))
        return tuple(op for _, op in capture_operators(module, inputs, by="graph"))

    @cached_property
    def chain(self) -> Chain:
        """The subjects to run: the feeder, then the block."""
        specification = {"block": self.block.name, "batch": self.batch, "ops": [op.as_dict() for op in self.ops]}
        return fed_chain(self.key, self.block.build, [self.block.input_shape(self.batch)], specification)

    @property
    def memory(self) -> int:
        """Lower bound of the memory of a run: input and output of its largest operator [byte]."""
        return max(8 * sum(math.prod(shape) for shape in op.input_shapes) for op in self.ops)


class PointSchedule(Schedule):
    """Increasing batch sizes of every block, until memory or time end its series; then rounds over all points.

    Parameters
    ----------
    series : sequence of (Block, tuple of int)
        Blocks, each with its batch sizes, smallest first.
    protocol : Protocol
        Measuring protocol.
    free_memory : callable
        Returns the memory that is currently free [byte]; 0 if unknown.
    """

    kind = "micro-benchmark"
    warm_up = 0
    counts_preparation = True
    what = "blocks"

    def __init__(self, series: Sequence[Series], protocol: Protocol, free_memory: Callable[[], int]) -> None:
        super().__init__(protocol, isolated=False)
        self._free_memory = free_memory
        points = [Point(number, block, batch) for number, (block, batches) in enumerate(series) for batch in batches]
        # All blocks at their smallest batch first, so that a small budget still covers every kind.
        points.sort(key=lambda point: list(series[point.number][1]).index(point.batch))
        self._points = {point.key: point for point in points}
        #: Points that fit, each with the time of its first run [s].
        self.found: dict[str, float] = {}
        #: By point, the round and the time [s] of every visit.
        self.samples: dict[str, list[tuple[int, float]]] = {}
        #: By index of a block, the point that ended its series, and the reason.
        self.ended: dict[int, tuple[Point, str]] = {}
        self.drift: list[float] = []

    @property
    def reasons(self) -> dict[str, str]:
        """Reasons why no larger batch size was measured, by name of the block."""
        return {point.block.name: f"batch {point.batch}: {reason}" for point, reason in self.ended.values()}

    @property
    def share(self) -> float:
        """Share of the budget or of the rounds that was spent; rounds that tried a point do not count."""
        return max(len(self.drift) / self.protocol.rounds, self.spent / self.protocol.time_budget)

    @property
    def unsettled(self) -> int:
        """Number of points that need more visits."""
        return len(self._wanted())

    def next_round(self) -> list[Chain]:
        """Return the next point to try; once all are tried, the points that need more visits, in a new order.

        Raises
        ------
        MeasurementError
            If no block can be executed.
        """
        while (point := self._untried()) is not None:
            reason = self._reason_against(point)
            if not reason:
                return [point.chain]
            self.ended[point.number] = (point, reason)
        if not self.found:
            reason = next(iter(self.reasons.values()), "there was no time")
            raise MeasurementError(f"None of the blocks can be run: {reason}.")
        if len(self.drift) >= _FEWEST_ROUNDS and (self.share >= 1 or not self._wanted()):
            return []
        wanted = self._wanted() or list(self.found)
        random.Random(f"{self.protocol.seed}/{len(self.drift)}").shuffle(wanted)
        return [self._points[key].chain for key in wanted]

    def planned(self) -> list[list[Chain]]:
        """Return all points that may be tried."""
        return [[point.chain for point in self._points.values() if point.number not in self.ended]]

    def observe(self, records: Sequence[Record]) -> None:
        """Add the first run of a point, or a round."""
        super().observe(records)
        times = {record.subjects[-1]: quantile([run[-1] for run in record.parts], 0.5) for record in records}
        ((key, seconds), *others) = times.items()
        if key not in self.found and not others:
            # The first run is cold in every respect and only serves the choice of batch sizes.
            self.found[key] = seconds
            return
        for key, seconds in times.items():
            self.samples.setdefault(key, []).append((len(self.drift), seconds))
        self.drift.append(quantile([record.reference for record in records], 0.5))

    def fail(self, failure: Failure) -> None:
        """End the series of a block, and exclude the point that failed."""
        super().fail(failure)
        point = self._points[failure.subject.removeprefix(FEEDER)]
        self.ended[point.number] = (point, failure.reason)

    def discard(self, subject: str) -> None:
        """Discard the runs of a point that failed."""
        key = subject.removeprefix(FEEDER)
        self.found.pop(key, None)
        self.samples.pop(key, None)

    def summaries(self) -> list[tuple[Point, Summary]]:
        """Return the summary of every point, corrected for drift, by block and batch size."""
        level, found = self._level(), []
        for key in sorted(self.samples, key=lambda key: (self._points[key].number, self._points[key].batch)):
            taken = tuple(seconds * level / self.drift[index] for index, seconds in self.samples[key])
            found.append((self._points[key], Measurement(taken, self.protocol).summary))
        return found

    def _level(self) -> float:
        """Return the speed to which samples are normalised [s of the reference operator], the median over samples.

        Late rounds have few points, those with a large spread, and would otherwise determine the level of all others.
        """
        return quantile([self.drift[index] for samples in self.samples.values() for index, _ in samples], 0.5)

    def _untried(self) -> Point | None:
        return next(
            (
                point
                for key, point in self._points.items()
                if key not in self.found and key not in self.failures and point.number not in self.ended
            ),
            None,
        )

    def _reason_against(self, point: Point) -> str:
        """Return the reason not to try a point; empty if there is none."""
        if self.spent > _FINDING * self.protocol.time_budget:
            return "the time budget is spent on smaller ones"
        free = self._free_memory()
        if free and point.memory > _MEMORY * free:
            return f"it needs {point.memory / 2**30:.1f} GiB at least, and {free / 2**30:.1f} GiB are free"
        longest = _LONGEST * self.protocol.time_budget
        smaller = [(self._points[key], seconds) for key, seconds in self.found.items()]
        expected = max(
            (s * point.batch / other.batch for other, s in smaller if other.number == point.number), default=0
        )
        if expected > longest:
            return f"a run would take {format_seconds(expected)}, more than the {format_seconds(longest)} for one point"
        return ""

    def _wanted(self) -> list[str]:
        """Return the points that need more visits."""
        return [key for key in self.found if not self._is_settled(key)]

    def _is_settled(self, key: str) -> bool:
        samples = [seconds for _, seconds in self.samples.get(key, [])]
        return len(samples) >= _FEWEST_ROUNDS and is_narrow(samples, self.protocol)


class Feeder(nn.Module):
    """Brings the caches to their state inside a network, and produces inputs; ignores its own input.

    Parameters
    ----------
    shapes : sequence of sequence of int
        Shapes of the inputs, batch first.
    twin : nn.Module
        A copy of the block to time, with separate weights.
    """

    #: It prepares the timed block, and runs in torch on every runtime: a compiler would eliminate it.
    native = True

    def __init__(self, shapes: Sequence[Sequence[int]], twin: nn.Module) -> None:
        super().__init__()
        self.twin = twin
        self.batch = shapes[0][0]
        self.names = [f"sample{place}" for place in range(len(shapes))]
        for name, shape in zip(self.names, shapes, strict=True):
            self.register_buffer(name, torch.randn(1, *shape[1:]))

    def forward(self, _: torch.Tensor) -> Any:
        """Return the inputs, in the memory layout of the samples: a tensor, or a tuple of several."""
        sample = self.get_buffer(self.names[0])
        torch.full((NETWORK_TRAFFIC // sample.element_size(),), 1.0, dtype=sample.dtype, device=sample.device)
        self.twin(*self._inputs())
        made = self._inputs()
        return made[0] if len(made) == 1 else made

    def _inputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(torch.cat([self.get_buffer(name)] * self.batch) for name in self.names)


def fed_chain(
    key: str,
    build: Callable[[], nn.Module],
    shapes: Sequence[Sequence[int]],
    specification: Mapping[str, Any],
    kind: Kind = "block",
) -> Chain:
    """Return the subjects that a bench runs to measure a block: its feeder, then the block.

    Parameters
    ----------
    key : str
        Key of the block.
    build : callable
        Factory of the block, which takes its inputs as separate arguments.
    shapes : sequence of sequence of int
        Shapes of its inputs, batch first.
    specification : mapping
        Specification of the block.
    kind : {"block", "kernel", "operator"}, default="block"
        Kind of the subject in a store.
    """
    plain = tuple(tuple(shape) for shape in shapes)
    return (
        Subject(f"{FEEDER}{key}", partial(_feeder, build, plain), (1, 1), "block"),
        Subject(key, build, inputs_of(plain), kind, key, specification),
    )


def inputs_of(shapes: tuple[tuple[int, ...], ...]) -> Any:
    """Return the inputs of a subject: the shape of a single one, or tensors without data."""
    return shapes[0] if len(shapes) == 1 else Inputs(tuple(torch.empty(shape, device="meta") for shape in shapes))


def _feeder(build: Callable[[], nn.Module], shapes: Sequence[Sequence[int]]) -> nn.Module:
    return Feeder(shapes, build())
