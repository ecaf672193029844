# SPDX-License-Identifier: Apache-2.0
"""`Registry`: the workers of a farm, their states, and the assignment of benches."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

from nni_latency.errors import listed
from nni_latency.measurement import WorkerState
from nni_latency.platforms import Platform
from nni_latency.units import format_percent
from nni_latency_farm._announcement import Announcement

#: Relative increase of the reference times that counts as a change of speed.
TOLERANCE = 0.25


def platform_key(platform: Platform) -> str:
    """Return the key of a platform: its id and a digest of its identity, shared by all its workers.

    Examples
    --------
    >>> platform_key(Platform("a")) == platform_key(Platform("a")) != platform_key(Platform("b"))
    True
    """
    content = json.dumps(platform.identity, sort_keys=True, default=str)
    return f"{platform.id}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


@dataclass
class _Worker:
    address: str
    announcement: Announcement
    key: str
    joined: float
    checked: float
    #: Best and latest times of the reference networks [s].
    best: dict[str, float]
    references: dict[str, float]
    reason: str = ""
    benches: set[str] = field(default_factory=set)
    jobs: int = 0


class Registry:
    """Workers of a farm, their states, and the assignment of benches.

    It uses neither network nor processes, so that the scheduler of a farm and simulations share it. Not thread-safe.

    A bench stays on its worker while that is ready. It moves if its worker has several benches and a twin, a worker of
    the same platform, has none.

    Parameters
    ----------
    tolerance : float, default=0.25
        Tolerated relative difference of the reference times from their best value and from those of twins.
    clock : callable, default=time.time
        Returns the time [s since 1970, UTC].

    Examples
    --------
    >>> from nni_latency_farm import Traits
    >>> platform = Platform("raspberry-pi-4")
    >>> registry = Registry()
    >>> for number in range(2):
    ...     registry.join(f"tcp://10.0.0.{number}:1", Announcement(f"pi-{number}", platform, Traits()), {"conv": 0.1})
    >>> [registry.assign(bench, "client", platform_key(platform)) for bench in "abab"]
    ['tcp://10.0.0.0:1', 'tcp://10.0.0.1:1', 'tcp://10.0.0.0:1', 'tcp://10.0.0.1:1']
    >>> registry.leave("tcp://10.0.0.0:1")
    >>> registry.assign("a", "client", platform_key(platform))
    'tcp://10.0.0.1:1'
    """

    def __init__(self, tolerance: float = TOLERANCE, clock: Callable[[], float] = time.time) -> None:
        self.tolerance, self.clock = tolerance, clock
        self._workers: dict[str, _Worker] = {}
        self._groups: dict[str, dict[str, _Worker]] = {}
        self._places: dict[str, str] = {}
        self._owners: dict[str, str] = {}

    def join(self, address: str, announcement: Announcement, references: Mapping[str, float]) -> None:
        """Add a worker and the times of its reference networks [s]; joining again resets it."""
        self.leave(address)
        key, now = platform_key(announcement.platform), self.clock()
        worker = _Worker(address, announcement, key, now, now, dict(references), dict(references))
        self._workers[address] = self._groups.setdefault(key, {})[address] = worker
        self._judge(worker)

    def leave(self, address: str) -> None:
        """Remove a worker; its benches stay unassigned until the next call of `assign`."""
        worker = self._workers.pop(address, None)
        if worker is None:
            return
        del self._groups[worker.key][address]
        if not self._groups[worker.key]:
            del self._groups[worker.key]
        for bench in worker.benches:
            del self._places[bench]

    def check(self, address: str, references: Mapping[str, float], error: str = "") -> str:
        """Update the reference times of a worker [s], or the reason why they cannot be measured.

        Returns
        -------
        str
            Reason for the quarantine of the worker; empty without quarantine.
        """
        worker = self._workers.get(address)
        if worker is None:
            return ""
        worker.checked = self.clock()
        if error:
            worker.reason = f"Its reference networks cannot be run: {error}"
            return worker.reason
        worker.references = dict(references)
        # Keep the best time: a longer one was measured under load.
        worker.best = {
            name: min(seconds, worker.best.get(name, seconds)) for name, seconds in worker.references.items()
        }
        self._judge(worker)
        return worker.reason

    def reason(self, address: str) -> str:
        """Return the reason for the quarantine of a worker; empty if there is none or the worker is unknown."""
        worker = self._workers.get(address)
        return worker.reason if worker is not None else ""

    def _judge(self, worker: _Worker) -> None:
        worker.reason = self._drift(worker) or self._disagreement(worker)

    def _drift(self, worker: _Worker) -> str:
        slower = _ratio(worker.references, worker.best)
        if slower <= 1 + self.tolerance:
            return ""
        return f"Its reference networks take {format_percent(slower - 1)} longer than they did."

    def _disagreement(self, worker: _Worker) -> str:
        twins = [other for other in self._groups[worker.key].values() if other is not worker and not other.reason]
        if not twins or (len(twins) == 1 and twins[0].joined > worker.joined):
            # Of two workers, the one that joined later must agree with the other.
            return ""
        usual = {
            name: median(twin.references[name] for twin in twins if name in twin.references)
            for name in worker.references
            if any(name in twin.references for twin in twins)
        }
        slower = _ratio(worker.references, usual)
        if 1 / (1 + self.tolerance) <= slower <= 1 + self.tolerance:
            return ""
        names = listed(sorted(twin.announcement.name for twin in twins))
        return f"Its reference networks take {slower:.2f} times as long as on its twins ({names})."

    def assign(self, bench: str, client: str, key: str) -> str | None:
        """Return the address of the worker for the next job of a bench; None if no worker of its platform is ready.

        Parameters
        ----------
        bench : str
            Name of the bench.
        client : str
            Owner of the bench; `release_client` releases all benches of a client.
        key : str
            Key of the platform, as returned by `platform_key`.
        """
        place = self._places.get(bench)
        worker = self._workers.get(place) if place is not None else None
        if worker is not None and not worker.reason and len(worker.benches) == 1:
            return worker.address
        ready = [other for other in self._groups.get(key, {}).values() if not other.reason]
        idlest = min(ready, key=lambda other: len(other.benches), default=None)
        if worker is not None and not worker.reason and not (idlest is not None and not idlest.benches):
            return worker.address
        self.release(bench)
        if idlest is None:
            return None
        idlest.benches.add(bench)
        self._places[bench] = idlest.address
        self._owners[bench] = client
        return idlest.address

    def release(self, bench: str) -> None:
        """Release a bench from its worker."""
        place = self._places.pop(bench, None)
        if place is not None:
            self._workers[place].benches.discard(bench)
        self._owners.pop(bench, None)

    def release_client(self, client: str) -> None:
        """Release all benches of a client."""
        for bench in [bench for bench, owner in self._owners.items() if owner == client]:
            self.release(bench)

    def count(self, address: str) -> None:
        """Count a completed job of a worker."""
        if address in self._workers:
            self._workers[address].jobs += 1

    def why_none(self, key: str) -> str:
        """Explain why no worker of a platform is available."""
        workers = self._groups.get(key)
        if not workers:
            return "No worker of it is there."
        reasons = [f"{worker.announcement.name} is in quarantine: {worker.reason}" for worker in workers.values()]
        return " ".join(reasons)

    def states(self) -> list[tuple[WorkerState, Announcement]]:
        """Return the states and announcements of the workers, in the order in which they joined."""
        return [(_state(worker), worker.announcement) for worker in self._workers.values()]


def _state(worker: _Worker) -> WorkerState:
    announcement = worker.announcement
    return WorkerState(
        announcement.name,
        worker.address,
        announcement.platform.id,
        "quarantined" if worker.reason else "ready",
        worker.reason,
        len(worker.benches),
        worker.jobs,
        worker.joined,
        worker.checked,
        dict(worker.references),
        _ratio(worker.references, worker.best),
        dict(announcement.conditions),
    )


def _ratio(times: Mapping[str, float], usual: Mapping[str, float]) -> float:
    """Return the slowdown of times relative to the usual ones: the median over common names; 1 without any."""
    ratios = [times[name] / usual[name] for name in times.keys() & usual.keys()]
    return median(ratios) if ratios else 1.0
