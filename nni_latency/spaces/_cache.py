"""What was walked and traced before, in a private folder of the user's cache."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Literal, TypeVar

from joblib import Memory

from nni_latency.files import cache_folder, make_private

_T = TypeVar("_T")

#: Room that walks and traces may take [byte]; those that were not read for longest go first.
_MOST_BYTES = 256 * 2**20


def cached(kind: Literal["walk", "traces"], key: str | None, compute: Callable[[], _T], *, fresh: bool = False) -> _T:
    """Return what was computed before under a key, or compute it and keep it.

    What is kept is pickled, so it is read from a folder alone that nobody but the user can write to. Nothing is kept
    where there is no such folder, or no key.
    """
    folder = cache_folder() / "spaces"
    if key is None or not make_private(folder):
        return compute()
    try:
        with warnings.catch_warnings():
            # Neither a full disk nor a slow one concerns the walk.
            warnings.filterwarnings("ignore", "Unable to (cache|write)|Persisting input arguments")
            memory = Memory(folder, verbose=0)
            function = memory.cache(_compute, ignore=["compute"], cache_validation_callback=lambda _: not fresh)
            known = function.check_call_in_cache(kind, key, compute)
            found: _T = pickle.loads(function(kind, key, compute))
        if not known and kind == "walk":
            memory.reduce_size(_MOST_BYTES)
    except OSError:  # joblib does not catch all that a full disk leads to
        return compute()
    return found


def _compute(kind: str, key: str, compute: Callable[[], object]) -> bytes:
    # Of anything else than bytes joblib makes pickles that are read in Python, ten times as slowly.
    return pickle.dumps(compute())
