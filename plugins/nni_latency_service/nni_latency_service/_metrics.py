# SPDX-License-Identifier: Apache-2.0
"""`ServiceMetrics`: Prometheus metrics of a service."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from nni_latency_service._service import LatencyService

#: Buckets of the histogram of response times [s].
_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0)


class ServiceMetrics:
    """Counts requests, and exports the counters of a service."""

    def __init__(self, service: LatencyService) -> None:
        self._service = service
        self._registry = CollectorRegistry()
        prefix, registry = "nni_latency_", self._registry
        self._requests = Counter(f"{prefix}requests", "Requests by status.", ["status"], registry=registry)
        self._times = Histogram(f"{prefix}request_seconds", "Time of requests.", buckets=_BOUNDS, registry=registry)
        self._answers = Gauge(f"{prefix}answers", "Answers by source.", ["source"], registry=registry)
        self._jobs = Gauge(f"{prefix}jobs", "Remembered jobs by state.", ["state"], registry=registry)
        started = Gauge(f"{prefix}start_time_seconds", "When the service began.", registry=registry)
        started.set(service.began)

    @contextmanager
    def request(self) -> Iterator[Callable[[int], None]]:
        """Count a request; yields a callback that takes the HTTP status."""
        begin = time.perf_counter()
        yield lambda status: self._requests.labels(str(status)).inc()
        self._times.observe(time.perf_counter() - begin)

    def exposition(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        for source in ("record", "measurement", "prediction"):
            self._answers.labels(source).set(self._service.sources[source])
        for state, count in self._service.jobs.counts().items():
            self._jobs.labels(state).set(count)
        return generate_latest(self._registry)
