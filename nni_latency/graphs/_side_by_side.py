# SPDX-License-Identifier: Apache-2.0
"""Parallel calls in processes of this machine."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from joblib import Parallel

#: Result type of `joblib.delayed`.
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def side_by_side(calls: Iterable[Call], n_jobs: int | None) -> Iterator[Any]:
    """Yield the results of parallel calls in order, each as soon as it is available.

    Parameters
    ----------
    calls : iterable of Call
        Calls, created by `joblib.delayed`.
    n_jobs : int, optional
        Parallel processes, as in joblib.
    """
    calls = list(calls)
    if not calls:
        # joblib would warn of unconsumed results.
        return
    found = Parallel(n_jobs=n_jobs, return_as="generator")(calls)
    for number in range(1, len(calls) + 1):
        with warnings.catch_warnings():
            # joblib warns when it replaces a worker process whose memory has grown; no call is lost. Where warnings are
            # errors, this one would end the thread that dispatches calls, and the remaining results would never come.
            warnings.filterwarnings("ignore", "A worker stopped while some jobs were given", UserWarning)
            item = next(found)
            if number == len(calls):
                # Exhaust the generator: joblib also warns if it is not consumed to the end.
                next(found, None)
        yield item
