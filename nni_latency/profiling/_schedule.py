"""`ProfileSchedule`: visits of networks and of operators alone, which share one campaign with all other profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nni_latency.datasets import BatchedNetworks
from nni_latency.measurement import Failure, Protocol, Record, Subject
from nni_latency.units import number_of


class ProfileSchedule(BatchedNetworks):
    """Batches of subjects, each visited in several rounds.

    A campaign holds what other calls have measured of the same platform at the same batch size, too. That neither
    counts nor costs any of the budget.

    Parameters
    ----------
    subjects : sequence of Subject
        Networks or operators, in the order in which they are measured.
    protocol : Protocol
        How; the budget ends it, and its rounds are the most visits of a subject.
    weights : mapping of str to int
        By key, how many numbers a subject holds.
    n_calls : mapping of str to int, optional
        Of networks whose calls are timed: how many each makes. One that makes another number is recorded as failed.
    required : bool, default=True
        Whether it is an error if none of the subjects can be run.
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
        self._n_calls = dict(n_calls or {})
        self._required = required

    def observe(self, records: Sequence[Record]) -> None:
        """Take in the records of one round that are of its own subjects."""
        own = [record for record in records if record.subjects[0] in self.networks]
        if own:
            super().observe(own)
        self.next = records[0].round + 1

    def fail(self, failure: Failure) -> None:
        """Leave a subject out."""
        if failure.subject in self.networks:
            super().fail(failure)

    def sees_calls(self, keys: Sequence[str]) -> bool:
        """Whether calls are timed: in every visit of a network."""
        return self.calls

    def validation_error(self, record: Record) -> str:
        """Say whether a network ran otherwise than it was traced."""
        expected = self._n_calls.get(record.subjects[0])
        found = next((len(run) for run in record.parts if expected not in (None, len(run))), None)
        if found is None:
            return ""
        return (
            f"it made {number_of(found, 'call')} when it ran and {expected} when it was traced: its control flow "
            "depends on data"
        )

    def is_done(self, key: str) -> bool:
        """Whether a subject needs no further visit, because it is known or cannot be measured."""
        return not self._wants(key)

    def _wants(self, key: str) -> bool:
        return len(self.visits.get(key, ())) < self.protocol.rounds and super()._wants(key)

    def _check(self) -> None:
        if self._required:
            super()._check()
