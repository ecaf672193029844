"""The file format of tables: versioned JSON, checked by pydantic, one line an entry.

History of the format:

1. The first version.
2. ``residency``, ``reference``, ``drift``, ``conditions`` and ``remarks`` of a table, ``failures`` of a layer;
   later ``network_error``, which may be left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, JsonValue, PositiveFloat, PositiveInt, model_validator

from nni_latency.documents import DocumentFormat, NamedPlatformDocument, OperatorDocument, StrictDocument, render
from nni_latency.errors import FileFormatError, LatencyError
from nni_latency.tables._entry import Entry
from nni_latency.tables._plan import plain_arguments
from nni_latency.units import METRIC_UNITS

if TYPE_CHECKING:
    from nni_latency.tables._lookup_table import LookupTable

FORMAT = "nni_latency.lookup_table"
VERSION = 2
TABLE = DocumentFormat(FORMAT, VERSION, "table", "a lookup table", "build one with: nni-latency build-lut")

#: An argument of a space; a list for a tuple.
Argument = bool | int | float | str | None | list[JsonValue]


class SpaceDocument(StrictDocument):
    """Which space a table belongs to."""

    name: str
    arguments: dict[str, Argument] = Field(default_factory=dict, description="all arguments that make the space")


class EntryDocument(StrictDocument):
    """What a candidate costs, and what it computes."""

    value: float = Field(ge=0, description="cost in the table's unit; only a count of bytes may be 0")
    low: float = Field(ge=0, description="lower end of the confidence interval")
    high: float = Field(ge=0, description="upper end of the confidence interval")
    n_samples: int = Field(0, ge=0)
    n_dropped: int = Field(0, ge=0, description="samples trimmed away")
    op: OperatorDocument | None = None
    macs: int | None = Field(None, ge=0, description="multiply-adds")
    flops: int | None = Field(None, ge=0, description="floating-point operations, two a multiply-add")
    acts: int | None = Field(None, ge=0, description="ACTS: output elements of the convolutions")
    inp: int | None = Field(None, ge=0, description="INP: input elements of the convolutions")
    params: int | None = Field(None, ge=0, description="parameters")

    def to_entry(self) -> Entry:
        """Make the entry; features are counted anew from the operator."""
        op = None if self.op is None else self.op.to_op()
        return Entry(self.value, self.low, self.high, self.n_samples, self.n_dropped, op)


class LayerDocument(StrictDocument):
    """One layer: its candidates in the order of the space's indices, and the entries of those that have a cost."""

    name: str
    searched: bool = True
    default: str | None = None
    choices: list[str] = Field(min_length=1)
    entries: dict[str, EntryDocument]
    failures: dict[str, str] = Field(default_factory=dict, description="candidates that could not be measured, and why")

    @model_validator(mode="after")
    def _names_are_choices(self) -> LayerDocument:
        strangers = sorted({*self.entries, *self.failures} - set(self.choices))
        if strangers:
            raise ValueError(f"entries {strangers} are not among the choices")
        both = sorted(set(self.entries) & set(self.failures))
        if both:
            raise ValueError(f"{both} have both an entry and a failure")
        if len(set(self.choices)) != len(self.choices):
            raise ValueError("the choices must all be different")
        if self.default is not None and self.default not in self.choices:
            raise ValueError(f"default {self.default!r} is not among the choices")
        return self


class ResidencyDocument(StrictDocument):
    """What small networks save because their data stay in the cache."""

    saving: float = Field(ge=0, lt=1, description="share saved by a network that takes no time at all")
    scale: PositiveFloat = Field(description="sum over which the saving fades, in the table's unit")


