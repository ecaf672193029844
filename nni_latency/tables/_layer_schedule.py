# SPDX-License-Identifier: Apache-2.0
"""`LayerSchedule` and `Samples`: rounds of whole networks that cover every candidate, and their measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nni_latency.errors import MeasurementError
from nni_latency.measurement import (
    Chain,
    Failure,
    Protocol,
    Record,
    Schedule,
    Subject,
    balanced_round,
    is_narrow,
    light_network,
    quantile,
)
from nni_latency.tables._plan import MeasurePlan

#: Degree to which the networks of successive rounds are sorted by cost: random, sorted, and half sorted.
ALIGNMENTS = (0.0, 1.0, 0.5)

#: Rounds between updates of the intervals.
_LOOK_EVERY = 4

#: A network, an index per layer.
Network = tuple[int, ...]

#: A candidate is also settled if the half-width of its interval is negligible relative to the latency of a median
#: network.
NEGLIGIBLE = 1e-4


@dataclass(frozen=True)
class Round:
    """The networks of one round with their measurements."""

    networks: tuple[Network, ...]
    visits: tuple[Record, ...]


class LayerSchedule(Schedule):
    """Balanced rounds over the candidates of a plan, until every interval is narrow.

    Parameters
    ----------
    plan : MeasurePlan
        Plan to measure.
    protocol, isolated
        As for `Schedule`.
    """

    kind = "layers"

    def __init__(self, plan: MeasurePlan, protocol: Protocol, *, isolated: bool = True) -> None:
        super().__init__(protocol, isolated=isolated)
        self.plan = plan
        self.references = [plan.indices_of(reference) for reference in plan.references]
        self.samples = Samples(plan.sizes)
        self._subjects = candidate_subjects(plan)
        self._places = {
            subject.key: (layer, choice)
            for layer, subjects in enumerate(self._subjects)
            for choice, subject in enumerate(subjects)
        }
        self._available = [list(range(size)) for size in plan.sizes]
        self._sought = [list(range(size)) for size in plan.sizes]

    @property
    def failed(self) -> dict[tuple[int, int], str]:
        """Reasons of failures, by layer and index of the candidate."""
        return {self._places[key]: reason for key, reason in self.failures.items()}

    @property
    def unsettled(self) -> int:
        """Number of candidates that need more samples."""
        return sum(map(len, self._wanted()))

    def next_round(self) -> list[Chain]:
        """Return the networks of the next round; empty once all candidates are settled or the budget is spent."""
        if self.over:
            return []
        full = self.rounds_in[self.process] < self.fewest
        return [self._chain(network) for network in self._networks(self._available if full else self._wanted())]

    def observe(self, records: Sequence[Record]) -> None:
        """Add one round."""
        super().observe(records)
        networks = tuple(tuple(self._places[key][1] for key in record.subjects) for record in records)
        self.samples.add(Round(networks, tuple(records)))
        if self.rounds % _LOOK_EVERY == 0:
            self._sought = self.samples.unsettled(self._available, self.protocol)

    def fail(self, failure: Failure) -> None:
        """Exclude a candidate from further rounds.

        Raises
        ------
        MeasurementError
            If its layer has no other candidate, or is fixed.
        """
        super().fail(failure)
        layer, choice = self._places[failure.subject]
        left, planned = self._available[layer], self.plan.layers[layer]
        left.remove(choice)
        default = not planned.searched and list(planned.candidates)[choice] == planned.default
        if not left or default:
            what = f"the fixed layer {planned.name!r}" if default else f"any candidate of layer {planned.name!r}"
            raise MeasurementError(f"Cannot run {what}: {failure.reason}.")

    def _wanted(self) -> list[list[int]]:
        """Return by layer the candidates that need more samples."""
        return [
            [choice for choice in choices if choice in left]
            for choices, left in zip(self._sought, self._available, strict=True)
        ]

    def _chain(self, network: Network) -> Chain:
        return tuple(subjects[choice] for subjects, choice in zip(self._subjects, network, strict=True))

    def _networks(self, wanted: list[list[int]]) -> list[Network]:
        """Draw the next round: the wanted candidates, one light network, and the reference networks."""
        pools = [choices or available for choices, available in zip(wanted, self._available, strict=True)]
        seed, sizes = self.protocol.seed, self.plan.sizes
        if not self.rounds or len(sizes) == 1:
            drawn = balanced_round(sizes, self.next, seed, wanted=pools)
        else:
            costs, alignment = self.samples.costs(), ALIGNMENTS[self.next % len(ALIGNMENTS)]
            drawn = balanced_round(sizes, self.next, seed, wanted=pools, costs=costs, alignment=alignment)
            drawn.append(light_network(self._available, costs, self.next, seed))
        return self._with_references(drawn)

    def _with_references(self, drawn: list[Network]) -> list[Network]:
        """Distribute the reference networks evenly over a round, so that they represent all of it."""
        references = [item for item in dict.fromkeys(self.references) if self._can_run(item) and item not in drawn]
        for number, reference in enumerate(references):
            drawn.insert((2 * number + 1) * len(drawn) // (2 * len(references)), reference)
        return drawn

    def _can_run(self, network: Network) -> bool:
        return all(choice in left for choice, left in zip(network, self._available, strict=True))


def candidate_subjects(plan: MeasurePlan) -> list[list[Subject]]:
    """Return the candidates of a plan by layer, as subjects of a bench."""
    return [
        [
            Subject(
                f"{layer.name}/{name}",
                candidate.build,
                plan.input_shape if not index else tuple(candidate.op.input_shapes[0]),
                "candidate",
                candidate.op.op_key,
                {"op": candidate.op.as_dict(), "layer": layer.name, "choice": name},
            )
            for name, candidate in layer.candidates.items()
        ]
        for index, layer in enumerate(plan.layers)
    ]


@dataclass(frozen=True)
class Runs:
    """All timed runs as arrays, in chronological order.

    Parameters
    ----------
    networks : ndarray of int of shape (n_runs, n_layers)
        The network of each run.
    parts : ndarray of shape (n_runs, n_layers)
        Time of every layer [s].
    whole : ndarray of shape (n_runs,)
        Time of the run of the whole network without marks [s].
    visits : ndarray of int of shape (n_runs,)
        Index of the visit of each run.
    reference : ndarray of shape (n_visits,)
        Logarithm of the time of the reference operator before every visit [s].
    rounds : ndarray of int of shape (n_visits,)
        Index of the round of each visit.
    processes : ndarray of int of shape (n_visits,)
        Number of the worker process of each visit.
    """

    networks: NDArray[np.int64]
    parts: NDArray[np.float64]
    whole: NDArray[np.float64]
    visits: NDArray[np.int64]
    reference: NDArray[np.float64]
    rounds: NDArray[np.int64]
    processes: NDArray[np.int64]

    @property
    def first(self) -> NDArray[np.int64]:
        """Index of the first run of each visit, (n_visits,)."""
        return np.searchsorted(self.visits, np.arange(len(self.reference)))

    @cached_property
    def _distinct(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        return np.unique(self.networks, axis=0, return_inverse=True, return_counts=True)

    @property
    def distinct(self) -> NDArray[np.int64]:
        """The networks without repetition, (n_distinct, n_layers)."""
        return self._distinct[0]

    @property
    def ids(self) -> NDArray[np.int64]:
        """Index of the distinct network of each run, (n_runs,)."""
        return self._distinct[1].ravel()

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of runs of each distinct network, (n_distinct,)."""
        return self._distinct[2]

    def of_rounds(self, remainder: int) -> Runs:
        """Return the runs of the rounds whose number modulo 2 is `remainder`."""
        return self.of_visits(self.rounds % 2 == remainder)

    def of_visits(self, taken: NDArray[np.bool_]) -> Runs:
        """Return the runs of some visits, given whether each is one of them, (n_visits,)."""
        runs = taken[self.visits]
        return Runs(
            self.networks[runs],
            self.parts[runs],
            self.whole[runs],
            (np.cumsum(taken) - 1)[self.visits[runs]],
            self.reference[taken],
            self.rounds[taken],
            self.processes[taken],
        )


