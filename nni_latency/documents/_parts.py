# SPDX-License-Identifier: Apache-2.0
"""What several documents hold: the strict base, records, platforms, operators and shapes.

A record is an ordinary dataclass, so that making one costs nothing. By the same definition pydantic checks, strictly,
what comes from a file, and writes it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    NonNegativeInt,
    PositiveInt,
    TypeAdapter,
)
from pydantic_core import CoreSchema, core_schema

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


#: What a record has as `__pydantic_config__`: its fields are all known, of the very type that is asked for, and finite.
RECORD = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class InFile:
    """Annotation of a field whose value stands in files as something else.

    Parameters
    ----------
    form : type
        What stands in the file.
    make : callable
        Makes the value of it.
    plain : callable
        Makes plain values of the value, for the file.
    """

    def __init__(self, form: Any, make: Callable[[Any], Any], plain: Callable[[Any], Any]) -> None:
        self.form, self.make, self.plain = form, make, plain

    def __get_pydantic_core_schema__(self, _source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            self.make,
            handler.generate_schema(self.form),
            serialization=core_schema.plain_serializer_function_ser_schema(self.plain),
        )


def _platform_content(platform: Platform) -> dict[str, Any]:
    return {"id": platform.id, **platform.as_dict()}


#: A platform, with the name that a person looks for.
NamedPlatform = Annotated[Platform, InFile(NamedPlatformDocument, NamedPlatformDocument.to_platform, _platform_content)]

#: An operator or a block.
Operator = Annotated[OpSpec, InFile(OperatorDocument, OperatorDocument.to_op, OpSpec.as_dict)]

#: Numbers, as a list in the file.
Vector = Annotated[NDArray[np.float64], InFile(list[float], np.array, np.ndarray.tolist)]

#: Shape of an input, batch first.
ShapeTuple = Annotated[tuple[PositiveInt, ...], Field(min_length=1, max_length=16), AfterValidator(check_shape)]


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def plain(record: Any) -> Any:
    """Return a record as plain values, as it stands in a file: without the fields that have their default values."""
    kind: Any = type(record)
    return _adapter(kind).dump_python(record, mode="json", exclude_defaults=True, warnings=False)


def line(record: Any) -> str:
    """Return a record as JSON in one line."""
    return json.dumps(plain(record), allow_nan=False)
