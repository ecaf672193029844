# SPDX-License-Identifier: Apache-2.0
"""Fitting on a farm: joblib's parallel jobs run on workers without a device."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from joblib.parallel import ParallelBackendBase, SequentialBackend

#: Dask resource of fitting workers, required by fit jobs.
FITS = "nni-latency-fits"


class FitBackend(ParallelBackendBase):
    """joblib backend that runs each call of `joblib.Parallel` as a job on the fitting workers of a farm.

    joblib's own Dask backend sends data and nested jobs to all workers, including those that measure.
    """

    supports_retrieve_callback = True

    def __init__(self, client: Any, count: int, **options: Any) -> None:
        super().__init__(**options)
        self._client, self._count = client, count
        self._futures: list[Any] = []

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return the number of parallel jobs."""
        # Never 1, for which joblib bypasses the backend: even a single worker should relieve this machine.
        return max(2, self._count)

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], Any] | None = None) -> Any:
        """Submit a call to a worker."""
        key = f"{FITS}-{uuid.uuid4().hex}"
        future = self._client.submit(func, key=key, pure=False, resources={FITS: 1})
        self._futures.append(future)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Any) -> Any:
        """Return the result of a worker, or raise its exception."""
        return out.result()

    def stop_call(self) -> None:
        """Forget the jobs of a call."""
        self._futures.clear()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancel the unfinished jobs."""
        self._client.cancel(self._futures, force=True)
        self._futures.clear()

    def get_nested_backend(self) -> tuple[Any, None]:
        """Return the sequential backend for nested jobs."""
        return SequentialBackend(nesting_level=(self.nesting_level or 0) + 1), None
