# SPDX-License-Identifier: Apache-2.0
"""`KnownCosts`: stored measurements of operators and networks on one platform, which avoid repeated measurements."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from nni_latency.costs import Cost
from nni_latency.measurement import (
    Measurement,
    NetworkCalls,
    Protocol,
    Store,
    StoredCampaign,
    Summary,
    quantile,
)
from nni_latency.platforms import Platform
from nni_latency.tables._entries import Entry
from nni_latency.tables._operator_samples import OperatorSamples, Place
from nni_latency.tables._operators import operator_entries

#: Kinds of campaigns that measure operators inside networks, and operators standalone.
IN_NETWORKS, ALONE = ("operators", "on-demand"), "alone"


@dataclass(frozen=True)
class CachedCost(Cost):
    """Stored cost of an operator or a network.

    Parameters
    ----------
    value, low, high : float
        Cost [s], and its prediction interval for another place.
    n_places : int
        Number of places in networks, or of campaigns, in which it was measured.
    n_samples : int
        Number of timed runs.
    alone : bool
        Whether it was measured standalone, and never in a network.
    """

    n_places: int
    n_samples: int
    alone: bool = False


@dataclass
class _Index:
    """Content of the campaigns by one statistic; all times are relative to the reference operator."""

    operators: dict[str, Entry] = field(default_factory=dict)
    alone: dict[str, list[Summary]] = field(default_factory=dict)
    networks: dict[str, list[Summary]] = field(default_factory=dict)
    #: Times of the reference operator along with networks, at the machine's usual speed, and along with operators [s].
    references: list[float] = field(default_factory=list)
    alone_references: list[float] = field(default_factory=list)

    @property
    def unit(self) -> float:
        """Time of the reference operator to which all times are normalised [s]."""
        return quantile(self.references or self.alone_references, 0.5)

    def pooled(self, found: list[Summary], *, alone: bool = False) -> CachedCost:
        """Return the cost that several campaigns found."""
        value = math.fsum(item.value for item in found) / len(found)
        low, high = min(item.low for item in found), max(item.high for item in found)
        n_samples = sum(item.n_samples for item in found)
        return CachedCost(value, low, high, len(found), n_samples, alone).scaled(self.unit)


class KnownCosts:
    """Stored costs on one platform. Thread-safe.

    Times are relative to that of the reference operator, which is measured along with everything, so that days on which
    the machine is slower have no effect. The costs of operators are those of a table of the same runs.

    Parameters
    ----------
    store : Store
        Store of the records.
    platform : Platform
        Platform whose records are read.
    """

    def __init__(self, store: Store, platform: Platform) -> None:
        self.store, self.platform = store, platform
        self._campaigns: list[StoredCampaign] = []
        self._indices: dict[tuple[float, float, float], _Index] = {}
        #: What was fitted to campaigns, by their content: a store grows by one campaign at a time.
        self._fitted: dict[tuple[tuple[str, int, int], tuple[float, float, float]], _Networks] = {}
        self._version = -1
        self._lock = threading.RLock()
        self.refresh()

    def __repr__(self) -> str:
        return f"KnownCosts({self.store!r}, {self.platform.id})"

    def reference(self, protocol: Protocol) -> float:
        """Return the time of the reference operator to which all times are normalised [s].

        It is the median over the visits of networks, at the machine's usual speed, or else over those of operators.

        Raises
        ------
        InvalidValueError
            If nothing was measured.
        """
        with self._lock:
            return self._index(protocol).unit

    def operator(self, key: str, protocol: Protocol) -> CachedCost | None:
        """Return the cost of an operator by its key; measurements in networks take precedence over standalone ones."""
        with self._lock:
            index = self._index(protocol)
            if key in index.operators:
                entry = index.operators[key].scaled(index.unit)
                return CachedCost(entry.value, entry.low, entry.high, entry.n_places, entry.n_samples)
            return index.pooled(index.alone[key], alone=True) if key in index.alone else None

    def network(self, digest: str, protocol: Protocol) -> CachedCost | None:
        """Return the cost of a whole network, by the digest of its graph."""
        with self._lock:
            index = self._index(protocol)
            return index.pooled(index.networks[digest]) if digest in index.networks else None

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Lock this store against measurements by other threads, and refresh before and afterwards."""
        with self._lock:
            self.refresh()
            yield
            self.refresh()

    def refresh(self) -> None:
        """Read the records that were added to the store."""
        with self._lock:
            version = self.store.version()
            if version == self._version:
                return
            kinds = (*IN_NETWORKS, ALONE)
            found = [item for kind in kinds for item in self.store.campaigns(kind=kind, platform=self.platform)]
            self._campaigns, self._version = [item for item in found if item.records], version
            self._indices.clear()
            known = set(map(_content_of, self._campaigns))
            self._fitted = {key: fit for key, fit in self._fitted.items() if key[0] in known}

    def _index(self, protocol: Protocol) -> _Index:
        key = _statistics(protocol)
        if key not in self._indices:
            self._indices[key] = self._make_index(protocol)
        return self._indices[key]

    def _make_index(self, protocol: Protocol) -> _Index:
        index, places = _Index(), list[Place]()
        for campaign in self._campaigns:
            if campaign.header.kind == ALONE:
                _add_alone(index, campaign, protocol)
                continue
            found = self._networks_of(campaign, protocol)
            places += found.places
            index.references += found.references
            for digest, whole in found.wholes:
                index.networks.setdefault(digest, []).append(whole)
        index.operators = operator_entries(places) if places else {}
        return index

    def _networks_of(self, campaign: StoredCampaign, protocol: Protocol) -> _Networks:
        key = (_content_of(campaign), _statistics(protocol))
        if key not in self._fitted:
            self._fitted[key] = _networks_of(campaign, protocol)
        return self._fitted[key]