class TableDocument(StrictDocument):
    """A lookup table: what the candidates of a space cost on one platform."""

    format: Literal["nni_latency.lookup_table"]
    version: Literal[2]
    metric: str
    unit: str = Field(description="SI unit of every value")
    space: SpaceDocument
    input_shape: list[PositiveInt] = Field(min_length=1, description="of the network's input, batch first")
    platform: NamedPlatformDocument
    protocol: dict[str, int | float] | None = Field(None, description="how it was measured; null for other numbers")
    rounds: int = Field(0, ge=0)
    duration: float = Field(0.0, ge=0, description="time spent measuring [s]")
    calibration: PositiveFloat = Field(1.0, description="factor on the sum of entries")
    residency: ResidencyDocument | None = Field(None, description="for the calibrated sum; null for none")
    reference: PositiveFloat | None = Field(None, description="time of the space's reference network [s]")
    drift: list[PositiveFloat] = Field(
        default_factory=list, description="median time of the reference operator in every round [s]"
    )
    conditions: dict[str, dict[str, bool | int | float | str | list[int | float | str]]] = Field(
        default_factory=dict, description="what the machine was like before and after"
    )
    remarks: list[str] = Field(default_factory=list, description="what was unstable, and what to do about it")
    network_error: PositiveFloat | None = Field(
        None, description="relative standard deviation of whole networks from what the table says, beyond chance"
    )
    layers: list[LayerDocument] = Field(min_length=1)

    @model_validator(mode="after")
    def _unit_fits_metric(self) -> TableDocument:
        if METRIC_UNITS.get(self.metric) != self.unit:
            raise ValueError(f"metric {self.metric!r} does not go with unit {self.unit!r}")
        return self


def table_schema() -> dict[str, Any]:
    """Return the JSON schema of the file format."""
    return TableDocument.model_json_schema()


def read_document(path: Path) -> TableDocument:
    """Read and check a file.

    Raises
    ------
    FileFormatError
        If it is absent, truncated, altered, of another kind or of a newer version.
    """
    content = TABLE.read(path)
    with TABLE.valid(str(path)):
        document = TableDocument.model_validate(_update(content))
        _check_entries(document)
    return document


def _update(content: dict[str, Any]) -> dict[str, Any]:
    """Bring the content of an older version up to date, step by step."""
    # 1 to 2: everything that is new may be left out, but no width of an interval was asked for.
    if content.get("version") != 1:
        return content
    protocol = content.get("protocol")
    if isinstance(protocol, dict):
        protocol = {**protocol, "half_width": 0.0}
    return {**content, "version": 2, "protocol": protocol}


def render_document(table: LookupTable) -> str:
    """Write a table as JSON that a person can read: one line an entry."""
    head = {
        **TABLE.head,
        "metric": table.metric,
        "unit": METRIC_UNITS[table.metric],
        "space": {"name": table.space.name, "arguments": plain_arguments(table.space)},
        "input_shape": list(table.input_shape),
        "platform": {"id": table.platform.id, **table.platform.as_dict()},
        "protocol": table.protocol and table.protocol.as_dict(),
        "rounds": table.rounds,
        "duration": table.duration,
        "calibration": table.calibration,
        "residency": table.residency and vars(table.residency),
        "reference": table.reference,
        "drift": list(table.drift),
        "conditions": dict(table.conditions),
        "remarks": list(table.remarks),
        "network_error": table.network_error,
    }
    return render(head, {"layers": map(_render_layer, table.layers)})


def _render_layer(layer: Any) -> str:
    head = {
        "name": layer.name,
        "searched": layer.searched,
        "default": layer.default,
        "choices": list(layer.choices),
    }
    entries = ",\n   ".join(
        f"{json.dumps(choice)}: {json.dumps(_entry_content(entry), allow_nan=False)}"
        for choice, entry in layer.entries.items()
    )
    inner = f"{{\n   {entries}\n  }}" if entries else "{}"
    failures = f', "failures": {json.dumps(dict(layer.failures))}' if layer.failures else ""
    return json.dumps(head)[:-1] + f', "entries": {inner}{failures}}}'


def _entry_content(entry: Entry) -> dict[str, Any]:
    content: dict[str, Any] = {
        "value": entry.value,
        "low": entry.low,
        "high": entry.high,
        "n_samples": entry.n_samples,
        "n_dropped": entry.n_dropped,
    }
    if entry.op is not None and entry.features is not None:
        features = entry.features
        content |= {name: getattr(features, name) for name in ("macs", "flops", "acts", "inp", "params")}
        content["op"] = entry.op.as_dict()
    return content


def _check_entries(document: TableDocument) -> None:
    """Check what pydantic cannot: intervals and operators, by making each of them once."""
    for layer in document.layers:
        for choice, entry in layer.entries.items():
            try:
                _ = entry.to_entry().features
            except (LatencyError, LookupError, ValueError, TypeError, ArithmeticError) as error:
                raise FileFormatError(f"layer {layer.name!r}, entry {choice!r}: {error}") from error
