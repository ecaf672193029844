# SPDX-License-Identifier: Apache-2.0
"""`Record`: the raw numbers of one visit, and the nodes that ran in another place or precision than requested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nni_latency.errors import listed
from nni_latency.units import number_of

#: Significant digits that are kept of a sample; more are noise.
DIGITS = 9

#: Clocks of a steady GPU differ by less than this share within a window.
CLOCK_CHANGE = 0.05


@dataclass(frozen=True)
class Visit:
    """Measurements of one visit of a network.

    Parameters
    ----------
    reference : float
        Time of the reference operator just before the visit [s].
    parts : list of list of float
        Time of every part by timed run [s]. For a network of one part, the time of every call of a torch function if
        the bench times calls, otherwise empty.
    samples : mapping of str to list of float
        Costs of the whole network by metric, in its SI unit, in runs without marks between the parts.
    fallbacks : tuple of Fallback, default=()
        Nodes that ran in another place or precision than requested.
    """

    reference: float
    parts: Sequence[Sequence[float]]
    samples: Mapping[str, Sequence[float]]
    fallbacks: tuple[Fallback, ...] = field(default=(), kw_only=True)

    @property
    def whole(self) -> Sequence[float]:
        """Latency of the whole network [s], by timed run."""
        return self.samples.get("latency", ())

    @property
    def marks(self) -> tuple[str, ...]:
        """Reasons to doubt the visit, as sentences: clocks or a power limit that changed during it.

        Examples
        --------
        >>> Visit(1.0, [], {"latency": [1.0], "gpu_clock": [1.41e9, 1.05e9]}).marks
        ('The GPU went from 1.41 to 1.05 GHz while it was measured.',)
        """
        clocks, limits = self.samples.get("gpu_clock", ()), self.samples.get("gpu_power_limit", ())
        found = []
        if clocks and max(clocks) - min(clocks) > CLOCK_CHANGE * max(clocks):
            first, *_, last = clocks
            ends = (first, last) if abs(last - first) > CLOCK_CHANGE * max(clocks) else (max(clocks), min(clocks))
            found.append(f"The GPU went from {ends[0] / 1e9:.2f} to {ends[1] / 1e9:.2f} GHz while it was measured.")
        if limits and max(limits) > min(limits):
            found.append(f"The GPU's power limit went from {limits[0]:g} to {limits[-1]:g} W while it was measured.")
        return tuple(found)


@dataclass(frozen=True)
class Record(Visit):
    """The raw numbers of one visit, with its subjects, process and time. Immutable.

    Parameters
    ----------
    subjects : tuple of str
        Keys of the subjects that ran in sequence.
    round : int
        Number of the round within the campaign.
    process : int
        Number of the worker process within the campaign.
    duration : float
        Time that the visit took, warm-up runs included [s].
    at : float
        When it ended [s since 1970, UTC].
    """

    subjects: tuple[str, ...] = ()
    round: int = 0
    process: int = 0
    duration: float = 0.0
    at: float = 0.0

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Record:
        """Read a record from the plain values of `content`.

        Raises
        ------
        KeyError, TypeError, ValueError
            If the values are not those of a record.
        """
        return cls(
            float(content["reference"]),
            tuple(tuple(map(float, run)) for run in content["parts"]),
            {str(metric): tuple(map(float, values)) for metric, values in content["samples"].items()},
            tuple(map(str, content["subjects"])),
            int(content["round"]),
            int(content["process"]),
            float(content["duration"]),
            float(content["at"]),
            fallbacks=tuple(map(Fallback.of_content, content.get("fallbacks", ()))),
        )

    def content(self) -> dict[str, Any]:
        """Return plain values for a store, with nine significant digits."""
        fallbacks = {"fallbacks": [item.content() for item in self.fallbacks]} if self.fallbacks else {}
        return {
            "subjects": list(self.subjects),
            "round": self.round,
            "process": self.process,
            "duration": rounded(self.duration),
            "at": round(self.at, 3),
            "reference": rounded(self.reference),
            "samples": {metric: [rounded(value) for value in values] for metric, values in self.samples.items()},
            "parts": [[rounded(seconds) for seconds in run] for run in self.parts],
            **fallbacks,
        }

    def rounded(self) -> Record:
        """Return the record as a store reads it back, so that resumed and uninterrupted campaigns end alike."""
        return Record.of(self.content())


@dataclass(frozen=True)
class Failure:
    """The key of a subject that cannot be measured, and the reason."""

    subject: str
    reason: str


def rounded(value: float) -> float:
    """Round a sample to its significant digits.

    >>> rounded(0.1234567891234)
    0.123456789
    """
    return float(f"{value:.{DIGITS}g}")


@dataclass(frozen=True)
class Fallback:
    """Nodes of a network that ran in another place or precision than requested. Immutable.

    Parameters
    ----------
    ran : str
        Where they ran instead, with a preposition, such as ``in f32`` or ``on CPUExecutionProvider``.
    operators : tuple of (str, int)
        Kinds of operators, as the runtime names them, with the number of nodes of each; the most frequent first.
    n_nodes : int
        Nodes of the whole network, without those that only move or convert a tensor.

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
        """Read a fallback from the plain values of `content`.

        Raises
        ------
        KeyError, TypeError, ValueError
            If the values are not those of a fallback.
        """
        operators = tuple((str(kind), int(count)) for kind, count in content["operators"])
        made = cls(str(content["ran"]), operators, int(content["n_nodes"]))
        if not 0 < made.count <= made.n_nodes:
            raise ValueError(f"{made.count} of {number_of(made.n_nodes, 'node')} cannot fall back")
        return made

    @property
    def count(self) -> int:
        """Number of the nodes."""
        return sum(count for _, count in self.operators)

    def content(self) -> dict[str, Any]:
        """Return plain values for a store."""
        return {"ran": self.ran, "operators": [list(item) for item in self.operators], "n_nodes": self.n_nodes}

    def __str__(self) -> str:
        return f"{self.count} of {number_of(self.n_nodes, 'node')} ran {self.ran}: {_named(self.operators)}"


def fallbacks_of(nodes: Iterable[tuple[str, str]], asked: Iterable[str], ran: str = "in {}") -> tuple[Fallback, ...]:
    """Return the nodes of a network that fell back.

    Parameters
    ----------
    nodes : iterable of (str, str)
        Kind of operator and place of every node.
    asked : iterable of str
        Requested places.
    ran : str, default="in {}"
        Phrase for a place in a sentence.

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
    """Describe the fallbacks of many networks, in one sentence for each place.

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
