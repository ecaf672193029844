"""Latencies of one network that cannot both be right."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Protocol, TypeVar

from nni_latency.platforms import Platform

#: Two latencies of one network disagree from here on, as a ratio.
DISAGREEMENT = 0.1

Item = TypeVar("Item")


class Measured(Protocol):
    """A latency of a network that has a name."""

    @property
    def name(self) -> str:
        """Tells the network and its batch size from others."""

    @property
    def latency(self) -> float:
        """Time of a run [s]."""

    @property
    def platform(self) -> Platform:
        """Where it was measured."""


def latency_conflicts(networks: Iterable[Measured]) -> list[str]:
    """Say which networks have two latencies on one platform that differ by more than a tenth.

    Parameters
    ----------
    networks : iterable
        Such as `MeasuredNetwork`: each with a ``name``, a ``latency`` and a ``platform``.

    Returns
    -------
    list of str
        The network, both latencies and the platform, for every latency that differs from the first.
    """
    pairs = disagreements(networks, lambda item: (item.name, item.platform.id), lambda item: item.latency)
    return [
        f"{item.name!r} takes {known.latency * 1e3:g} ms and {item.latency * 1e3:g} ms on {item.platform.id}"
        for known, item in pairs
    ]


def disagreements(
    items: Iterable[Item], key: Callable[[Item], Hashable], latency: Callable[[Item], float]
) -> Iterator[tuple[Item, Item]]:
    """Find what was measured twice with results too different to be those of one measurement.

    Parameters
    ----------
    items : iterable
        Latencies of networks.
    key : callable
        Tells what was measured, where and in what batch.
    latency : callable
        The time of a run [s].

    Yields
    ------
    tuple of two items
        The first of a key, and one of the same key that differs from it by more than a tenth.
    """
    first: dict[Hashable, Item] = {}
    for item in items:
        known = first.setdefault(key(item), item)
        if abs(latency(item) / latency(known) - 1) > DISAGREEMENT:
            yield known, item