def _content_of(campaign: StoredCampaign) -> tuple[str, int, int]:
    """Return a value that changes as a campaign grows."""
    return campaign.identifier, len(campaign.records), len(campaign.failures)


def _statistics(protocol: Protocol) -> tuple[float, float, float]:
    return protocol.statistic, protocol.outlier, protocol.confidence


@dataclass(frozen=True)
class _Networks:
    """Networks of a campaign: places of operators and whole networks by digest, relative to the reference operator."""

    places: list[Place]
    wholes: list[tuple[str, Summary]]
    references: list[float]


def _networks_of(campaign: StoredCampaign, protocol: Protocol) -> _Networks:
    """Fit the networks of a campaign."""
    failed = {failure.subject for failure in campaign.failures}
    subjects = {key: item for key, item in campaign.subjects.items() if item["kind"] == "network" and key not in failed}
    calls = {key: NetworkCalls.read(item["specification"]) for key, item in subjects.items()}
    samples = OperatorSamples(calls, protocol, campaign.records)
    found = _Networks([], [], [])
    if samples.measured:
        unit = samples.unit
        found.references.extend(samples.references)
        for key in samples.measured:
            whole = samples.whole(key).mapped(lambda seconds: seconds / unit)
            found.wholes.append((subjects[key]["digest"], whole))
            for place in samples.places(key):
                network = f"{campaign.identifier}/{key}"
                found.places.append(replace(place, network=network, value=place.value / unit))
    return found


def _add_alone(index: _Index, campaign: StoredCampaign, protocol: Protocol) -> None:
    """Add the operators that were measured standalone: the last part of every run."""
    times: dict[str, list[float]] = {}
    for record in campaign.records:
        key = campaign.subjects[record.subjects[-1]]["digest"]
        times.setdefault(key, []).extend(run[-1] / record.reference for run in record.parts)
        index.alone_references.append(record.reference)
    for key, taken in times.items():
        index.alone.setdefault(key, []).append(Measurement(tuple(taken), protocol).summary)
