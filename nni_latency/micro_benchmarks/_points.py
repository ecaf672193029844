# SPDX-License-Identifier: Apache-2.0
"""`BenchmarkPoints`: measured latencies of blocks on one platform, and their file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from nni_latency.costs import Cost
from nni_latency.documents import DocumentFormat, Operator, ShapeTuple
from nni_latency.errors import InvalidValueError
from nni_latency.operators import Features, OpSpec, count_operators
from nni_latency.platforms import check_same_platform
from nni_latency.tables import CountedDocument, HeaderDocument, SpaceReference, TableHeader, counts_content
from nni_latency.units import number_of

#: Fields of a point that are written unchanged.
_PLAIN = ("block", "kind", "input_shape", "value", "low", "high", "n_samples")

#: Name of the predefined blocks.
BLOCK_SET = "micro-benchmarks"


@dataclass(frozen=True)
class BenchmarkPoint(Cost):
    """One block at one batch size. Immutable.

    Parameters
    ----------
    value, low, high : float
        Latency and its interval [s].
    block : str
        Name of the block.
    kind : str
        Kind of the block.
    input_shape : tuple of int
        Shape of its input, batch first.
    ops : tuple of OpSpec
        The operators that it executes.
    n_samples : int
        Number of samples.
    """

    block: str
    kind: str
    input_shape: tuple[int, ...]
    ops: tuple[OpSpec, ...]
    n_samples: int = 0

    @property
    def name(self) -> str:
        """Unique name of the point."""
        return f"{self.block}-b{self.input_shape[0]}"

    @property
    def features(self) -> Features:
        """Counts of the countable operators."""
        return count_operators(self.ops).features


@dataclass(frozen=True, kw_only=True, repr=False)
class BenchmarkPoints(TableHeader):
    """Points of one platform. Immutable.

    Parameters
    ----------
    points : tuple of BenchmarkPoint
        Measured points.
    failures : mapping of str to str
        Blocks whose larger batch sizes were not measured, each with the reason.
    **header
        As for `nni_latency.tables.TableHeader`; the space is the set of blocks.
    """

    space: SpaceReference = field(default_factory=lambda: SpaceReference(BLOCK_SET))
    points: tuple[BenchmarkPoint, ...]
    failures: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        points, blocks = number_of(len(self.points), "point"), number_of(len(set(self.blocks)), "block")
        return f"BenchmarkPoints({self.described}, {points} of {blocks})"

    @property
    def workloads(self) -> list[tuple[OpSpec, ...]]:
        """The operators of every point, as required by `ActsEstimator`."""
        return [point.ops for point in self.points]

    @property
    def latencies(self) -> NDArray[np.float64]:
        """Latencies of the points [s], of shape (n_points,)."""
        return np.array([point.value for point in self.points])

    @property
    def totals(self) -> NDArray[np.float64]:
        """ACTS, INP and FLOPs (two per multiply-add) of every point, of shape (n_points, 3)."""
        counts = [point.features for point in self.points]
        return np.array([(item.acts, item.inp, item.flops) for item in counts], dtype=np.float64).reshape(-1, 3)

    @property
    def blocks(self) -> list[str]:
        """The block of every point."""
        return [point.block for point in self.points]

    def save(self, path: str | Path) -> Path:
        """Write the points to a JSON file, atomically."""
        content = {**self.header_content(), "failures": dict(self.failures)}
        return POINTS.save(path, content, {"points": (json.dumps(_content(point)) for point in self.points)})

    @classmethod
    def load(cls, path: str | Path) -> BenchmarkPoints:
        """Read points from their file.

        Raises
        ------
        FileFormatError
            If it is absent, truncated, altered, of another kind or of another version.
        """
        return POINTS.load(path, cls._of_document)

    @classmethod
    def _of_document(cls, document: PointsDocument) -> BenchmarkPoints:
        return cls(**document.header(), points=tuple(map(_point, document.points)), failures=document.failures)

    @classmethod
    def merge(cls, parts: Sequence[BenchmarkPoints]) -> BenchmarkPoints:
        """Merge points of several files of one platform.

        Raises
        ------
        MismatchError
            If they are of several platforms.
        InvalidValueError
            If `parts` is empty.
        """
        if not parts:
            raise InvalidValueError("There are no points to put together.")
        first = parts[0]
        for other in parts[1:]:
            check_same_platform(first.platform, other.platform, "Fitting one device to these points")
        return replace(
            first,
            points=tuple(point for part in parts for point in part.points),
            failures={name: reason for part in parts for name, reason in part.failures.items()},
            rounds=sum(part.rounds for part in parts),
            duration=sum(part.duration for part in parts),
            drift=tuple(seconds for part in parts for seconds in part.drift),
            remarks=tuple(remark for part in parts for remark in part.remarks),
        )


def _content(point: BenchmarkPoint) -> dict[str, Any]:
    fields = {name: getattr(point, name) for name in _PLAIN}
    return {**fields, **counts_content(point.features), "ops": [op.as_dict() for op in point.ops]}


def _point(document: PointDocument) -> BenchmarkPoint:
    return BenchmarkPoint(**{name: getattr(document, name) for name in (*_PLAIN, "ops")})


class PointDocument(CountedDocument):
    """One block at one batch size."""

    block: str
    kind: str
    input_shape: ShapeTuple = Field(description="batch first")
    ops: tuple[Operator, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _interval_encloses_value(self) -> PointDocument:
        if not 0 < self.low <= self.value <= self.high:
            raise ValueError(f"the interval of {self.block!r} must be positive and enclose its value")
        return self


class PointsDocument(HeaderDocument):
    """Blocks and what they took on one platform."""

    failures: dict[str, str] = Field(default_factory=dict, description="blocks with no larger batch size, and why")
    points: list[PointDocument]


POINTS = DocumentFormat(
    "nni_latency.benchmark_points",
    1,
    "file of points",
    "a file of benchmark points",
    "measure some with: nni-latency learn device",
    model=PointsDocument,
)


#: Returns the JSON schema of the file format.
points_schema = POINTS.schema
