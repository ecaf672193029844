"""The file format of tables of operators: versioned JSON, checked by pydantic, one line an operator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, JsonValue, PositiveFloat, PositiveInt

from nni_latency.documents import DocumentFormat, NamedPlatformDocument, OperatorDocument, StrictDocument, render
from nni_latency.tables._document import ResidencyDocument, SpaceDocument
from nni_latency.tables._plan import plain_arguments

if TYPE_CHECKING:
    from nni_latency.tables._operator_table import OperatorTable

OPERATOR_TABLE = DocumentFormat(
    "nni_latency.operator_table", 1, "table", "a table of operators", "build one with: nni-latency build-lut"
)


class OperatorEntryDocument(StrictDocument):
    """What an operator costs inside a network."""

    op: OperatorDocument
    value: PositiveFloat = Field(description="cost [s]")
    low: float = Field(ge=0, description="lower end of the interval in which it lies in another network")
    high: PositiveFloat = Field(description="upper end of that interval")
    n_samples: int = Field(0, ge=0, description="timed runs, over all places")
    n_places: int = Field(0, ge=0, description="places in networks where it was timed")
    n_networks: int = Field(0, ge=0, description="networks with such a place")

    @property
    def counts(self) -> tuple[int, int, int]:
        """Timed runs, places and networks."""
        return self.n_samples, self.n_places, self.n_networks


class NetworkDocument(StrictDocument):
    """A network that was measured whole."""

    sample: dict[str, JsonValue] = Field(description="its choices by label, as NNI writes them")
    value: PositiveFloat = Field(description="time of the whole network [s]")
    low: PositiveFloat
    high: PositiveFloat
    entries: PositiveFloat = Field(description="sum of its operators' entries [s], before calibration")
    n_samples: int = Field(0, ge=0)


class OperatorTableDocument(StrictDocument):
    """A table of operators: what they cost inside the networks of a space on one platform."""

    format: Literal["nni_latency.operator_table"]
    version: Literal[1]
    metric: Literal["latency"]
    unit: Literal["s"]
    space: SpaceDocument
    input_shape: list[PositiveInt] = Field(min_length=1, description="of the networks' input, batch first")
    platform: NamedPlatformDocument
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


def read_operator_document(path: Path) -> OperatorTableDocument:
    """Read and check a file.

    Raises
    ------
    FileFormatError
        If it is absent, truncated, altered, of another kind or of a newer version.
    """
    content = OPERATOR_TABLE.read(path)
    with OPERATOR_TABLE.valid(str(path)):
        return OperatorTableDocument.model_validate(content)


def render_operator_table(table: OperatorTable) -> str:
    """Write a table as JSON that a person can read: one line an operator."""
    head = {
        **OPERATOR_TABLE.head,
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
    networks = [{**vars(network), "sample": dict(network.sample)} for network in table.networks]
    entries = [{"op": None} | vars(entry) | {"op": entry.op.as_dict()} for entry in table.entries]
    lists = {"networks": networks, "entries": entries}
    return render(head, {name: [json.dumps(item, allow_nan=False) for item in items] for name, items in lists.items()})
