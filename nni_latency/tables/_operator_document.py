"""The file format of tables of operators: versioned JSON, checked by pydantic, one line an operator."""

from __future__ import annotations

from pydantic import Field

from nni_latency.documents import DocumentFormat, ShapeTuple
from nni_latency.tables._header import HeaderDocument
from nni_latency.tables._measured import MeasuredNetwork
from nni_latency.tables._operator_entries import OperatorEntry


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