class Samples:
    """All measurements of the rounds.

    Statistics for the choice of further rounds are relative to the median time of the reference operator in the same
    round, which corrects for the machine's speed.

    Parameters
    ----------
    sizes : sequence of int
        Number of candidates, by layer.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._ratios: list[list[list[float]]] = [[[] for _ in range(size)] for size in sizes]
        self._wholes: list[float] = []
        self._rounds: list[Round] = []
        #: Median time of the reference operator in every round [s].
        self.drift: list[float] = []

    def add(self, added: Round) -> None:
        """Add one round."""
        reference = quantile([visit.reference for visit in added.visits], 0.5)
        self.drift.append(reference)
        self._rounds.append(added)
        for network, visit in zip(added.networks, added.visits, strict=True):
            self._wholes += [seconds / reference for seconds in visit.whole]
            for times in visit.parts or [[seconds] for seconds in visit.whole]:
                for layer, (choice, seconds) in enumerate(zip(network, times, strict=True)):
                    self._ratios[layer][choice].append(seconds / reference)

    @property
    def rounds(self) -> tuple[Round, ...]:
        """All rounds that were added."""
        return tuple(self._rounds)

    @property
    def runs(self) -> Runs:
        """All runs as arrays."""
        visits = [
            (index, network, visit)
            for index, item in enumerate(self._rounds)
            for network, visit in zip(item.networks, item.visits, strict=True)
        ]
        rows = [
            (place, network, parts, whole)
            for place, (_, network, visit) in enumerate(visits)
            # Of a divided network there may be fewer runs of the whole than of the parts: its time was spent.
            for parts, whole in zip(visit.parts or [[whole] for whole in visit.whole], visit.whole, strict=False)
        ]
        places, networks, parts, wholes = zip(*rows, strict=True)
        return Runs(
            np.array(networks),
            np.array(parts),
            np.array(wholes),
            np.array(places),
            np.log([visit.reference for _, _, visit in visits]),
            np.array([index for index, _, _ in visits]),
            np.array([visit.process for _, _, visit in visits]),
        )

    def costs(self) -> list[list[float]]:
        """Return the median of every candidate, relative to the reference; 0 where there is no sample."""
        return [[quantile(ratios, 0.5) if ratios else 0.0 for ratios in layer] for layer in self._ratios]

    def unsettled(self, wanted: Sequence[Sequence[int]], protocol: Protocol) -> list[list[int]]:
        """Return by layer those of the `wanted` candidates whose interval is wider than the protocol requires."""
        if not self._wholes:
            return [list(choices) for choices in wanted]
        negligible = NEGLIGIBLE * quantile(self._wholes, 0.5)
        return [
            [choice for choice in choices if not is_narrow(self._ratios[layer][choice], protocol, negligible)]
            for layer, choices in enumerate(wanted)
        ]
