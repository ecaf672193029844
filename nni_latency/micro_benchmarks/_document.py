"""The file of benchmark points: versioned JSON, checked by pydantic, one line a point.

History of the format:

1. The first version.
2. ``space``, which names the set of blocks, ``conditions`` and the rest of the header of tables; ``ended`` is
   called ``failures``.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from nni_latency.documents import DocumentFormat, OperatorDocument, Shape
from nni_latency.tables import CountedDocument, HeaderDocument

#: Name of the predefined blocks.
BLOCK_SET = "micro-benchmarks"


class PointDocument(CountedDocument):
    """One block at one batch size."""

    block: str
    kind: str
    input_shape: Shape = Field(description="batch first")
    ops: list[OperatorDocument] = Field(min_length=1)

    @model_validator(mode="after")
    def _interval_encloses_value(self) -> PointDocument:
        if not 0 < self.low <= self.value <= self.high:
            raise ValueError(f"the interval of {self.block!r} must be positive and enclose its value")
        return self


class PointsDocument(HeaderDocument):
    """Blocks and what they took on one platform."""

    format: Literal["nni_latency.benchmark_points"]
    version: Literal[2]
    failures: dict[str, str] = Field(default_factory=dict, description="blocks with no larger batch size, and why")
    points: list[PointDocument]


def _to_version_2(content: dict[str, Any]) -> dict[str, Any]:
    renamed = {"failures" if name == "ended" else name: value for name, value in content.items()}
    return {"space": {"name": BLOCK_SET}, **renamed}


POINTS = DocumentFormat(
    "nni_latency.benchmark_points",
    2,
    "file of points",
    "a file of benchmark points",
    "measure some with: nni-latency micro-benchmark",
    model=PointsDocument,
    steps=(_to_version_2,),
)

#: Returns the JSON schema of the file format.
points_schema = POINTS.schema
