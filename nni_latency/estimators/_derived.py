"""`Derived`: a value that follows from choices, and decides by itself what their many combinations have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Derived:
    """A label whose value follows from those of others.

    Parameters
    ----------
    label : str
        Its name.
    labels : tuple of str
        What it follows from.
    function : callable
        Computes its value of a sample.
    """

    label: str
    labels: tuple[str, ...]
    function: Callable[[Mapping[str, Any]], Any]
