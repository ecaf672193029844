"""The strict base of all documents, and what several of them hold: platforms and operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt

from nni_latency.operators import LARGEST_TENSOR, OpSpec
from nni_latency.platforms import Platform

_Sizes = TypeVar("_Sizes", bound=Sequence[int])


def check_shape(shape: _Sizes) -> _Sizes:
    """Raise `ValueError` for a tensor that nobody has."""
    if math.prod(shape) > LARGEST_TENSOR:
        raise ValueError(f"a tensor of {'x'.join(map(str, shape))} has more than 2^40 numbers")
    return shape


#: Shape of an input, batch first.
Shape = Annotated[list[PositiveInt], Field(min_length=1, max_length=16), AfterValidator(check_shape)]


class StrictDocument(BaseModel):
    """A document whose fields are all known, of the very type that is asked for, and finite."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class PlatformDocument(StrictDocument):
    """Where the costs were taken."""

    device: str
    runtime: str
    precision: str
    threads: PositiveInt
    facts: dict[str, bool | int | float | str] = Field(default_factory=dict)

    def to_platform(self) -> Platform:
        """Make the platform."""
        return Platform(self.device, self.runtime, self.precision, self.threads, self.facts)


class NamedPlatformDocument(PlatformDocument):
    """Where the costs were taken, with the name that a person looks for."""

    id: str


class OperatorDocument(StrictDocument):
    """What an operator or a block computes."""

    kind: str
    input_shapes: list[list[NonNegativeInt]] = Field(description="batch first")
    attributes: dict[str, bool | int | float | str | list[int]] = Field(default_factory=dict)
    dtype: str = "float32"

    def to_op(self) -> OpSpec:
        """Make the operator."""
        return OpSpec.of(self.kind, self.input_shapes, dtype=self.dtype, **self.attributes)
