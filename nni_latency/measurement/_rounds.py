"""Balanced rounds: every candidate of every layer once, in as few whole networks as possible."""

from __future__ import annotations

import random
from collections.abc import Sequence


def balanced_round(
    sizes: Sequence[int],
    index: int,
    seed: int = 0,
    *,
    wanted: Sequence[Sequence[int]] | None = None,
    costs: Sequence[Sequence[float]] | None = None,
    alignment: float = 0.0,
) -> list[tuple[int, ...]]:
    """Draw the networks of one round.

    A round holds as many networks as the largest layer has candidates. In each layer a random permutation deals out
    the candidates, so that the networks together hold each one once (a row of a Latin square); layers with fewer
    candidates begin again, and no candidate comes more than once more often than another.

    Random networks are all about equally costly. With an `alignment` the cheap candidates of all layers meet in one
    network and the costly ones in another, so that candidates are also met in very light and very heavy networks.

    Parameters
    ----------
    sizes : sequence of int
        Candidates of every layer, each at least 1.
    index : int
        Number of the round. The same arguments give the same round, in every process.
    seed : int, default=0
        Seed of all rounds.
    wanted : sequence of sequence of int, optional
        Indices of the candidates to deal in every layer, at least one each; all of them by default.
    costs : sequence of sequence of float, optional
        What every candidate of every layer costs, as far as is known; needed for an alignment.
    alignment : float, default=0.0
        0 deals at random; 1 sorts, so that the first network dealt is the cheapest and the last the costliest.

    Returns
    -------
    list of tuple of int
        Networks in the order in which they are to be timed; a network is an index per layer.

    Examples
    --------
    >>> sorted(network[0] for network in balanced_round([3, 1, 2], 0))
    [0, 1, 2]
    >>> sorted(balanced_round([2, 2], 0, costs=[[1.0, 2.0], [5.0, 3.0]], alignment=1.0))
    [(0, 1), (1, 0)]
    """
    generator = random.Random(f"{seed}/{index}")
    hands = [range(size) for size in sizes] if wanted is None else wanted
    count = max(map(len, hands))
    columns = [_deal(hand, count, generator) for hand in hands]
    if alignment > 0 and costs is not None:
        columns = [_align(column, cost, alignment, generator) for column, cost in zip(columns, costs, strict=True)]
    networks = [tuple(column[network] for column in columns) for network in range(count)]
    if alignment > 0:
        generator.shuffle(networks)
    return networks


def light_network(
    candidates: Sequence[Sequence[int]], costs: Sequence[Sequence[float]], index: int, seed: int = 0
) -> tuple[int, ...]:
    """Draw a network that is lighter than random ones, down to the cheapest of all.

    Each layer takes one of its k cheapest candidates, with the same k, from 1 to 5, in all layers.

    Parameters
    ----------
    candidates : sequence of sequence of int
        Indices of the candidates of every layer, at least one each.
    costs : sequence of sequence of float
        What every candidate of every layer costs, as far as is known.
    index, seed : int
        As for `balanced_round`.

    Returns
    -------
    tuple of int
        An index per layer.

    Examples
    --------
    >>> {light_network([[0, 1], [0]], [[2.0, 1.0], [1.0]], index) for index in range(20)} == {(0, 0), (1, 0)}
    True
    """
    generator = random.Random(f"{seed}/{index}/light")
    most = generator.randint(1, 5)
    return tuple(
        generator.choice(sorted(hand, key=lambda candidate, cost=cost: cost[candidate])[:most])  # type: ignore[misc]
        for hand, cost in zip(candidates, costs, strict=True)
    )


def _deal(hand: Sequence[int], count: int, generator: random.Random) -> list[int]:
    dealt: list[int] = []
    while len(dealt) < count:
        again = list(hand)
        generator.shuffle(again)
        dealt += again
    dealt = dealt[:count]
    generator.shuffle(dealt)
    return dealt


def _align(column: list[int], costs: Sequence[float], alignment: float, generator: random.Random) -> list[int]:
    """Sort a column by cost, the less strictly the smaller the alignment."""
    ordered = sorted(column, key=lambda candidate: costs[candidate])
    last = max(1, len(ordered) - 1)
    keys = [alignment * rank / last + (1 - alignment) * generator.random() for rank in range(len(ordered))]
    return [candidate for _, candidate in sorted(zip(keys, ordered, strict=True))]
