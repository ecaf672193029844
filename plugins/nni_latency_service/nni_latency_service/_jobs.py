"""`JobQueue`: measurements that were asked for, one after another on every platform."""

from __future__ import annotations

import itertools
import logging
import queue
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from nni_latency.errors import BusyError, InvalidValueError, LatencyError, UnknownNameError
from nni_latency.measurement import Progress
from nni_latency.units import number_of
from nni_latency_service.query import Answer

State = Literal["queued", "running", "done", "failed", "cancelled"]

_LOG = logging.getLogger(__name__)

#: How long the measurements that run may take to end when the queue is closed [s].
_PATIENCE = 10.0

_CLOSED = "The service was stopped before it was measured. What was measured is kept: ask again when it is back."

#: How often a job looks whether its machine is back [s].
_LOOK = 0.2

#: What a job does: it is told whom to tell how far it is.
Work = Callable[[Callable[[Progress], None]], Answer]


@dataclass
class Job:
    """A measurement that was asked for.

    Parameters
    ----------
    identifier : str
        Its name.
    key, name, platform : str
        Of what, and where.
    owner : str
        Who asked.
    """

    identifier: str
    key: str
    name: str
    platform: str
    owner: str
    state: State = "queued"
    share: float = 0.0
    created: float = field(default_factory=time.time)
    ended: float | None = None
    answer: Answer | None = None
    error: str = ""
    #: Grows with every change.
    version: int = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing will change any more."""
        return self.state in ("done", "failed", "cancelled")

    def content(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "id": self.identifier,
            "key": self.key,
            "name": self.name,
            "platform": self.platform,
            "state": self.state,
            "progress": round(self.share, 4),
            "created": self.created,
            "ended": self.ended,
            "answer": self.answer.content() if self.answer else None,
            "error": self.error or None,
        }


def _always() -> bool:
    return True


@dataclass(frozen=True)
class _Task:
    """A job and how it is done."""

    job: Job
    work: Work
    is_ready: Callable[[], bool]


class JobQueue:
    """Measures what is asked for: one job at a time on every platform, one job for everyone who asks the same.

    Safe in several threads.

    Parameters
    ----------
    most : int
        Jobs that wait or run.
    kept : int
        Jobs that are over and are remembered.
    patience : float, default=600.0
        How long a job waits for a machine of its platform that has gone [s].
    """

    def __init__(self, most: int, kept: int, patience: float = 600.0) -> None:
        self._most, self._kept, self._patience = most, kept, patience
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._places: dict[str, _Place] = {}
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._count = itertools.count()

    def submit(
        self,
        key: str,
        name: str,
        platform: str,
        owner: str,
        work: Work,
        is_ready: Callable[[], bool] = _always,
    ) -> Job:
        """Put a measurement into the queue; one that waits or runs already is returned as it is.

        Parameters
        ----------
        key, name, platform : str
            Of what, and where.
        owner : str
            Who asks.
        work : callable
            Measures, and returns the answer.
        is_ready : callable, optional
            Whether a machine of the platform is there. While none is, as when a worker starts anew, the job stays in
            the queue; one that failed because its machine has gone goes back there.

        Returns
        -------
        Job

        Raises
        ------
        BusyError
            If the queue is full, or closed.
        """
        with self._lock:
            if self._closed.is_set():
                raise BusyError(_CLOSED)
            active = [job for job in self._jobs.values() if not job.is_over]
            for job in active:
                if (job.key, job.platform) == (key, platform):
                    return job
            if len(active) >= self._most:
                raise BusyError(f"The queue is full, with {number_of(len(active), 'measurement')}. Ask again later.")
            job = Job(f"{next(self._count)}-{secrets.token_hex(8)}", key, name, platform, owner)
            self._jobs[job.identifier] = job
            over = [item.identifier for item in self._jobs.values() if item.is_over]
            for identifier in over[: max(0, len(over) - self._kept)]:
                del self._jobs[identifier]
            place = self._places.get(platform)
            if place is None:
                place = self._places[platform] = _Place(self._run)
            place.waiting.put(_Task(job, work, is_ready))
        return job

    def find(self, identifier: str) -> Job:
        """Return a job by its name.

        Raises
        ------
        UnknownNameError
            If there is none, or it was over long ago.
        """
        job = self._jobs.get(identifier)
        if job is None:
            raise UnknownNameError(f"There is no job {identifier[:60]!r}. Jobs that were over long ago are forgotten.")
        return job

    def all(self) -> list[Job]:
        """Return all jobs, the latest first."""
        with self._lock:
            return list(reversed(self._jobs.values()))

    def cancel(self, identifier: str) -> Job:
        """Take a job out of the queue.

        Raises
        ------
        UnknownNameError
            If there is none.
        InvalidValueError
            If it is running or over.
        """
        job = self.find(identifier)
        with self._lock:
            if job.state != "queued":
                raise InvalidValueError(f"Only a job that is queued can be cancelled. This one is {job.state}.")
            self._change(job, state="cancelled", ended=time.time())
        return job

    def counts(self) -> dict[str, int]:
        """Return how many jobs are in each state."""
        found = dict.fromkeys(("queued", "running", "done", "failed", "cancelled"), 0)
        for job in self.all():
            found[job.state] += 1
        return found

    def close(self) -> None:
        """Take no more jobs, drop those that wait, and end those that run: what they have measured is kept."""
        with self._lock:
            self._closed.set()
            places = list(self._places.values())
            for job in self._jobs.values():
                if job.state == "queued":
                    self._change(job, state="cancelled", error=_CLOSED, ended=time.time())
        end = time.monotonic() + _PATIENCE
        for place in places:
            place.waiting.put(None)
        for place in places:
            place.thread.join(max(0.0, end - time.monotonic()))

    def _run(self, task: _Task) -> None:
        end = time.monotonic() + self._patience
        while self._begin(task, end):
            self._work(task, end)

    def _begin(self, task: _Task, end: float) -> bool:
        """Leave a job in the queue while no machine of its platform is there; return whether it is to be done now."""
        while not (task.is_ready() or task.job.is_over or time.monotonic() >= end):
            if self._closed.wait(_LOOK):
                break
        with self._lock:
            if task.job.is_over:
                return False
            self._change(task.job, state="running")
        return True

    def _work(self, task: _Task, end: float) -> None:
        job = task.job
        try:
            answer = task.work(lambda progress: self._progress(job, progress))
        except LatencyError as error:
            if not self._closed.is_set() and time.monotonic() < end and not task.is_ready():
                self._change(job, share=0.0, state="queued")
            else:
                self._change(job, error=str(error), state="failed", ended=time.time())
        except Exception:  # one job must not end the thread that runs the others
            _LOG.exception("Job %s failed.", job.identifier)
            said = "The measurement failed. See the log of the service."
            self._change(job, error=said, state="failed", ended=time.time())
        else:
            self._change(job, answer=answer, share=1.0, state="done", ended=time.time())

    def _progress(self, job: Job, progress: Progress) -> None:
        if self._closed.is_set():
            raise BusyError(_CLOSED)
        self._change(job, share=progress.share)

    def _change(self, job: Job, **changes: Any) -> None:
        # The state last: whoever sees that a job is over finds its answer.
        for name, value in sorted(changes.items(), key=lambda item: item[0] == "state"):
            setattr(job, name, value)
        job.version += 1


class _Place:
    """A platform, and the thread that does its jobs one after another; the process may end under it."""

    def __init__(self, run: Callable[[_Task], None]) -> None:
        self.waiting: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._run_job = run
        self.thread = threading.Thread(target=self._run, name="nni-latency-job", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while (found := self.waiting.get()) is not None:
            self._run_job(found)
