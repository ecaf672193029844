"""`LayerSchedule`: rounds of whole networks that together hold every candidate of every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nni_latency.errors import MeasurementError
from nni_latency.measurement import Chain, Failure, Protocol, Record, Schedule, Subject, balanced_round, light_network
from nni_latency.tables._plan import MeasurePlan
from nni_latency.tables._samples import Samples

#: How far the networks of successive rounds are sorted by cost: at random, sorted, half and half.
ALIGNMENTS = (0.0, 1.0, 0.5)

#: How often the intervals are looked at [rounds].
_LOOK_EVERY = 4

#: A network, an index per layer.
Network = tuple[int, ...]


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
