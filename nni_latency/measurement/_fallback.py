"""`Fallback`: nodes of a network that did not run where, or in the precision, that was asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nni_latency.errors import listed
from nni_latency.units import number_of


@dataclass(frozen=True)
class Fallback:
    """Nodes of a network that did not run where, or in the precision, that was asked for. Immutable.

    Parameters
    ----------
    ran : str
        Where they ran instead, with a preposition, such as ``in f32`` or ``on CPUExecutionProvider``.
    operators : tuple of (str, int)
        Kinds of operators, in the runtime's own words, and how many nodes of each, the most frequent first.
    n_nodes : int
        Nodes of the whole network; what only moves or converts a tensor does not count.

    Examples
    --------
    >>> print(Fallback.of("in f32", ["Softmax", "Gelu", "Softmax"], 40))
    3 of 40 nodes ran in f32: Softmax (2), Gelu
    """

    ran: str
    operators: tuple[tuple[str, int], ...]
    n_nodes: int

    @classmethod
    def of(cls, ran: str, kinds: Iterable[str], n_nodes: int) -> Fallback:
        """Count the nodes of each kind."""
        return cls(ran, _ordered(Counter(kinds)), n_nodes)

    @classmethod
    def of_content(cls, content: Mapping[str, Any]) -> Fallback:
        """Make one of plain values.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it is not what `content` returned.
        """
        operators = tuple((str(kind), int(count)) for kind, count in content["operators"])
        made = cls(str(content["ran"]), operators, int(content["n_nodes"]))
        if not 0 < made.count <= made.n_nodes:
            raise ValueError(f"{made.count} of {number_of(made.n_nodes, 'node')} cannot fall back")
        return made

    @property
    def count(self) -> int:
        """How many nodes they are."""
        return sum(count for _, count in self.operators)

    def content(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"ran": self.ran, "operators": [list(item) for item in self.operators], "n_nodes": self.n_nodes}

    def __str__(self) -> str:
        return f"{self.count} of {number_of(self.n_nodes, 'node')} ran {self.ran}: {_named(self.operators)}"


def fallbacks_of(nodes: Iterable[tuple[str, str]], asked: Iterable[str], ran: str = "in {}") -> tuple[Fallback, ...]:
    """Say which nodes of a network fell back.

    Parameters
    ----------
    nodes : iterable of (str, str)
        Of every node, the kind of operator and where it ran.
    asked : iterable of str
        Where they should run.
    ran : str, default="in {}"
        How that is written in a sentence.

    Returns
    -------
    tuple of Fallback
        One for each other place, in the order of their names.

    Examples
    --------
    >>> [str(item) for item in fallbacks_of([("Conv", "i8"), ("Softmax", "f32")], ["i8", "u8"])]
    ['1 of 2 nodes ran in f32: Softmax']
    """
    known, wanted = list(nodes), set(asked)
    places = sorted({place for _, place in known} - wanted)
    return tuple(
        Fallback.of(ran.format(place), (kind for kind, at in known if at == place), len(known)) for place in places
    )


def summarise_fallbacks(networks: Mapping[Any, Iterable[Fallback]]) -> tuple[str, ...]:
    """Say in a sentence a place which operators of many networks fell back there.

    Parameters
    ----------
    networks : mapping
        By network, its fallbacks.

    Returns
    -------
    tuple of str

    Examples
    --------
    >>> networks = {"a": [Fallback.of("in f32", ["Softmax"], 40)], "b": [], "c": [Fallback.of("in f32", ["Gelu"], 20)]}
    >>> summarise_fallbacks(networks)
    ('In 2 of 3 networks, up to 1 of 20 nodes ran in f32: Gelu, Softmax.',)
    """
    by_place: dict[str, list[Fallback]] = {}
    for found in networks.values():
        for item in found:
            by_place.setdefault(item.ran, []).append(item)
    return tuple(_summary(items, len(networks)) for _, items in sorted(by_place.items()))


def _summary(items: list[Fallback], n_networks: int) -> str:
    if len(set(items)) == 1 and n_networks == len(items):
        return f"{'Of every network, ' if n_networks > 1 else ''}{items[0]}."
    worst = max(items, key=lambda item: item.count / item.n_nodes)
    kinds = Counter(kind for item in items for kind, _ in item.operators)
    return (
        f"In {len(items)} of {number_of(n_networks, 'network')}, up to {worst.count} of "
        f"{number_of(worst.n_nodes, 'node')} ran {worst.ran}: {listed([kind for kind, _ in _ordered(kinds)])}."
    )


def _ordered(counts: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _named(operators: Iterable[tuple[str, int]]) -> str:
    return listed(f"{kind} ({count})" if count > 1 else kind for kind, count in operators)
