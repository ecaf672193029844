"""The file of benchmark points: versioned JSON, checked by pydantic, one line a point."""

from __future__ import annotations

from pydantic import Field, model_validator

from nni_latency.documents import DocumentFormat, Operator, ShapeTuple
from nni_latency.tables import CountedDocument, HeaderDocument

#: Name of the predefined blocks.
BLOCK_SET = "micro-benchmarks"


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
