"""Fits on a farm: what joblib runs side by side goes to workers that own no device."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from joblib.parallel import ParallelBackendBase, SequentialBackend

#: What workers have that fit, and ask for jobs that are fits.
FITS = "nni-latency-fits"


class FitBackend(ParallelBackendBase):
    """Runs what `joblib.Parallel` asks for on the workers of a farm that fit, each in a job of its own.

    joblib's own backend for Dask hands data, and what runs inside of a job, to all workers, those too that measure.

    Parameters
    ----------
    client : distributed.Client
        The client of the farm.
    count : int
        Workers that fit.
    """

    supports_retrieve_callback = True

    def __init__(self, client: Any, count: int, **options: Any) -> None:
        super().__init__(**options)
        self._client, self._count = client, count
        self._futures: list[Any] = []

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return how many jobs run side by side."""
        # Never 1, for which nobody asks a backend: a single worker takes the work from this machine, too.
        return max(2, self._count)

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], Any] | None = None) -> Any:
        """Have a worker do something."""
        key = f"{FITS}-{uuid.uuid4().hex}"
        future = self._client.submit(func, key=key, pure=False, resources={FITS: 1})
        self._futures.append(future)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Any) -> Any:
        """Return what a worker has done, or raise what it raised."""
        return out.result()

    def stop_call(self) -> None:
        """Forget the jobs of a call."""
        self._futures.clear()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancel what is not done yet."""
        self._client.cancel(self._futures, force=True)
        self._futures.clear()

    def get_nested_backend(self) -> tuple[Any, None]:
        """Return what runs inside of a job: one thing after another."""
        return SequentialBackend(nesting_level=(self.nesting_level or 0) + 1), None
