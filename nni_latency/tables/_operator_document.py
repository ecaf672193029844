"""The file format of tables of operators: versioned JSON, checked by pydantic, one line an operator."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue, PositiveFloat

from nni_latency.documents import DocumentFormat, OperatorDocument, Shape
from nni_latency.tables._header import CostDocument, HeaderDocument


class OperatorEntryDocument(CostDocument):
    """What an operator costs inside a network, and the interval in which that lies in another network."""

    op: OperatorDocument
    n_places: int = Field(0, ge=0, description="places in networks where it was timed")
    n_networks: int = Field(0, ge=0, description="networks with such a place")
    names: list[str] = Field(default_factory=list, description="what files of other projects call it")


class NetworkDocument(CostDocument):
    """A network that was measured whole."""

    sample: dict[str, JsonValue] = Field(description="its choices by label, as NNI writes them")
    entries: PositiveFloat = Field(description="sum of its operators' entries, before calibration")


class OperatorTableDocument(HeaderDocument):
    """A table of operators: what they cost inside the networks of a space on one platform."""

    format: Literal["nni_latency.operator_table"]
    version: Literal[1]
    input_shape: Shape = Field(description="of the networks' input, batch first")
    coverage: float = Field(
        1.0, ge=0, le=1, description="share of the operators of other random networks with an entry"
    )
    failures: dict[str, str] = Field(default_factory=dict, description="networks that could not be measured, and why")
    networks: list[NetworkDocument] = Field(
        default_factory=list, description="measured whole; the first one is the space's reference network"
    )
    entries: list[OperatorEntryDocument] = Field(min_length=1)


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
