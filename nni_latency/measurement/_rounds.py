"""Balanced rounds: every candidate of every layer once, in as few whole networks as possible."""

from __future__ import annotations

import random
from collections.abc import Sequence


def balanced_round(sizes: Sequence[int], index: int, seed: int = 0) -> list[tuple[int, ...]]:
    """Draw the networks of one round.

    A round holds as many networks as the largest layer has candidates. In each layer a random permutation deals out
    the candidates, so that the networks together hold each one once (a row of a Latin square); layers with fewer
    candidates begin again, and no candidate comes more than once more often than another.

    Parameters
    ----------
    sizes : sequence of int
        Candidates of every layer, each at least 1.
    index : int
        Number of the round. The same seed and number give the same round, in every process.
    seed : int, default=0
        Seed of all rounds.

    Returns
    -------
    list of tuple of int
        Networks in the order in which they are to be timed; a network is an index per layer.

    Examples
    --------
    >>> sorted(network[0] for network in balanced_round([3, 1, 2], 0))
    [0, 1, 2]
    """
    generator = random.Random(f"{seed}/{index}")
    count = max(sizes)
    columns = [_deal(size, count, generator) for size in sizes]
    return [tuple(column[network] for column in columns) for network in range(count)]


def _deal(size: int, count: int, generator: random.Random) -> list[int]:
    dealt: list[int] = []
    while len(dealt) < count:
        hand = list(range(size))
        generator.shuffle(hand)
        dealt += hand
    dealt = dealt[:count]
    generator.shuffle(dealt)
    return dealt
