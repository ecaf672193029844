"""What a service takes at most."""

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
    """What a service takes at most. Immutable.

    Parameters
    ----------
    body : int
        Size of a request [byte].
    numbers : int
        Numbers of all weights of a network together, and of one tensor between two operators.
    queue : int
        Measurements that wait or run.
    rate, burst : float
        Requests of a client by second in the long run, and at once.
    uploads : float
        Networks that a client may send by second in the long run; fifty times as many at once.
    bulk : int
        Questions of one request.
    page : int
        Items of one page of a list.
    read_time : float
        Time to read a network [s].
    patience : float
        How long a measurement waits for a machine of its platform that has gone [s].
    kept : int
        Networks, and ended jobs, that are remembered.
    read, measure : Limits
        What the processes may use that read and measure networks.
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
    """Lets every client do so much in the long run, and some at once. Safe in several threads.

    Parameters
    ----------
    rate : float
        By second.
    burst : float
        At once.
    clock : callable, default=time.monotonic
        Tells the time [s].

    Examples
    --------
    >>> limiter = RateLimiter(1.0, 2.0, clock=lambda: 0.0)
    >>> [limiter.wait("me") for _ in range(3)]
    [0.0, 0.0, 1.0]
    """

    #: Clients that are remembered; a forgotten one begins anew.
    MOST_CLIENTS = 10_000

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._clients: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def wait(self, client: str, cost: float = 1.0) -> float:
        """Take what something costs from a client; return 0, or how long it has to wait [s] if it has not so much."""
        now = self._clock()
        with self._lock:
            left, at = self._clients.pop(client, (self._burst, now))
            left = min(self._burst, left + (now - at) * self._rate)
            allowed = left >= min(cost, self._burst)
            self._clients[client] = (left - cost if allowed else left, now)
            while len(self._clients) > self.MOST_CLIENTS:
                self._clients.popitem(last=False)
        return 0.0 if allowed else (min(cost, self._burst) - left) / self._rate
