# SPDX-License-Identifier: Apache-2.0
"""File of an ACTS fit: versioned JSON, validated by pydantic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, model_validator

from nni_latency.documents import DocumentFormat, PlatformDocument, StrictDocument
from nni_latency.estimators.acts._line import ActsLine
from nni_latency.estimators.acts._model import KERNELS, CostCurve, CostModel, GroupCosts, Residual
from nni_latency.estimators.acts._workloads import N_TOTALS, N_TRAITS, Work
from nni_latency.platforms import Platform

NotNegative = Annotated[float, Field(ge=0)]


@dataclass(frozen=True)
class ActsFit:
    """State of an estimator: its parameters and fitted attributes."""

    settings: Mapping[str, Any]
    platform: Platform
    line: ActsLine
    shares: Mapping[str, float]
    bound: str
    correction: str
    operators: bool
    start: bool
    totals_range: tuple[NDArray[np.float64], NDArray[np.float64]]
    interval_factor: float
    held_out_errors: NDArray[np.float64]
    model: CostModel | None


class SettingsDocument(StrictDocument):
    """The parameters of the estimator."""

    variant: Literal["refined", "published"]
    confidence: float = Field(gt=0, lt=1)
    n_folds: int = Field(ge=2)
    random_state: int


class WorkDocument(StrictDocument):
    """A piece of work that factors were learned from, and its weight in them."""

    group: str
    traits: list[float]
    weight: float


class ResidualDocument(StrictDocument):
    """Factors on the costs, a Gaussian process over pieces of work."""

    kernel: str
    reach: PositiveFloat
    centre: list[float]
    scale: list[PositiveFloat]
    work: list[WorkDocument] = Field(min_length=1)

    @model_validator(mode="after")
    def _sizes_fit(self) -> ResidualDocument:
        if self.kernel not in KERNELS:
            raise ValueError(f"the kernel must be one of {', '.join(KERNELS)}")
        if any(len(row) != len(self.centre) for row in (self.scale, *(piece.traits for piece in self.work))):
            raise ValueError("centre, scale and traits must be as many")
        if len(self.centre) not in (N_TOTALS, N_TRAITS):
            raise ValueError(f"there must be {N_TRAITS} traits of operators, or {N_TOTALS} of totals")
        return self


class ModelDocument(StrictDocument):
    """What pieces of work cost."""

    costs: GroupCosts
    curve: CostCurve | None = None
    residual: ResidualDocument | None = None


class ActsDocument(StrictDocument):
    """A fit of latencies to ACTS, INP and FLOPs on one platform."""

    format: Literal["nni_latency.acts"]
    version: Literal[1]
    metric: Literal["latency"]
    unit: Literal["s"]
    platform: PlatformDocument
    settings: SettingsDocument
    line: ActsLine
    shares: dict[Literal["acts", "inp", "flops", "constant"], NotNegative] = Field(min_length=4)
    bound: Literal["memory", "compute"]
    correction: Literal["none", "curve", "residual"]
    operators: bool = Field(description="whether the operators of the points were known")
    start: bool = Field(description="whether a block that is timed alone takes something once, however little it does")
    totals_low: list[NotNegative] = Field(min_length=3, max_length=3)
    totals_high: list[NotNegative] = Field(min_length=3, max_length=3)
    interval_factor: float = Field(ge=1, description="by what factor an estimate may be off, up or down")
    held_out_errors: list[float] = Field(description="logarithm of measured over predicted, by point")
    model: ModelDocument | None = None

    @model_validator(mode="after")
    def _correction_is_there(self) -> ActsDocument:
        kept = {"curve": self.model and self.model.curve, "residual": self.model and self.model.residual}
        if self.correction in kept and kept[self.correction] is None:
            raise ValueError(f"the correction {self.correction!r} is not in the file")
        return self


FIT = DocumentFormat(
    "nni_latency.acts",
    1,
    "fit",
    "an ACTS fit",
    "fit one with: nni-latency learn device",
    model=ActsDocument,
)

#: Returns the JSON schema of the file format.
acts_schema = FIT.schema


def write_acts(path: Path, fit: ActsFit) -> Path:
    """Write a fit atomically."""
    low, high = fit.totals_range
    plain = ("bound", "correction", "operators", "start", "interval_factor")
    content = {
        "metric": "latency",
        "unit": "s",
        "platform": fit.platform.as_dict(),
        "settings": dict(fit.settings),
        "line": vars(fit.line),
        "shares": dict(fit.shares),
        **{name: getattr(fit, name) for name in plain},
        "totals_low": low.tolist(),
        "totals_high": high.tolist(),
        "held_out_errors": fit.held_out_errors.tolist(),
        "model": fit.model and _model_content(fit.model),
    }
    return FIT.save(path, content)


def read_acts(path: str | Path) -> ActsFit:
    """Read a fit.

    Raises
    ------
    FileFormatError
        If the file is missing, truncated, modified, or of another type or a newer version.
    """
    return FIT.load(path, _fit)


def _model_content(model: CostModel) -> dict[str, Any]:
    residual = model.residual
    return {
        "costs": vars(model.costs),
        "curve": model.curve and vars(model.curve),
        "residual": residual
        and {
            **{name: getattr(residual, name) for name in ("kernel", "reach", "centre", "scale")},
            "work": [
                {"group": piece.group, "traits": piece.traits, "weight": weight}
                for piece, weight in zip(residual.work, residual.weights, strict=True)
            ],
        },
    }


def _fit(document: ActsDocument) -> ActsFit:
    model = document.model
    return ActsFit(
        settings=document.settings.model_dump(),
        platform=document.platform.to_platform(),
        line=document.line,
        shares={str(name): share for name, share in document.shares.items()},
        bound=document.bound,
        correction=document.correction,
        operators=document.operators,
        start=document.start,
        totals_range=(np.array(document.totals_low), np.array(document.totals_high)),
        interval_factor=document.interval_factor,
        held_out_errors=np.array(document.held_out_errors),
        model=None if model is None else CostModel(model.costs, model.curve, _residual(model.residual)),
    )


def _residual(document: ResidualDocument | None) -> Residual | None:
    if document is None:
        return None
    return Residual(
        document.kernel,
        document.reach,
        tuple(document.centre),
        tuple(document.scale),
        tuple(Work(piece.group, (), tuple(piece.traits)) for piece in document.work),
        tuple(piece.weight for piece in document.work),
    )
