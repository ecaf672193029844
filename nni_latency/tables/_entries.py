# SPDX-License-Identifier: Apache-2.0
"""Content of a table besides its header: entries of candidates and operators, layers, whole networks."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field, FiniteFloat, JsonValue, NonNegativeInt, PositiveFloat

from nni_latency.costs import Cost
from nni_latency.documents import RECORD, Operator
from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.operators import Features, OpSpec, work_of
from nni_latency.tables._neighbours import NEIGHBOUR, cost_beside
from nni_latency.tables._plan import PlanLayer

#: Kind of an imported operator of which only the name is known.
UNKNOWN = "unknown"

_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Entry(Cost):
    """What one candidate of a layer, or one operator, costs. Immutable.

    Parameters
    ----------
    value, low, high : float
        Cost and its interval, in the unit of the table's metric.
    n_samples, n_dropped : int
        Samples behind it, and how many of them were trimmed away; 0 for numbers from elsewhere.
    op : OpSpec or None
        The operator, where it is known.
    n_places, n_networks : int
        Places in networks where an operator was timed, and networks that have such a place.
    names : tuple of str
        What files of other projects call an operator, for one that comes from there.
    beside : mapping of str to float
        What an operator costs more, or less, in a place of a network whose neighbours are known: ``< kind`` for each
        tensor from an operator of a kind, ``> kind`` for each that leads to one, and the empty text once. Their mean
        over the places in networks is zero.

    Raises
    ------
    InvalidValueError
        If the value is negative or not finite, or lies outside its interval; or a neighbour or its cost is invalid.
    """

    n_samples: NonNegativeInt = 0
    n_dropped: Annotated[NonNegativeInt, Field(description="samples trimmed away")] = 0
    op: Operator | None = None
    n_places: Annotated[NonNegativeInt, Field(description="places in networks where it was timed")] = 0
    n_networks: Annotated[NonNegativeInt, Field(description="networks with such a place")] = 0
    names: Annotated[tuple[str, ...], Field(description="what files of other projects call it")] = ()
    beside: Annotated[
        Mapping[str, FiniteFloat],
        Field(description="cost in addition by neighbour: '< kind' that it reads, '> kind' that reads it, '' always"),
    ] = field(default_factory=dict)

    _finite = True
    __pydantic_config__ = RECORD

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, cost in self.beside.items():
            if not NEIGHBOUR.fullmatch(name) or not math.isfinite(cost):
                raise InvalidValueError(
                    "The costs beside neighbours must be finite numbers by '< kind', '> kind' or ''. "
                    f"Got {name!r}: {cost!r}."
                )

    @property
    def features(self) -> Features | None:
        """Features of the operator; None if it is unknown, or of a kind that cannot be counted."""
        if self.op is None:
            return None
        features, counted = work_of(self.op)
        return features if counted else None

    def in_place(self, neighbours: Iterable[str]) -> Entry:
        """Return the entry with the cost of the operator beside its neighbours."""
        return self.shifted(cost_beside(self.beside, neighbours))

    def scaled(self, factor: float) -> Entry:
        """Return the same entry with costs scaled by `factor`."""
        return replace(super().scaled(factor), beside={name: factor * cost for name, cost in self.beside.items()})

    @classmethod
    def _joined(cls, parts: Sequence[Entry], value: float, low: float, high: float) -> Entry:
        n_samples, n_dropped = sum(part.n_samples for part in parts), sum(part.n_dropped for part in parts)
        return cls(value, low, high, n_samples, n_dropped, parts[0].op)


@dataclass(frozen=True)
class TableLayer:
    """One layer of a table.

    Parameters
    ----------
    name : str
        Label of the layer in the space.
    choices : tuple of str
        Every candidate of the space, in the order of its indices, measured or not.
    entries : mapping of str to Entry
        The candidates that have a cost.
    searched : bool, default=True
        Whether the space chooses.
    default : str or None
        Candidate of a fixed layer.
    failures : mapping of str to str
        Candidates that could not be measured, each with the reason.

    Raises
    ------
    InvalidValueError
        If an entry, a failure or the default is not among the choices, two choices are the same, or a candidate has
        both an entry and a failure.
    """

    name: str
    choices: Annotated[
        tuple[str, ...], Field(min_length=1, description="every candidate, in the order of the space's indices")
    ]
    entries: Annotated[Mapping[str, Entry], Field(description="the candidates that have a cost")]
    searched: bool = True
    default: str | None = None
    failures: Annotated[Mapping[str, str], Field(description="candidates that could not be measured, and why")] = field(
        default_factory=dict
    )

    __pydantic_config__ = RECORD

    def __post_init__(self) -> None:
        others = sorted({*self.entries, *self.failures} - set(self.choices))
        both = sorted(set(self.entries) & set(self.failures))
        if others:
            raise InvalidValueError(f"Entries of {self.name!r} are not among its choices: {', '.join(others)}.")
        if both:
            raise InvalidValueError(f"Candidates of {self.name!r} have both an entry and a failure: {', '.join(both)}.")
        if len(set(self.choices)) != len(self.choices):
            raise InvalidValueError(f"The choices of {self.name!r} must all be different. Got {self.choices}.")
        if self.default is not None and self.default not in self.choices:
            raise InvalidValueError(f"The default {self.default!r} of {self.name!r} is not among its choices.")

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __getitem__(self, choice: str) -> Entry:
        """Return the entry of one candidate; raise `UnknownNameError` if it has none."""
        if choice not in self.entries:
            raise UnknownNameError.of(f"entry of {self.name!r}", choice, list(self.entries))
        return self.entries[choice]

    @property
    def missing(self) -> tuple[str, ...]:
        """Candidates without an entry."""
        return tuple(choice for choice in self.choices if choice not in self.entries)

    @classmethod
    def of_plan(
        cls, layer: PlanLayer, entries: Mapping[str, Entry] = _NONE, failures: Mapping[str, str] = _NONE
    ) -> TableLayer:
        """Build the layer of a plan; failed candidates have no entry, even if they were measured before."""
        kept = {choice: entry for choice, entry in entries.items() if choice not in failures}
        return cls(layer.name, tuple(layer.candidates), kept, layer.searched, layer.default, dict(failures))


def sample_text(sample: Mapping[str, Any]) -> str:
    """Write a sample as JSON; equal samples give the same text, also where one has lists and the other tuples."""
    return json.dumps(dict(sample), sort_keys=True, default=str)


@dataclass(frozen=True, kw_only=True)
class MeasuredNetwork(Cost):
    """One whole network that was measured for a table of operators. Immutable.

    Parameters
    ----------
    value, low, high : float
        Cost of unmarked runs of the whole network and its interval, in the unit of the table's metric.
    sample : mapping
        Its choices, ``{label: choice}``.
    entries : float
        Sum of its operators' entries, before calibration.
    n_samples : int
        Timed runs.
    """

    sample: Annotated[Mapping[str, JsonValue], Field(description="its choices by label, as NNI writes them")]
    entries: Annotated[PositiveFloat, Field(description="sum of its operators' entries, before calibration")]
    n_samples: NonNegativeInt = 0

    _finite = True
    __pydantic_config__ = RECORD

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.low > 0 and 0 < self.entries < math.inf):
            raise InvalidValueError(f"The costs of a network must be positive and finite. Got {self}.")

    def scaled(self, factor: float) -> MeasuredNetwork:
        """Return the same network with costs scaled by `factor`."""
        return replace(super().scaled(factor), entries=factor * self.entries)


def operator_name(place: str, choice: str) -> str:
    """Return the name of an operator in a file of another project, from the two parts that formats read.

    Examples
    --------
    >>> operator_name("Conv-input:8x8x3-output:8x8x4", "Conv"), operator_name("8x8x4-4-s1", "skip")
    ('Conv-input:8x8x3-output:8x8x4', '8x8x4-4-s1:skip')
    """
    if "-input:" not in place:
        return f"{place}:{choice}"
    return place if place.startswith(f"{choice}-input:") else f"{place}-{choice}"


def named_operators(rows: Iterable[tuple[str, Entry]]) -> tuple[Entry, ...]:
    """Convert entries by names of a file to entries of operators; entries with equal operators are averaged.

    An unknown operator gets the kind `UNKNOWN`, with its name as an attribute.
    """
    found: dict[OpSpec, list[tuple[str, Entry]]] = {}
    for name, entry in rows:
        found.setdefault(entry.op or OpSpec.of(UNKNOWN, [], name=name), []).append((name, entry))
    return tuple(
        replace(Entry.mean([entry for _, entry in named]), op=op, names=tuple(name for name, _ in named))
        for op, named in found.items()
    )
