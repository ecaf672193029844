"""How a member of a family differs from the published network: random sizes around the original ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


class Variation:
    """Random sizes around those of a published network, decided by a seed.

    Parameters
    ----------
    seed : int
        What decides. 0 is the published network itself.
    family : str, default=""
        So that networks of different families with one seed do not vary alike.

    Examples
    --------
    >>> Variation(0).channels(64), Variation(0).depth(3), Variation(0).kernel(3)
    (64, 3, 3)
    >>> Variation(7).channels(64) == Variation(7).channels(64)
    True
    """

    def __init__(self, seed: int, family: str = "") -> None:
        self.published = seed == 0
        self._generator = np.random.default_rng([seed, *family.encode()])

    def scale(self, low: float = 0.4, high: float = 1.6) -> float:
        """Draw a factor, small ones as often as large ones on a logarithmic scale."""
        factor = float(np.exp(self._generator.uniform(np.log(low), np.log(high))))
        return 1.0 if self.published else factor

    def channels(self, usual: int, *, multiple: int = 8, low: float = 0.6, high: float = 1.4) -> int:
        """Draw a number of channels around the usual one, a multiple of a number."""
        factor = self.scale(low, high)
        return usual if self.published else max(multiple, round(usual * factor / multiple) * multiple)

    def depth(self, usual: int, *, least: int = 1, spread: int = 1) -> int:
        """Draw a number of blocks at most `spread` off the usual one."""
        off = int(self._generator.integers(-spread, spread, endpoint=True))
        return usual if self.published else max(least, usual + off)

    def kernel(self, usual: int, choices: Sequence[int] = (3, 5, 7)) -> int:
        """Draw the size of a window: the usual one in half of the cases."""
        drawn, stays = int(self._generator.choice(list(choices))), self._generator.random() < 0.5
        return usual if self.published or stays else drawn

    def choose(self, usual: T, choices: Sequence[T]) -> T:
        """Draw one of several."""
        drawn = choices[int(self._generator.integers(len(choices)))]
        return usual if self.published else drawn
