"""`Derived`: values that follow from choices, and say by themselves what many combinations have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Derived:
    """Labels whose values follow from those of others.

    Parameters
    ----------
    outputs : tuple of str
        Their names.
    labels : tuple of str
        What they follow from.
    function : callable
        Computes their values, a tuple, of a sample.
    """

    outputs: tuple[str, ...]
    labels: tuple[str, ...]
    function: Callable[[Mapping[str, Any]], tuple[Any, ...]]
