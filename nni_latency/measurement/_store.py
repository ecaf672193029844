# SPDX-License-Identifier: Apache-2.0
"""`Store`: the interface to stored campaigns, and a store in memory."""

from __future__ import annotations

import hashlib
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from nni_latency.errors import BusyError
from nni_latency.measurement._record import Failure, Record
from nni_latency.measurement._subject import Subject
from nni_latency.measurement._timing import NetworkSummary, Protocol, summarise_visits
from nni_latency.platforms import Platform

#: Settings that determine how long to measure. Records with other values of them belong to the same campaign.
EXTENDABLE = ("time_budget", "rounds", "half_width", "timeout", "processes")

#: A running campaign that was written to within this time is still being measured, and gives no latency yet [s].
BEING_MEASURED = 900.0


@dataclass(frozen=True)
class CampaignHeader:
    """What a campaign measures, where and how. Campaigns of equal identity are the same campaign. Immutable.

    Parameters
    ----------
    kind : str
        Kind of the schedule: ``layers``, ``operators``, ``networks``, ``solved``, ``micro-benchmark``, ``on-demand``.
    content : mapping
        What is measured, as plain values: the space, the input, the candidates or networks.
    platform : Platform
        Platform of the measurements.
    protocol : Protocol
        Measuring protocol.
    """

    kind: str
    content: Mapping[str, Any]
    platform: Platform
    protocol: Protocol

    @cached_property
    def identity(self) -> str:
        """Digest of everything except the settings in `EXTENDABLE`."""
        how = {name: value for name, value in self.protocol.as_dict().items() if name not in EXTENDABLE}
        return _digest([self.kind, self.content, self.platform.identity, how])


class CampaignLog(ABC):
    """One campaign in a store, held by one process. Appended records are safe when the call returns.

    Attributes
    ----------
    identifier : str
        Name of the campaign in its store; tables that are derived from it keep this name.
    records : list of Record
        Records so far, in order.
    failures : list of Failure
        Failures so far.
    conditions : dict of str to mapping
        Conditions of the machine at the moments that were noted, such as ``before`` and ``after``.
    """

    identifier: str
    records: list[Record]
    failures: list[Failure]
    conditions: dict[str, Mapping[str, Any]]

    @abstractmethod
    def admit(self, subject: Subject) -> None:
        """Store the description of a subject, before the first record that names it; may be repeated."""

    @abstractmethod
    def append(self, record: Record) -> None:
        """Store a record.

        Raises
        ------
        OutputError
            If it cannot be stored, for example because the disk is full. Earlier records remain.
        """

    @abstractmethod
    def fail(self, failure: Failure) -> None:
        """Store a failure; raises as `append`."""

    @abstractmethod
    def note(self, moment: str, conditions: Mapping[str, Any]) -> None:
        """Store the conditions of the machine at a moment, such as ``before`` or ``after``."""


@dataclass(frozen=True)
class StoredCampaign:
    """A campaign that was read from a store.

    Parameters
    ----------
    identifier : str
        Its name in the store.
    header : CampaignHeader
        What was measured.
    subjects : mapping of str to mapping
        Subjects by key: ``kind``, ``digest`` and ``specification`` of each.
    records : tuple of Record
        Records, in order.
    failures : tuple of Failure
        Subjects that could not be measured.
    conditions : mapping
        Conditions of the machine ``before`` and ``after``.
    """

    identifier: str
    header: CampaignHeader
    subjects: Mapping[str, Mapping[str, Any]]
    records: tuple[Record, ...]
    failures: tuple[Failure, ...] = ()
    conditions: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class KnownLatency(NetworkSummary):
    """The latency of a subject that was measured alone, from its latest campaign. Immutable.

    Parameters
    ----------
    value, low, high, n_samples, n_visits, repeatability
        As for `NetworkSummary`.
    digest : str
        Digest of the subject.
    platform : Platform
        Platform of the measurement, with all its facts.
    campaign : str
        Identifier of the campaign.
    at : float
        When the last record was taken [s since 1970, UTC].
    package_version : str
        Version of nni_latency that measured it.
    """

    digest: str = ""
    platform: Platform = field(kw_only=True)
    campaign: str = ""
    at: float = 0.0
    package_version: str = ""


