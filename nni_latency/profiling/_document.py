"""The file of an operator profile: versioned JSON, checked by pydantic, one line a model and one an operator."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from nni_latency.documents import DocumentFormat, OperatorDocument, StrictDocument
from nni_latency.tables import CostDocument, HeaderDocument

#: Number of an operator in the list of them, how often it runs, and what all of its runs take [s].
_Part = Annotated[tuple[NonNegativeInt, PositiveInt, PositiveFloat], Field(strict=False)]


class _TimedDocument(CostDocument):
    """A latency with a power."""

    watts: PositiveFloat | None = Field(None, description="mean power [W]; null where no meter was read")


class ProfiledOperatorDocument(StrictDocument):
    """An operator, and what it takes alone."""

    op: OperatorDocument
    reused: _TimedDocument | None = Field(None, description="again and again on one input")
    memory: _TimedDocument | None = Field(None, description="on inputs and weights that come from memory")


class ModelDocument(_TimedDocument):
    """A whole model, and what its operators take in it."""

    name: str
    inputs: list[list[NonNegativeInt]] = Field(description="shapes")
    marked: PositiveFloat = Field(description="sum of its operators with a mark after each [s]")
    parts: list[_Part] = Field(
        min_length=1, description="number of an operator, how often it runs, and what all of its runs take [s]"
    )


class ProfileDocument(HeaderDocument):
    """Operators of several models on one platform."""

    format: Literal["nni_latency.operator_profile"]
    version: Literal[1]
    batch_size: PositiveInt
    target: float = Field(gt=0, le=1, description="share of every model that was to be attributed")
    significant: list[str] = Field(default_factory=list, description="kinds of operators that were chosen for that")
    failures: dict[str, str] = Field(
        default_factory=dict, description="models, and operators alone, that could not be measured, and why"
    )
    meter: str | None = Field(None, description="what read the energy")
    assumption: str | None = Field(None, description="what that assumes instead of measuring it")
    models: list[ModelDocument] = Field(min_length=1)
    operators: list[ProfiledOperatorDocument] = Field(min_length=1)

    @model_validator(mode="after")
    def _parts_are_operators(self) -> ProfileDocument:
        for model in self.models:
            wrong = next((number for number, _, _ in model.parts if number >= len(self.operators)), None)
            if wrong is not None:
                raise ValueError(f"the model {model.name!r} has an operator {wrong} of {len(self.operators)}")
        return self


PROFILE = DocumentFormat(
    "nni_latency.operator_profile",
    1,
    "profile",
    "an operator profile",
    "measure one with: nni-latency profile --measure",
    model=ProfileDocument,
)

#: Returns the JSON schema of the file format.
profile_schema = PROFILE.schema
