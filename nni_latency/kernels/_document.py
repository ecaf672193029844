# SPDX-License-Identifier: Apache-2.0
"""File format of kernel predictors: versioned JSON, validated by pydantic, with one line per predictor and kernel."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat

from nni_latency.documents import DocumentFormat, StrictDocument
from nni_latency.kernels._model import KernelModel
from nni_latency.kernels._predictor import KernelScores
from nni_latency.tables import CostDocument, HeaderDocument


class SettingsDocument(StrictDocument):
    """The parameters of a predictor."""

    candidates: list[str] = Field(min_length=1)
    n_folds: int = Field(ge=2)
    confidence: float = Field(gt=0, lt=1)
    random_state: int


class PredictorDocument(StrictDocument):
    """The predictor of one group of kernels."""

    group: str
    kinds: list[str] = Field(min_length=1, description="kinds that were measured")
    activations: list[str] = Field(description="activations that features tell apart")
    settings: SettingsDocument
    chosen: str
    scores: dict[str, KernelScores] = Field(description="by model, in cross-validation")
    interval_factor: float = Field(ge=1, description="by what factor a prediction may be off, up or down")
    model: KernelModel


class MeasuredKernelDocument(CostDocument):
    """A kernel that was measured."""

    kind: str
    configuration: dict[str, NonNegativeInt]
    held_out: PositiveFloat | None = Field(None, description="what a model said of it that had not seen it [s]")


class KernelsDocument(HeaderDocument):
    """Predictors of all kernels of one platform, and what they were learned from."""

    format: Literal["nni_latency.kernels"]
    version: Literal[1]
    constant: float = Field(0.0, ge=0, description="what a run takes outside of its kernels [s]")
    sampling: dict[str, int | float | str | None] = Field(default_factory=dict, description="how kernels were chosen")
    failures: dict[str, str] = Field(default_factory=dict, description="kernels that could not be measured, and why")
    predictors: list[PredictorDocument]
    kernels: list[MeasuredKernelDocument]
    tested: list[MeasuredKernelDocument] = Field(
        default_factory=list, description="kernels that were measured in the same rounds, and never learned from"
    )


KERNELS = DocumentFormat(
    "nni_latency.kernels",
    1,
    "file of kernels",
    "a file of kernel predictors",
    "make one with: nni-latency learn kernels",
    model=KernelsDocument,
)

#: Returns the JSON schema of the file format.
kernels_schema = KERNELS.schema
