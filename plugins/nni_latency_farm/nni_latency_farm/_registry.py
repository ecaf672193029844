"""`Registry`: which workers a farm has, which of them get work, and which bench lies on which."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from nni_latency.errors import listed
from nni_latency.measurement import WorkerState
from nni_latency.platforms import Platform
from nni_latency.units import format_percent
from nni_latency_farm._announcement import Announcement

#: Reference networks that take longer by more than this share are another speed.
TOLERANCE = 0.25


def platform_key(platform: Platform) -> str:
    """Return what workers of one platform have in common, and no other worker: a digest of its identity.

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
    #: What its reference networks took at best, and what they took last [s].
    best: dict[str, float]
    references: dict[str, float]
    reason: str = ""
    benches: set[str] = field(default_factory=set)
    jobs: int = 0


class Registry:
    """Which workers a farm has, which of them get work, and which bench lies on which.

    It knows no network and no process: the scheduler of a farm asks it, and so does a simulation. Not thread-safe.

    A bench stays on its worker as long as that is there and ready. It moves where its worker has several benches and
    a twin, a worker of the same platform, has none.

    Parameters
    ----------
    tolerance : float, default=0.25
        By which share reference networks may take longer than at best, or longer or less than on twins.
    clock : callable, default=time.time
        Tells the time [s since 1970, UTC].

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
        self._clients: dict[str, set[str]] = {}
        self._owners: dict[str, str] = {}

    def join(self, address: str, announcement: Announcement, references: Mapping[str, float]) -> None:
        """Take in a worker, and what its reference networks took [s]; again is a new beginning of it."""
        self.leave(address)
        key, now = platform_key(announcement.platform), self.clock()
        worker = _Worker(address, announcement, key, now, now, dict(references), dict(references))
        self._workers[address] = self._groups.setdefault(key, {})[address] = worker
        self._judge(worker)

    def leave(self, address: str) -> None:
        """Forget a worker; its benches have no place until they are assigned again."""
        worker = self._workers.pop(address, None)
        if worker is None:
            return
        del self._groups[worker.key][address]
        if not self._groups[worker.key]:
            del self._groups[worker.key]
        for bench in worker.benches:
            del self._places[bench]

    def check(self, address: str, references: Mapping[str, float], error: str = "") -> str:
        """Take in what the reference networks of a worker took now [s], or why they cannot be run.

        Returns
        -------
        str
            Why the worker is in quarantine from now on; empty if it is not.
        """
        worker = self._workers.get(address)
        if worker is None:
            return ""
        worker.checked = self.clock()
        if error:
            worker.reason = f"Its reference networks cannot be run: {error}"
            return worker.reason
        worker.references = dict(references)
        # The best there was: an earlier time that was longer was taken while something else ran.
        worker.best = {
            name: min(seconds, worker.best.get(name, seconds)) for name, seconds in worker.references.items()
        }
        self._judge(worker)
        return worker.reason

    def reason(self, address: str) -> str:
        """Say why a worker is in quarantine; empty if it is not, or not there."""
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
            # Of two it is the one that came later that has to agree.
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
        """Say on which worker the next job of a bench is done; None where no worker of its platform is ready.

        Parameters
        ----------
        bench : str
            Names the bench.
        client : str
            Whose bench it is: `release_client` takes all benches of a client away.
        key : str
            Which platform, as `platform_key` says.
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
        self._clients.setdefault(client, set()).add(bench)
        self._owners[bench] = client
        return idlest.address

    def release(self, bench: str) -> None:
        """Take a bench from its worker."""
        place = self._places.pop(bench, None)
        if place is not None:
            self._workers[place].benches.discard(bench)
        client = self._owners.pop(bench, None)
        if client is not None:
            self._clients[client].discard(bench)
            if not self._clients[client]:
                del self._clients[client]

    def release_client(self, client: str) -> None:
        """Take all benches of a client from their workers."""
        for bench in list(self._clients.get(client, ())):
            self.release(bench)

    def count(self, address: str) -> None:
        """Count a job that a worker has done."""
        if address in self._workers:
            self._workers[address].jobs += 1

    def why_none(self, key: str) -> str:
        """Say why no worker of a platform gets work."""
        workers = self._groups.get(key)
        if not workers:
            return "No worker of it is there."
        reasons = [f"{worker.announcement.name} is in quarantine: {worker.reason}" for worker in workers.values()]
        return " ".join(reasons)

    def states(self) -> list[tuple[WorkerState, Announcement]]:
        """Return how the workers are doing, in the order in which they joined, and what they announced."""
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
    """Return by which factor times are longer than usual: the median over what both have; 1 where that is nothing."""
    return median(_ratios(times, usual)) if times.keys() & usual.keys() else 1.0


def _ratios(times: Mapping[str, float], usual: Mapping[str, float]) -> Iterable[float]:
    return [times[name] / usual[name] for name in times.keys() & usual.keys()]
