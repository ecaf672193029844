# SPDX-License-Identifier: Apache-2.0
"""`JobQueue`: requested measurements, run one at a time per platform."""

from __future__ import annotations

import itertools
import logging
import queue
import secrets
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from nni_latency.errors import BusyError, InvalidValueError, LatencyError, UnknownNameError
from nni_latency.measurement import Progress
from nni_latency.units import number_of
from nni_latency_service.query import Answer

State = Literal["queued", "running", "done", "failed", "cancelled"]

_LOG = logging.getLogger(__name__)

#: Timeout for running measurements to end when the queue is closed [s].
_PATIENCE = 10.0

_CLOSED = "The service was stopped before it was measured. What was measured is kept: ask again when it is back."

#: Polling interval of a job that waits for a machine [s].
_LOOK = 0.2

#: Work of a job; receives the progress callback.
Work = Callable[[Callable[[Progress], None]], Answer]


@dataclass
class Job:
    """A requested measurement.

    Parameters
    ----------
    identifier : str
        Identifier of the job.
    key, name, platform : str
        Key and name of the network, and id of the platform.
    owner : str
        Name of the caller.
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
    #: Incremented with every change.
    version: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the job has reached a final state."""
        return self.state in ("done", "failed", "cancelled")

    def content(self) -> dict[str, Any]:
        """Return the job as plain values."""
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


@dataclass(frozen=True)
class _Task:
    """A job and the callable that runs it."""

    job: Job
    work: Work
    is_ready: Callable[[], bool]


class JobQueue:
    """Queue of measurements: one job at a time per platform; identical requests share a job.

    Thread-safe.

    Parameters
    ----------
    most : int
        Largest number of queued and running jobs.
    kept : int
        Number of finished jobs to keep.
    patience : float, default=600.0
        How long a job waits for a machine of its platform to return [s].
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
        is_ready: Callable[[], bool] = lambda: True,
    ) -> Job:
        """Queue a measurement. If it is already queued or running, its job is returned.

        Parameters
        ----------
        key, name, platform : str
            Key and name of the network, and id of the platform.
        owner : str
            Name of the caller.
        work : callable
            Runs the measurement and returns the answer.
        is_ready : callable, optional
            Whether a machine of the platform is available. While none is, for example during the restart of a worker,
            the job stays in the queue. A job that failed because its machine left is queued again.

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
        """Return a job by its identifier.

        Raises
        ------
        UnknownNameError
            If the job does not exist or is no longer kept.
        """
        job = self._jobs.get(identifier)
        if job is None:
            raise UnknownNameError(f"There is no job {identifier[:60]!r}. Jobs that were over long ago are forgotten.")
        return job

    def all(self) -> list[Job]:
        """Return all jobs, newest first."""
        with self._lock:
            return list(reversed(self._jobs.values()))

    def cancel(self, identifier: str) -> Job:
        """Cancel a queued job.

        Raises
        ------
        UnknownNameError
            If the job does not exist.
        InvalidValueError
            If the job is running or finished.
        """
        job = self.find(identifier)
        with self._lock:
            if job.state != "queued":
                raise InvalidValueError(f"Only a job that is queued can be cancelled. This one is {job.state}.")
            self._change(job, state="cancelled", ended=time.time())
        return job

    def counts(self) -> dict[str, int]:
        """Return the number of jobs in each state."""
        found = Counter(job.state for job in self.all())
        return {state: found[state] for state in get_args(State)}

    def stop(self) -> None:
        """Reject new jobs and drop queued jobs. A running job that fails from now on is not queued again."""
        with self._lock:
            self._closed.set()
            for job in self._jobs.values():
                if job.state == "queued":
                    self._change(job, state="cancelled", error=_CLOSED, ended=time.time())

    def close(self) -> None:
        """Reject new jobs, drop queued jobs and stop running ones. Completed measurements are kept."""
        self.stop()
        with self._lock:
            places = list(self._places.values())
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
        """Wait until a machine of the platform is available; return whether the job should run."""
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
        except Exception:  # a failed job must not end the thread of the others
            _LOG.exception("Job %s failed.", job.identifier)
            message = "The measurement failed. See the log of the service."
            self._change(job, error=message, state="failed", ended=time.time())
        else:
            self._change(job, answer=answer, share=1.0, state="done", ended=time.time())

    def _progress(self, job: Job, progress: Progress) -> None:
        if self._closed.is_set():
            raise BusyError(_CLOSED)
        self._change(job, share=progress.share)

    def _change(self, job: Job, **changes: Any) -> None:
        # The state comes last, so that a finished job always has its answer.
        for name, value in sorted(changes.items(), key=lambda item: item[0] == "state"):
            setattr(job, name, value)
        job.version += 1


class _Place:
    """A platform and the daemon thread that runs its jobs one at a time."""

    def __init__(self, run: Callable[[_Task], None]) -> None:
        self.waiting: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._run_job = run
        self.thread = threading.Thread(target=self._run, name="nni-latency-job", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while (found := self.waiting.get()) is not None:
            self._run_job(found)
