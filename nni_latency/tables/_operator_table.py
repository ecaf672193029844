"""`OperatorTable`: what operators cost on one platform, with its networks and file format."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field, JsonValue, NonNegativeInt, PositiveFloat

from nni_latency.costs import Cost
from nni_latency.documents import RECORD, DocumentFormat, ShapeTuple, line
from nni_latency.errors import InvalidValueError
from nni_latency.notebook import bar_chart
from nni_latency.operators import OpSpec, family_of
from nni_latency.tables._header import HeaderDocument, SpaceTable
from nni_latency.tables._lookup_table import Entry
from nni_latency.tables._operator_entries import OperatorEntry
from nni_latency.units import cost_row, format_metric, number_of

#: Kind of an operator from elsewhere that is only known by its name.
UNKNOWN = "unknown"

#: Operators that a notebook shows.
_DRAWN = 20


@dataclass(frozen=True, kw_only=True, repr=False)
class OperatorTable(SpaceTable):
    """What operators cost on one platform, each once. Immutable.

    For a space whose networks cannot be divided into layers with a few candidates each: a covering sample of its
    networks was measured, with every operator timed inside them. Operators that no such network has are predicted from
    these (`nni_latency.estimators.OperatorTableEstimator`). Operators that another project has measured make such a
    table too, of the space "operators".

    Parameters
    ----------
    input_shape : tuple of int
        Shape of the networks' input, batch first; of operators from elsewhere the batch size alone.
    entries : tuple of OperatorEntry
        The operators, each once.
    networks : tuple of MeasuredNetwork
        The networks that were measured whole. The first one is the space's reference network.
    coverage : float, default=1.0
        Share of the operators of other random networks that have an entry, in [0, 1].
    failures : mapping of str to str
        Networks that could not be measured, as JSON, each with the reason.
    **header
        What `TableHeader` takes: space, platform, metric, protocol, calibration and so on.

    Raises
    ------
    InvalidValueError
        If there is no entry, or an operator has two.
    """

    entries: tuple[OperatorEntry, ...]
    networks: tuple[MeasuredNetwork, ...] = ()
    coverage: float = 1.0
    failures: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.entries:
            raise InvalidValueError("A table of operators needs at least one entry. Got none.")
        if len(self.by_key) != len(self.entries):
            raise InvalidValueError("A table of operators must hold every operator once.")
        object.__setattr__(self, "failures", MappingProxyType(dict(self.failures)))

    def __repr__(self) -> str:
        return f"OperatorTable({self.described}, {number_of(len(self.entries), 'operator')})"

    def _repr_html_(self) -> str:
        costliest = sorted(self.entries, key=lambda entry: -entry.value)[:_DRAWN]
        bars = [
            (", ".join(entry.names) or entry.op.op_key, entry.value, format_metric(entry.value, self.metric))
            for entry in costliest
        ]
        return bar_chart(
            f"{self.described}: the {len(bars)} costliest of {number_of(len(self.entries), 'operator')}", bars
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return a row an operator."""
        return [
            {
                "operator": entry.op.op_key,
                "names": ", ".join(entry.names),
                "family": family_of(entry.op),
                **cost_row(entry, self.metric),
                "n_samples": entry.n_samples,
                "n_places": entry.n_places,
                "n_networks": entry.n_networks,
            }
            for entry in self.entries
        ]

    @cached_property
    def by_key(self) -> Mapping[str, OperatorEntry]:
        """The entries by the key of their operator."""
        return MappingProxyType({entry.op.op_key: entry for entry in self.entries})

    @property
    def reference(self) -> float | None:
        """Cost of the space's reference network, which tells how fast the machine was."""
        return self.networks[0].value if self.networks else None

    def places(self) -> Iterator[tuple[tuple[str, str], OperatorEntry]]:
        """Go through the entries, each with the kind of its operator and with its key."""
        return (((entry.op.kind, entry.op.op_key), entry) for entry in self.entries)

    def with_entries(self, change: Callable[[OperatorEntry], OperatorEntry], **fields: Any) -> OperatorTable:
        """Return the table with every entry changed, and with other values of `fields`."""
        return replace(self, entries=tuple(map(change, self.entries)), **fields)

    def save(self, path: str | Path) -> Path:
        """Write the table as JSON, whole or not at all.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        content = {
            **self.header_content(),
            "input_shape": list(self.input_shape),
            "coverage": self.coverage,
            "failures": dict(self.failures),
        }
        lists = {"networks": map(line, self.networks), "entries": map(line, self.entries)}
        return OPERATOR_TABLE.save(path, content, lists)

    @classmethod
    def load(cls, path: str | Path) -> OperatorTable:
        """Read a table.

        Raises
        ------
        FileFormatError
            If the file is absent, truncated, altered, of another kind or of another version.
        """
        return OPERATOR_TABLE.load(path, cls._of_document)

    @classmethod
    def _of_document(cls, document: OperatorTableDocument) -> OperatorTable:
        names = ("input_shape", "entries", "networks", "coverage", "failures")
        return cls(**document.header(), **{name: getattr(document, name) for name in names})


def operator_name(place: str, choice: str) -> str:
    """Return what a file of another project calls an operator, from the two parts in which formats read it.

    Examples
    --------
    >>> operator_name("Conv-input:8x8x3-output:8x8x4", "Conv"), operator_name("8x8x4-4-s1", "skip")
    ('Conv-input:8x8x3-output:8x8x4', '8x8x4-4-s1:skip')
    """
    if "-input:" not in place:
        return f"{place}:{choice}"
    return place if place.startswith(f"{choice}-input:") else f"{place}-{choice}"


def named_operators(rows: Iterable[tuple[str, Entry]]) -> tuple[OperatorEntry, ...]:
    """Make entries of operators from those of a file by their names; what several names mean gets their mean.

    An operator that is not known has the kind `UNKNOWN` and is told by its name.
    """
    found: dict[OpSpec, list[tuple[str, Entry]]] = {}
    for name, entry in rows:
        found.setdefault(entry.op or OpSpec.of(UNKNOWN, [], name=name), []).append((name, entry))
    made = []
    for op, named in found.items():
        names, entries = zip(*named, strict=True)
        cost = Entry.mean(entries)
        made.append(OperatorEntry(cost.value, cost.low, cost.high, op, n_samples=cost.n_samples, names=names))
    return tuple(made)


@dataclass(frozen=True, kw_only=True)
class MeasuredNetwork(Cost):
    """One network that was measured for a table of operators. Immutable.

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
        """Return the same network at costs that are `factor` times as large."""
        return replace(super().scaled(factor), entries=factor * self.entries)


class OperatorTableDocument(HeaderDocument):
    """A table of operators: what they cost inside the networks of a space on one platform."""

    input_shape: ShapeTuple = Field(description="of the networks' input, batch first")
    coverage: float = Field(
        1.0, ge=0, le=1, description="share of the operators of other random networks with an entry"
    )
    failures: dict[str, str] = Field(default_factory=dict, description="networks that could not be measured, and why")
    networks: tuple[MeasuredNetwork, ...] = Field(
        default=(), description="measured whole; the first one is the space's reference network"
    )
    entries: tuple[OperatorEntry, ...] = Field(min_length=1)


OPERATOR_TABLE = DocumentFormat(
    "nni_latency.operator_table",
    1,
    "table",
    "a table of operators",
    "build one with: nni-latency build-lut",
    model=OperatorTableDocument,
)


#: Returns the JSON schema of the file format.
operator_table_schema = OPERATOR_TABLE.schema
