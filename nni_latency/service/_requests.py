"""What requests hold, checked."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

_Key = Annotated[
    str, Field(min_length=1, max_length=4000, description="graph_key of a network, or key of an operator or a kernel")
]


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
    """Describe the body of a request."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})
    if definitions:
        schema = json.loads(json.dumps({**schema}).replace("#/$defs/", "#/x-definitions/"))
        schema["x-definitions"] = definitions
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
