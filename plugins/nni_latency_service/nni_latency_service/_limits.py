# SPDX-License-Identifier: Apache-2.0
"""Limits of a service."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from nni_latency.measurement import Limits

_READ = Limits(memory=2 * 2**30, file_size=256 * 2**20, open_files=256)
_MEASURE = Limits(memory=8 * 2**30, file_size=2**30, open_files=1024)


@dataclass(frozen=True)
class ServiceLimits:
    """Limits of a service. Immutable.

    Parameters
    ----------
    body : int
        Size of a request [byte].
    numbers : int
        Number of elements of all weights of a network, and of one intermediate tensor.
    queue : int
        Queued and running measurements.
    rate, burst : float
        Sustained requests of a client per second, and size of a burst.
    uploads : float
        Sustained uploads of a client per second; a burst may be fifty times as large.
    bulk : int
        Queries per request.
    page : int
        Items per page of a list.
    read_time : float
        Time to read a network [s].
    patience : float
        How long a measurement waits for a machine of its platform to return [s].
    kept : int
        Number of networks and of finished jobs to keep.
    read, measure : Limits
        Resource limits of the processes that read and measure networks.
    """

    body: int = 64 * 2**20
    numbers: int = 2**30
    queue: int = 100
    rate: float = 1000.0
    burst: float = 2000.0
    uploads: float = 20.0
    bulk: int = 256
    page: int = 500
    read_time: float = 30.0
    patience: float = 600.0
    kept: int = 256
    read: Limits = _READ
    measure: Limits = _MEASURE


class RateLimiter:
    """Token bucket per client. Thread-safe.

    Parameters
    ----------
    rate : float
        Sustained rate [1/s].
    burst : float
        Size of a burst.
    clock : callable, default=time.monotonic
        Returns the time [s].

    Examples
    --------
    >>> limiter = RateLimiter(1.0, 2.0, clock=lambda: 0.0)
    >>> [limiter.wait("me") for _ in range(3)]
    [0.0, 0.0, 1.0]
    """

    #: Number of clients to keep; a dropped client starts with a full bucket.
    MOST_CLIENTS = 10_000

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._clients: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def wait(self, client: str, cost: float = 1.0) -> float:
        """Charge a client; return 0, or the time to wait [s] if its bucket is too low."""
        now = self._clock()
        with self._lock:
            left, at = self._clients.pop(client, (self._burst, now))
            left = min(self._burst, left + (now - at) * self._rate)
            allowed = left >= min(cost, self._burst)
            self._clients[client] = (left - cost if allowed else left, now)
            while len(self._clients) > self.MOST_CLIENTS:
                self._clients.popitem(last=False)
        return 0.0 if allowed else (min(cost, self._burst) - left) / self._rate
