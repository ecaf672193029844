"""Calls that run side by side, in processes of this machine."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from joblib import Parallel

#: What `joblib.delayed` makes of a call.
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def side_by_side(calls: Iterable[Call], n_jobs: int | None) -> Iterator[Any]:
    """Yield what calls return, in their order, each as soon as it is there.

    Parameters
    ----------
    calls : iterable of Call
        What is called, made by `joblib.delayed`.
    n_jobs : int, optional
        Processes, as joblib takes it.
    """
    calls = list(calls)
    if not calls:
        # joblib would warn of answers that nobody has asked for.
        return
    found = Parallel(n_jobs=n_jobs, return_as="generator")(calls)
    for number in range(1, len(calls) + 1):
        with warnings.catch_warnings():
            # joblib replaces a process that holds more memory than it did at first, and warns of it; no call is lost.
            # Where warnings are errors, this one ends the thread that hands out calls, and none is answered any more.
            warnings.filterwarnings("ignore", "A worker stopped while some jobs were given", UserWarning)
            item = next(found)
            if number == len(calls):
                # joblib warns, too, of answers that nobody has asked for to the end.
                next(found, None)
        yield item
