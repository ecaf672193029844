# SPDX-License-Identifier: Apache-2.0
"""`Job`: a slice of a campaign sent to a worker, and its `Answer`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nni_latency.errors import LatencyError
from nni_latency.measurement import Limits, Meter, Protocol, Visited

#: Longest duration of a job, unless a single visit takes longer [s].
SLICE = 60.0

Task = Literal["admit", "visit", "steps", "conditions", "close"]


@dataclass(frozen=True)
class BenchPlace:
    """The bench of a job; a worker opens it for the first job. Immutable.

    Parameters
    ----------
    bench : str
        Unique name of the bench.
    protocol : Protocol
        How networks are timed on it.
    calls : bool
        Whether it times calls of torch functions.
    inside : bool
        Whether the bench uses the stand-in of a runtime that does not support layer timing.
    limits : Limits, optional
        Resource limits of the process of the bench.
    meters : tuple of (str or Meter)
        Meters besides the clock: names of the worker's meters, or meters that assume a value.
    """

    bench: str
    protocol: Protocol
    calls: bool = False
    inside: bool = False
    limits: Limits | None = None
    meters: tuple[str | Meter, ...] = ()


@dataclass(frozen=True)
class Job:
    """A slice of a campaign that a worker runs without interruption. Immutable.

    Parameters
    ----------
    place : BenchPlace
        The bench.
    task : {"admit", "visit", "steps", "conditions", "close"}
        Type of the job.
    asked : tuple of (tuple of str, bool)
        Networks to visit, and whether to time their calls; or one network whose subjects run in steps.
    subjects : mapping of str to bytes
        Subjects that the worker may lack, packed by `nni_latency.measurement.pack_subject`.
    limit : float, default=60.0
        Time after which no further visit starts [s].
    """

    place: BenchPlace
    task: Task
    asked: tuple[tuple[tuple[str, ...], bool], ...] = ()
    subjects: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    limit: float = SLICE

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of all required subjects, without duplicates."""
        return tuple(dict.fromkeys(key for keys, _ in self.asked for key in keys))


@dataclass(frozen=True)
class Answer:
    """Result of a job. Immutable.

    Parameters
    ----------
    worker : str
        Name of the worker.
    visits : tuple of Visited
        Completed visits in the requested order; the rest of the job was not started.
    admitted : tuple of (LatencyError or None)
        Error of each loaded subject, or None; the rest of the job was not started.
    lacking : tuple of str
        Subjects that the worker lacks; if there are any, the job was not run.
    failure : LatencyError, optional
        Error that ended the job after these visits.
    conditions : mapping
        Conditions of the machine.
    is_lost : bool
        Whether the device was lost after these visits; the rest is for another worker.
    """

    worker: str
    visits: tuple[Visited, ...] = ()
    admitted: tuple[LatencyError | None, ...] = ()
    lacking: tuple[str, ...] = ()
    failure: LatencyError | None = None
    conditions: Mapping[str, Any] = field(default_factory=dict)
    is_lost: bool = False
