"""The file format of lookup tables: versioned JSON, checked by pydantic, one line an entry."""

from __future__ import annotations

from pydantic import Field, PositiveFloat, model_validator

from nni_latency.documents import DocumentFormat, Operator, ShapeTuple, StrictDocument
from nni_latency.tables._header import CountedDocument, HeaderDocument


class EntryDocument(CountedDocument):
    """What a candidate costs, and what it computes."""

    n_dropped: int = Field(0, ge=0, description="samples trimmed away")
    op: Operator | None = None


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


class TableDocument(HeaderDocument):
    """A lookup table: what the candidates of a space cost on one platform."""

    input_shape: ShapeTuple = Field(description="of the network's input, batch first")
    reference: PositiveFloat | None = Field(None, description="time of the space's reference network [s]")
    layers: list[LayerDocument] = Field(min_length=1)


TABLE = DocumentFormat(
    "nni_latency.lookup_table",
    1,
    "table",
    "a lookup table",
    "build one with: nni-latency build-lut",
    model=TableDocument,
)

#: Returns the JSON schema of the file format.
table_schema = TABLE.schema
