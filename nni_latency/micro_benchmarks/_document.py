"""The file of benchmark points: versioned JSON, checked by pydantic, one line a point.

History of the format:

1. The first version.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from nni_latency.documents import DocumentFormat, NamedPlatformDocument, OperatorDocument, StrictDocument, render
from nni_latency.errors import FileFormatError
from nni_latency.files import write_atomically
from nni_latency.measurement import Protocol

if TYPE_CHECKING:
    from nni_latency.micro_benchmarks._points import BenchmarkPoint, BenchmarkPoints

POINTS = DocumentFormat(
    "nni_latency.benchmark_points",
    1,
    "file of points",
    "a file of benchmark points",
    "measure some with: nni-latency micro-benchmark",
)


class PointDocument(StrictDocument):
    """One block at one batch size."""

    block: str
    kind: str
    input_shape: list[PositiveInt] = Field(min_length=1, description="batch first")
    value: PositiveFloat = Field(description="latency [s]")
    low: PositiveFloat
    high: PositiveFloat
    n_samples: int = Field(0, ge=0)
    acts: int | None = Field(None, ge=0, description="ACTS: output elements of the convolutions")
    inp: int | None = Field(None, ge=0, description="INP: input elements of the convolutions")
    flops: int | None = Field(None, ge=0, description="floating-point operations, two a multiply-add")
    macs: int | None = Field(None, ge=0, description="multiply-adds")
    params: int | None = Field(None, ge=0, description="parameters")
    ops: list[OperatorDocument] = Field(min_length=1)


class PointsDocument(StrictDocument):
    """Blocks and what they took on one platform."""

    format: Literal["nni_latency.benchmark_points"]
    version: Literal[1]
    metric: Literal["latency"]
    unit: Literal["s"]
    platform: NamedPlatformDocument
    protocol: dict[str, int | float] | None = None
    ended: dict[str, str] = Field(default_factory=dict, description="blocks with no larger batch size, and why")
    rounds: int = Field(0, ge=0)
    duration: float = Field(0.0, ge=0, description="time spent measuring [s]")
    drift: list[PositiveFloat] = Field(default_factory=list)
    remarks: list[str] = Field(default_factory=list)
    points: list[PointDocument]


def points_schema() -> dict[str, Any]:
    """Return the JSON schema of the file format."""
    return PointsDocument.model_json_schema()


def write_points(path: Path, points: BenchmarkPoints) -> Path:
    """Write points, whole or not at all, one line each."""
    head = {
        **POINTS.head,
        "metric": "latency",
        "unit": "s",
        "platform": {"id": points.platform.id, **points.platform.as_dict()},
        "protocol": points.protocol and points.protocol.as_dict(),
        "ended": dict(points.ended),
        "rounds": points.rounds,
        "duration": points.duration,
        "drift": list(points.drift),
        "remarks": list(points.remarks),
    }
    rows = [json.dumps(_point_content(point), allow_nan=False) for point in points.points]
    write_atomically(path, render(head, {"points": rows}))
    return path


def _point_content(point: BenchmarkPoint) -> dict[str, Any]:
    content: dict[str, Any] = {name: getattr(point, name) for name in ("block", "kind", "input_shape")}
    content |= {name: getattr(point, name) for name in ("value", "low", "high", "n_samples")}
    content |= {name: getattr(point.features, name) for name in ("acts", "inp", "flops", "macs", "params")}
    content["ops"] = [op.as_dict() for op in point.ops]
    return content


def read_points(path: Path) -> dict[str, Any]:
    """Read and check a file; return what `BenchmarkPoints` takes, its points as dictionaries.

    Raises
    ------
    FileFormatError
        If it is absent, truncated, altered, of another kind or of a newer version.
    """
    content = POINTS.read(path)
    with POINTS.valid(str(path)):
        return _content(PointsDocument.model_validate(content))


def _content(document: PointsDocument) -> dict[str, Any]:
    protocol: dict[str, Any] | None = document.protocol
    return {
        "platform": document.platform.to_platform(),
        "protocol": None if protocol is None else Protocol(**protocol),
        "ended": document.ended,
        "rounds": document.rounds,
        "duration": document.duration,
        "drift": tuple(document.drift),
        "remarks": tuple(document.remarks),
        "points": [_point(point) for point in document.points],
    }


def _point(point: PointDocument) -> dict[str, Any]:
    if not point.low <= point.value <= point.high:
        raise FileFormatError(f"the interval of {point.block!r} does not enclose its value")
    return {
        **{name: getattr(point, name) for name in ("block", "kind", "value", "low", "high", "n_samples")},
        "input_shape": tuple(point.input_shape),
        "ops": tuple(op.to_op() for op in point.ops),
    }
