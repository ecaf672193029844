# SPDX-License-Identifier: Apache-2.0
"""Validated models of requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

_Key = Annotated[
    str,
    Field(
        min_length=1,
        max_length=4000,
        description="graph_key of a network, or key of an operator or a kernel",
        examples=["relu()@1x64x56x56:float32"],
    ),
]


#: OpenAPI schema of a request body that is a file.
FILE = {"type": "string", "format": "binary"}


class Asked(BaseModel):
    """What the fields of all questions have in common."""

    model_config = ConfigDict(extra="forbid")

    measure: Literal["always", "if-unsure", "never"] = "if-unsure"
    within: float = Field(default=0.1, gt=0, le=1, description="half the width of an interval that is sure enough")


class NetworkRequest(BaseModel):
    """A network: by its key, or as an ONNX file."""

    model_config = ConfigDict(extra="forbid")

    key: _Key | None = None
    onnx: str | None = Field(default=None, description="the ONNX file, best without weights, in base64")
    name: str = Field(default="network.onnx", max_length=200)


class QueryRequest(Asked, NetworkRequest):
    """A question."""

    platform: str = Field(min_length=1, max_length=300)


class BulkRequest(Asked):
    """Many questions on one platform."""

    platform: str = Field(min_length=1, max_length=300)
    questions: list[NetworkRequest] = Field(min_length=1)


class ComparisonRequest(BaseModel):
    """A network on all platforms; nothing is measured."""

    model_config = ConfigDict(extra="forbid")

    key: _Key


def takes(model: Any) -> dict[str, Any]:
    """Return the OpenAPI entry of a request body."""
    schema = model.model_json_schema()
    return body_of("application/json", _inlined(schema, schema.pop("$defs", {})))


def body_of(kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI entry of a body with a content type."""
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema}}}}


def answers(kind: str) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI entry of a response other than JSON."""
    return {200: {"description": "Successful Response", "content": {kind: {"schema": {"type": "string"}}}}}


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    """Inline the definitions, which the OpenAPI document does not contain."""
    if isinstance(schema, list):
        return [_inlined(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {name: _inlined(item, definitions) for name, item in schema.items()}
