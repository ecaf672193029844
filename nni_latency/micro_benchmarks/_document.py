"""The file of benchmark points: versioned JSON, checked by pydantic, one line a point.

History of the format:

1. The first version.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError

from nni_latency.errors import LatencyError, TableFormatError
from nni_latency.files import write_atomically
from nni_latency.measurement import Protocol
from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform

if TYPE_CHECKING:
    from nni_latency.micro_benchmarks._points import BenchmarkPoint, BenchmarkPoints

FORMAT = "nni_latency.benchmark_points"
VERSION = 1


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class PointPlatformDocument(_Strict):
    """Where the points were measured."""

    id: str
    device: str
    runtime: str
    precision: str
    threads: PositiveInt
    facts: dict[str, bool | int | float | str] = Field(default_factory=dict)


class PointOperatorDocument(_Strict):
    """One operator of a block."""

    kind: str
    input_shapes: list[list[NonNegativeInt]]
    attributes: dict[str, bool | int | float | str | list[int]] = Field(default_factory=dict)
    dtype: str = "float32"


class PointDocument(_Strict):
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
    ops: list[PointOperatorDocument] = Field(min_length=1)


class PointsDocument(_Strict):
    """Blocks and what they took on one platform."""

    format: Literal["nni_latency.benchmark_points"]
    version: Literal[1]
    metric: Literal["latency"]
    unit: Literal["s"]
    platform: PointPlatformDocument
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
        "format": FORMAT,
        "version": VERSION,
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
    lines = [f'"{key}": {json.dumps(value, allow_nan=False)}' for key, value in head.items()]
    rows = ",\n  ".join(json.dumps(_point_content(point), allow_nan=False) for point in points.points)
    write_atomically(path, "{\n " + ",\n ".join([*lines, f'"points": [\n  {rows}\n ]']) + "\n}\n")
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
    TableFormatError
        If it is absent, truncated, altered, of another kind or of a newer version.
    """
    document = _parse(_load(path), str(path))
    try:
        return _content(document)
    except (LatencyError, TypeError) as error:
        raise TableFormatError(f"The points {str(path)!r} are not valid: {error}") from error


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise TableFormatError(f"Can not read the points {str(path)!r}: {reason}.") from error
    except (ValueError, RecursionError) as error:
        raise TableFormatError(
            f"The points {str(path)!r} are not whole JSON ({error}). "
            "Measure them anew with: nni-latency micro-benchmark"
        ) from error


def _parse(content: Any, origin: str) -> PointsDocument:
    kind = content.get("format") if isinstance(content, dict) else None
    if kind != FORMAT:
        raise TableFormatError(
            f"{origin!r} holds no benchmark points: its 'format' must be {FORMAT!r}. Got {kind!r}. "
            "Measure some with: nni-latency micro-benchmark"
        )
    version = content.get("version")
    if isinstance(version, int) and version > VERSION:
        raise TableFormatError(
            f"The points {origin!r} have version {version}, this nni_latency reads up to {VERSION}. "
            "Update it with: pip install --upgrade nni_latency"
        )
    try:
        return PointsDocument.model_validate(content)
    except ValidationError as error:
        first, *others = error.errors()
        place = ".".join(map(str, first["loc"])) or "the document"
        more = f" (and {len(others)} more)" if others else ""
        raise TableFormatError(
            f"The points {origin!r} are not valid: {place}: {first['msg']}. Got {str(first['input'])[:60]!r}{more}."
        ) from error


def _content(document: PointsDocument) -> dict[str, Any]:
    platform = document.platform
    protocol: dict[str, Any] | None = document.protocol
    return {
        "platform": Platform(platform.device, platform.runtime, platform.precision, platform.threads, platform.facts),
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
        raise TableFormatError(f"the interval of {point.block!r} does not enclose its value")
    return {
        **{name: getattr(point, name) for name in ("block", "kind", "value", "low", "high", "n_samples")},
        "input_shape": tuple(point.input_shape),
        "ops": tuple(OpSpec.of(op.kind, op.input_shapes, dtype=op.dtype, **op.attributes) for op in point.ops),
    }
