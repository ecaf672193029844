"""The file format of tables of operators: versioned JSON, checked by pydantic, one line an operator."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, JsonValue, PositiveFloat, PositiveInt, ValidationError

from nni_latency.errors import TableFormatError
from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform
from nni_latency.tables._document import (
    OperatorDocument,
    PlatformDocument,
    ResidencyDocument,
    SpaceDocument,
    _explain,
    _Strict,
)
from nni_latency.tables._plan import plain_arguments

if TYPE_CHECKING:
    from nni_latency.tables._operator_table import OperatorTable

FORMAT = "nni_latency.operator_table"
VERSION = 1


class OperatorPlatformDocument(PlatformDocument):
    """Where the costs were taken."""

    def to_platform(self) -> Platform:
        """Make the platform."""
        return Platform(**self.model_dump(exclude={"id"}))


class OperatorEntryDocument(_Strict):
    """What an operator costs inside a network."""

    op: OperatorDocument
    value: PositiveFloat = Field(description="cost [s]")
    low: float = Field(ge=0, description="lower end of the interval in which it lies in another network")
    high: PositiveFloat = Field(description="upper end of that interval")
    n_samples: int = Field(0, ge=0, description="timed runs, over all places")
    n_places: int = Field(0, ge=0, description="places in networks where it was timed")
    n_networks: int = Field(0, ge=0, description="networks with such a place")

    def to_op(self) -> OpSpec:
        """Make the operator."""
        op = self.op
        return OpSpec.of(op.kind, op.input_shapes, dtype=op.dtype, **op.attributes)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Timed runs, places and networks."""
        return self.n_samples, self.n_places, self.n_networks


class NetworkDocument(_Strict):
    """A network that was measured whole."""

    sample: dict[str, JsonValue] = Field(description="its choices by label, as NNI writes them")
    value: PositiveFloat = Field(description="time of the whole network [s]")
    low: PositiveFloat
    high: PositiveFloat
    entries: PositiveFloat = Field(description="sum of its operators' entries [s], before calibration")
    n_samples: int = Field(0, ge=0)


class OperatorTableDocument(_Strict):
    """A table of operators: what they cost inside the networks of a space on one platform."""

    format: Literal["nni_latency.operator_table"]
    version: Literal[1]
    metric: Literal["latency"]
    unit: Literal["s"]
    space: SpaceDocument
    input_shape: list[PositiveInt] = Field(min_length=1, description="of the networks' input, batch first")
    platform: OperatorPlatformDocument
    protocol: dict[str, int | float] | None = Field(None, description="how it was measured")
    rounds: int = Field(0, ge=0)
    duration: float = Field(0.0, ge=0, description="time spent measuring [s]")
    calibration: PositiveFloat = Field(1.0, description="factor on the sum of entries")
    residency: ResidencyDocument | None = Field(None, description="for the calibrated sum; null for none")
    coverage: float = Field(
        1.0, ge=0, le=1, description="share of the operators of other random networks with an entry"
    )
    drift: list[PositiveFloat] = Field(
        default_factory=list, description="median time of the reference operator in every round [s]"
    )
    conditions: dict[str, dict[str, bool | int | float | str | list[int | float | str]]] = Field(
        default_factory=dict, description="what the machine was like before and after"
    )
    remarks: list[str] = Field(default_factory=list, description="what was unstable, and what to do about it")
    failures: dict[str, str] = Field(default_factory=dict, description="networks that could not be measured, and why")
    networks: list[NetworkDocument] = Field(
        default_factory=list, description="measured whole; the first one is the space's reference network"
    )
    entries: list[OperatorEntryDocument] = Field(min_length=1)


def operator_table_schema() -> dict[str, Any]:
    """Return the JSON schema of the file format of tables of operators."""
    return OperatorTableDocument.model_json_schema()


def parse_operator_document(content: Any, origin: str) -> OperatorTableDocument:
    """Check the content of a file; `origin` names it in messages.

    Raises
    ------
    TableFormatError
        If it is of another kind or a newer version, or does not keep the schema.
    """
    kind = content.get("format") if isinstance(content, dict) else None
    if kind != FORMAT:
        raise TableFormatError(
            f"{origin!r} is not a table of operators: its 'format' must be {FORMAT!r}. Got {kind!r}."
        )
    version = content.get("version")
    if isinstance(version, int) and version > VERSION:
        raise TableFormatError(
            f"The table {origin!r} has version {version}, this nni_latency reads up to {VERSION}. "
            "Update it with: pip install --upgrade nni_latency"
        )
    try:
        return OperatorTableDocument.model_validate(content)
    except ValidationError as error:
        raise TableFormatError(f"The table {origin!r} is not valid: {_explain(error)}") from error


def render_operator_table(table: OperatorTable) -> str:
    """Write a table as JSON that a person can read: one line an operator."""
    head = {
        "format": FORMAT,
        "version": VERSION,
        "metric": "latency",
        "unit": "s",
        "space": {"name": table.space.name, "arguments": plain_arguments(table.space)},
        "input_shape": list(table.input_shape),
        "platform": {"id": table.platform.id, **table.platform.as_dict()},
        "protocol": table.protocol and table.protocol.as_dict(),
        "rounds": table.rounds,
        "duration": table.duration,
        "calibration": table.calibration,
        "residency": table.residency and vars(table.residency),
        "coverage": table.coverage,
        "drift": list(table.drift),
        "conditions": dict(table.conditions),
        "remarks": list(table.remarks),
        "failures": dict(table.failures),
    }
    lines = [f'"{key}": {json.dumps(value, allow_nan=False)}' for key, value in head.items()]
    networks = [{**vars(network), "sample": dict(network.sample)} for network in table.networks]
    entries = [{**vars(entry), "op": entry.op.as_dict()} for entry in table.entries]
    lines += [_render_list("networks", networks), _render_list("entries", entries)]
    return "{\n " + ",\n ".join(lines) + "\n}\n"


def _render_list(name: str, items: list[dict[str, Any]]) -> str:
    inner = ",\n  ".join(json.dumps(item, allow_nan=False) for item in items)
    return f'"{name}": [\n  {inner}\n ]' if items else f'"{name}": []'
