"""`Job`: a slice of a campaign, as it goes to a worker, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nni_latency.errors import LatencyError
from nni_latency.measurement import Limits, Meter, Protocol, Visited

#: Longest time that a job takes, unless a single visit takes longer [s].
SLICE = 60.0

Task = Literal["admit", "visit", "steps", "conditions", "close"]


@dataclass(frozen=True)
class BenchPlace:
    """Which bench a job is done on; a worker opens it when it sees the first job. Immutable.

    Parameters
    ----------
    bench : str
        Names it; no other bench has this name.
    protocol : Protocol
        How networks are timed on it.
    calls : bool
        Whether it times calls of torch functions.
    inside : bool
        Whether it is of the runtime that stands in for the worker's own where that cannot be timed inside.
    limits : Limits, optional
        What the process may use in which it lies.
    meters : tuple of (str or Meter)
        What is read besides the clock: the names of meters of the worker, or what assumes something instead.
    """

    bench: str
    protocol: Protocol
    calls: bool = False
    inside: bool = False
    limits: Limits | None = None
    meters: tuple[str | Meter, ...] = ()


@dataclass(frozen=True)
class Job:
    """A slice of a campaign: what one worker does in one go. Immutable.

    Parameters
    ----------
    place : BenchPlace
        Where.
    task : {"admit", "visit", "steps", "conditions", "close"}
        What.
    asked : tuple of (tuple of str, bool)
        Networks to be visited, and whether their calls are timed; or one network whose subjects are run in steps.
    subjects : mapping of str to bytes
        Subjects that the worker may not have yet, as `nni_latency.measurement.pack_subject` made them.
    limit : float, default=60.0
        Nothing more is begun after so much time [s].
    """

    place: BenchPlace
    task: Task
    asked: tuple[tuple[tuple[str, ...], bool], ...] = ()
    subjects: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    limit: float = SLICE

    @property
    def keys(self) -> tuple[str, ...]:
        """Every subject that it needs, once."""
        return tuple(dict.fromkeys(key for keys, _ in self.asked for key in keys))


@dataclass(frozen=True)
class Answer:
    """What a worker says to a job. Immutable.

    Parameters
    ----------
    worker : str
        Its name.
    visits : tuple of Visited
        What was measured, in the order in which it was asked for; the rest of the job was not begun.
    admitted : tuple of (LatencyError or None)
        Of each subject that was to be loaded, why it could not be; the rest of the job was not begun.
    lacking : tuple of str
        Subjects that the worker does not have: nothing was done.
    failure : LatencyError, optional
        What ended the job after these visits.
    conditions : mapping
        What the machine is like.
    """

    worker: str
    visits: tuple[Visited, ...] = ()
    admitted: tuple[LatencyError | None, ...] = ()
    lacking: tuple[str, ...] = ()
    failure: LatencyError | None = None
    conditions: Mapping[str, Any] = field(default_factory=dict)
