"""`LayerSchedule` and `Samples`: rounds of whole networks that hold every candidate, and what they measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nni_latency.errors import MeasurementError
from nni_latency.measurement import (
    Chain,
    Failure,
    Measurement,
    Protocol,
    Record,
    Schedule,
    Subject,
    balanced_round,
    fewest_samples,
    light_network,
    quantile,
)
from nni_latency.tables._plan import MeasurePlan

#: How far the networks of successive rounds are sorted by cost: at random, sorted, half and half.
ALIGNMENTS = (0.0, 1.0, 0.5)

#: How often the intervals are looked at [rounds].
_LOOK_EVERY = 4

#: A network, an index per layer.
Network = tuple[int, ...]

#: A candidate is also known well enough when its interval is so narrow that no network's latency shows it: half its
#: width over the latency of a median network.
NEGLIGIBLE = 1e-4


@dataclass(frozen=True)
class Round:
    """The networks of one round and what was measured of each."""

    networks: tuple[Network, ...]
    visits: tuple[Record, ...]


class LayerSchedule(Schedule):
    """Balanced rounds over the candidates of a plan until every interval is narrow.

    Parameters
    ----------
    plan : MeasurePlan
        What to measure.
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
        """Layer and index of every candidate that cannot be measured, and why."""
        return {self._places[key]: reason for key, reason in self.failures.items()}

    @property
    def unsettled(self) -> int:
        """How many candidates are not known well enough yet."""
        return sum(map(len, self._wanted()))

    @property
    def what(self) -> str:
        """What a round consists of."""
        return "networks"

    def next_round(self) -> list[Chain]:
        """Return the networks of the next round; none once all candidates are known or the budget is spent."""
        if self.over:
            return []
        full = self.rounds_in[self.process] < self.fewest
        return [self._chain(network) for network in self._networks(self._available if full else self._wanted())]

    def observe(self, records: Sequence[Record]) -> None:
        """Take in one round."""
        super().observe(records)
        networks = tuple(tuple(self._places[key][1] for key in record.subjects) for record in records)
        self.samples.add(Round(networks, tuple(records)))
        if self.rounds % _LOOK_EVERY == 0:
            self._sought = self.samples.unsettled(self._available, self.protocol)

    def fail(self, failure: Failure) -> None:
        """Leave a candidate out from now on.

        Raises
        ------
        MeasurementError
            If its layer has no other, or is fixed.
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
        """Return by layer the candidates to go on with: those that are not known well enough yet."""
        return [
            [choice for choice in choices if choice in left]
            for choices, left in zip(self._sought, self._available, strict=True)
        ]

    def _chain(self, network: Network) -> Chain:
        return tuple(subjects[choice] for subjects, choice in zip(self._subjects, network, strict=True))

    def _networks(self, wanted: list[list[int]]) -> list[Network]:
        """Draw the next round: the candidates that are wanted, one light network, and the reference networks."""
        hands = [choices or available for choices, available in zip(wanted, self._available, strict=True)]
        seed, sizes = self.protocol.seed, self.plan.sizes
        if not self.rounds or len(sizes) == 1:
            drawn = balanced_round(sizes, self.next, seed, wanted=hands)
        else:
            costs, alignment = self.samples.costs(), ALIGNMENTS[self.next % len(ALIGNMENTS)]
            drawn = balanced_round(sizes, self.next, seed, wanted=hands, costs=costs, alignment=alignment)
            drawn.append(light_network(self._available, costs, self.next, seed))
        return self._with_references(drawn)

    def _with_references(self, drawn: list[Network]) -> list[Network]:
        """Spread the reference networks evenly over a round, where they stand for all of it."""
        references = [item for item in dict.fromkeys(self.references) if self._can_run(item) and item not in drawn]
        for number, reference in enumerate(references):
            drawn.insert((2 * number + 1) * len(drawn) // (2 * len(references)), reference)
        return drawn

    def _can_run(self, network: Network) -> bool:
        return all(choice in left for choice, left in zip(network, self._available, strict=True))


def candidate_subjects(plan: MeasurePlan) -> list[list[Subject]]:
    """Return the candidates of a plan by layer, as what a bench loads."""
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
    """Every timed run as arrays, in the order in which they were made.

    Parameters
    ----------
    networks : ndarray of int of shape (n_runs, n_layers)
        The network of each run.
    parts : ndarray of shape (n_runs, n_layers)
        Time of every layer [s].
    whole : ndarray of shape (n_runs,)
        Time of the run of the whole network without marks [s].
    visits : ndarray of int of shape (n_runs,)
        Which visit the run belongs to.
    reference : ndarray of shape (n_visits,)
        Logarithm of the time of the reference operator before every visit [s].
    rounds : ndarray of int of shape (n_visits,)
        Which round the visit belongs to.
    """

    networks: NDArray[np.int64]
    parts: NDArray[np.float64]
    whole: NDArray[np.float64]
    visits: NDArray[np.int64]
    reference: NDArray[np.float64]
    rounds: NDArray[np.int64]

    @property
    def first(self) -> NDArray[np.int64]:
        """The first run of each visit, (n_visits,)."""
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
        """Which of the distinct networks each run is of, (n_runs,)."""
        return self._distinct[1].ravel()

    @property
    def counts(self) -> NDArray[np.int64]:
        """Runs of each distinct network, (n_distinct,)."""
        return self._distinct[2]

    def of_rounds(self, remainder: int) -> Runs:
        """Return the runs of every other round."""
        taken = self.rounds % 2 == remainder
        runs = taken[self.visits]
        return Runs(
            self.networks[runs],
            self.parts[runs],
            self.whole[runs],
            (np.cumsum(taken) - 1)[self.visits[runs]],
            self.reference[taken],
            self.rounds[taken],
        )


class Samples:
    """All that rounds measured.

    What the rounds go on with is taken over the median time of the reference operator in the same round: where that
    takes longer, the machine was slower.

    Parameters
    ----------
    sizes : sequence of int
        Candidates of every layer.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._ratios: list[list[list[float]]] = [[[] for _ in range(size)] for size in sizes]
        self._wholes: list[float] = []
        self._records: list[Any] = []
        #: Median time of the reference operator in every round [s].
        self.drift: list[float] = []

    def add(self, record: Any) -> None:
        """Take in one round."""
        reference = quantile([visit.reference for visit in record.visits], 0.5)
        self.drift.append(reference)
        self._records.append(record)
        for network, visit in zip(record.networks, record.visits, strict=True):
            self._wholes += [seconds / reference for seconds in visit.whole]
            for times in visit.parts or [[seconds] for seconds in visit.whole]:
                for layer, (choice, seconds) in enumerate(zip(network, times, strict=True)):
                    self._ratios[layer][choice].append(seconds / reference)

    @property
    def rounds(self) -> tuple[Any, ...]:
        """Everything that was added."""
        return tuple(self._records)

    @property
    def runs(self) -> Runs:
        """All runs as arrays."""
        visits = [
            (index, network, visit)
            for index, record in enumerate(self._records)
            for network, visit in zip(record.networks, record.visits, strict=True)
        ]
        rows = [
            (place, network, parts, whole)
            for place, (_, network, visit) in enumerate(visits)
            for parts, whole in zip(visit.parts or [[whole] for whole in visit.whole], visit.whole, strict=True)
        ]
        places, networks, parts, wholes = zip(*rows, strict=True)
        return Runs(
            np.array(networks),
            np.array(parts),
            np.array(wholes),
            np.array(places),
            np.log([visit.reference for _, _, visit in visits]),
            np.array([index for index, _, _ in visits]),
        )

    def costs(self) -> list[list[float]]:
        """Return the median of every candidate, relative to the reference; 0 where there is no sample."""
        return [[quantile(ratios, 0.5) if ratios else 0.0 for ratios in layer] for layer in self._ratios]

    def unsettled(self, wanted: Sequence[Sequence[int]], protocol: Protocol) -> list[list[int]]:
        """Return by layer those of the `wanted` candidates whose interval is wider than the protocol asks for."""
        if not self._wholes:
            return [list(choices) for choices in wanted]
        visible = NEGLIGIBLE * quantile(self._wholes, 0.5)
        return [
            [choice for choice in choices if not _settled(self._ratios[layer][choice], protocol, visible)]
            for layer, choices in enumerate(wanted)
        ]


def _settled(samples: list[float], protocol: Protocol, visible: float) -> bool:
    if len(samples) < fewest_samples(protocol.statistic, protocol.confidence):
        return False
    if not protocol.half_width:
        return False
    summary = Measurement(tuple(samples), protocol).summary
    return summary.spread <= max(protocol.half_width, visible / summary.value)