class Store(ABC):
    """Stores campaigns and reads them back. Safe in several threads and processes.

    A campaign is written by one process at a time; any number may read.
    """

    @abstractmethod
    def campaign(
        self, header: CampaignHeader, *, fresh: bool = False, wait: float = 0.0
    ) -> AbstractContextManager[CampaignLog]:
        """Hold the campaign of a header: the latest one of its identity, or a new one.

        Parameters
        ----------
        header : CampaignHeader
            What is measured.
        fresh : bool, default=False
            Whether to begin a new campaign even if there is one, which then remains in the store.
        wait : float, default=0.0
            Time to wait for another process that holds it [s].

        Raises
        ------
        BusyError
            If another process holds it.
        OutputError
            If nothing can be written.
        """

    @abstractmethod
    def campaigns(
        self, *, kind: str | None = None, platform: Platform | None = None, identifier: str | None = None
    ) -> Iterator[StoredCampaign]:
        """Read campaigns, the oldest first; optionally only those of a kind, a platform, or an identifier."""

    @abstractmethod
    def version(self) -> int:
        """Return a number that grows with every addition, so that readers know when to read again."""

    def known(self, digest: str, platform: Platform | str) -> KnownLatency | None:
        """Return the latency of a subject that was measured alone, from its latest campaign; None if there is none.

        Campaigns in which the subject failed, or which are still being measured, do not count.

        Parameters
        ----------
        digest : str
            Digest of the subject.
        platform : Platform or str
            A platform whose facts must agree, or the id of a platform with any facts.
        """
        return _latest(self.campaigns(), digest, platform)

    def known_all(self, asked: Sequence[tuple[str, Platform | str]]) -> list[KnownLatency | None]:
        """Return the results of `known` for many subjects and platforms; a database takes a single query for all."""
        return [self.known(digest, platform) for digest, platform in asked]

    def platforms(self) -> list[Platform]:
        """Return the platforms of all campaigns, without duplicates."""
        found = (campaign.header.platform for campaign in self.campaigns())
        return list({json.dumps(item.as_dict(), sort_keys=True): item for item in found}.values())

    def close(self) -> None:
        """Close connections; they are opened again when necessary."""
        return


class _MemoryLog(CampaignLog):
    def __init__(self, identifier: str, header: CampaignHeader) -> None:
        self.identifier, self.header = identifier, header
        self.subjects: dict[str, dict[str, Any]] = {}
        self.records, self.failures = [], []
        self.conditions = {}
        self.held = threading.Lock()

    def stored(self) -> StoredCampaign:
        subjects, conditions = dict(self.subjects), dict(self.conditions)
        return StoredCampaign(
            self.identifier, self.header, subjects, tuple(self.records), tuple(self.failures), conditions
        )

    def admit(self, subject: Subject) -> None:
        self.subjects.setdefault(subject.key, subject.record)

    def append(self, record: Record) -> None:
        self.records.append(record.rounded())

    def fail(self, failure: Failure) -> None:
        self.failures.append(failure)

    def note(self, moment: str, conditions: Mapping[str, Any]) -> None:
        self.conditions[moment] = dict(conditions)


class MemoryStore(Store):
    """A store in memory, which ends with its process."""

    def __init__(self) -> None:
        self._logs: list[_MemoryLog] = []
        # Threads that begin at the same time share a campaign.
        self._finding = threading.Lock()

    @contextmanager
    def campaign(self, header: CampaignHeader, *, fresh: bool = False, wait: float = 0.0) -> Iterator[CampaignLog]:
        """Hold a campaign."""
        with self._finding:
            found = [log for log in self._logs if log.header.identity == header.identity]
            if fresh or not found:
                found = [_MemoryLog(str(len(self._logs) + 1), header)]
                self._logs += found
        log = found[-1]
        if not log.held.acquire(timeout=wait):
            raise BusyError("Another thread is measuring the same. Wait for it to end.")
        try:
            yield log
        finally:
            log.held.release()

    def campaigns(
        self, *, kind: str | None = None, platform: Platform | None = None, identifier: str | None = None
    ) -> Iterator[StoredCampaign]:
        """Read campaigns."""
        for log in list(self._logs):
            same = platform is None or not platform.differences(log.header.platform)
            if kind in (None, log.header.kind) and same and identifier in (None, log.identifier):
                yield log.stored()

    def known(self, digest: str, platform: Platform | str) -> KnownLatency | None:
        """Return the latest latency of a subject that was measured alone."""
        ended = [log.stored() for log in list(self._logs) if not log.held.locked()]
        return _latest(ended, digest, platform)

    def version(self) -> int:
        """Return how many records and failures there are."""
        return sum(len(log.records) + len(log.failures) for log in self._logs)


def _latest(campaigns: Iterable[StoredCampaign], digest: str, platform: Platform | str) -> KnownLatency | None:
    found = (known for campaign in campaigns for known in _known_in(campaign, digest, platform))
    return max(found, key=lambda known: known.at, default=None)


def _known_in(campaign: StoredCampaign, digest: str, platform: Platform | str) -> Iterator[KnownLatency]:
    where = campaign.header.platform
    if where.id != platform if isinstance(platform, str) else platform.differences(where):
        return
    failed = {failure.subject for failure in campaign.failures}
    keys = {key for key, subject in campaign.subjects.items() if subject["digest"] == digest and key not in failed}
    for key in keys:
        records = [record for record in campaign.records if record.subjects == (key,) and record.whole]
        if records:
            found = summarise_visits([record.whole for record in records], campaign.header.protocol)
            yield KnownLatency(
                **asdict(found), digest=digest, platform=where, campaign=campaign.identifier, at=records[-1].at
            )


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=dict).encode()).hexdigest()[:24]
