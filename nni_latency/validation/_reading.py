# SPDX-License-Identifier: Apache-2.0
"""Writing a validation and reading the whole of it; `read_summary` reads its scores alone, and loads less."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, ValidationInfo, field_validator

from nni_latency.estimators import Estimate, Scores
from nni_latency.platforms import Platform
from nni_latency.units import check_metric
from nni_latency.validation._document import VALIDATION, validation_content
from nni_latency.validation._validation import KeptScores, NetworkResult, Validation


class WhereDocument(BaseModel):
    """Where networks were measured."""

    model_config = ConfigDict(strict=True)

    id: str
    facts: dict[str, bool | int | float | str] = Field(default_factory=dict)


class ResultDocument(BaseModel):
    """One network: predicted and measured."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    name: str
    predicted: NonNegativeFloat
    #: Absent in older files.
    predicted_low: float | None = None
    predicted_high: float | None = None
    measured: PositiveFloat
    low: float
    high: float
    halves: Annotated[list[PositiveFloat], Field(min_length=2, max_length=2)]
    n_samples: int
    missing: list[str] = Field(default_factory=list)
    selection: dict[str, Any] = Field(default_factory=dict)


class ValidationDocument(BaseModel):
    """What the file of a validation says; its scores follow from the networks, if it has any."""

    model_config = ConfigDict(strict=True)

    estimator: str
    metric: str
    platform: WhereDocument
    speed: PositiveFloat
    duration: float
    drift: list[float]
    failures: dict[str, str]
    fallbacks: list[str] = Field(default_factory=list)
    scores: Scores
    coverage: Annotated[float, Field(ge=0, le=1)] | None = None
    repeatability: Scores | None
    networks: list[ResultDocument]

    @field_validator("networks")
    @classmethod
    def _networks_or_scores(cls, networks: list[ResultDocument], known: ValidationInfo) -> list[ResultDocument]:
        """Refuse a file whose networks were lost: one of scores alone has a coverage, and no repeatability."""
        if not networks and (known.data.get("coverage") is None or known.data.get("repeatability") is not None):
            raise ValueError("a file without networks must have their coverage, and null as repeatability")
        return networks


_WHOLE = replace(VALIDATION, model=ValidationDocument)


def read_validation(path: str | Path) -> Validation:
    """Read a saved validation.

    Raises
    ------
    FileFormatError
        If the file cannot be read, or is not a validation.
    """
    found: Validation = _WHOLE.load(path, _validation)
    return found


def save_validation(validation: Validation, path: str | Path) -> Path:
    """Write a validation to a JSON file atomically; an existing file is replaced.

    Raises
    ------
    InvalidValueError
        If something of it would not be read again.
    OutputError
        If it cannot be written.
    """
    content = validation_content(validation)
    return _WHOLE.save(path, content, {"networks": map(json.dumps, content.pop("networks"))})


def _validation(document: ValidationDocument) -> Validation:
    where = Platform.parse(document.platform.id)
    kept = None
    if not document.networks and document.coverage is not None:
        kept = KeptScores(document.scores, document.coverage)
    return Validation(
        document.estimator,
        check_metric(document.metric),
        Platform(where.device, where.runtime, where.precision, where.threads, document.platform.facts),
        tuple(map(_result, document.networks)),
        document.speed,
        tuple(document.drift),
        document.duration,
        document.failures,
        tuple(document.fallbacks),
        kept,
    )


def _result(item: ResultDocument) -> NetworkResult:
    low, high = (item.predicted if end is None else end for end in (item.predicted_low, item.predicted_high))
    predicted = Estimate(item.predicted, low, high, tuple(item.missing))
    first, second = item.halves
    return NetworkResult(
        item.name, item.selection, predicted, item.measured, item.low, item.high, (first, second), item.n_samples
    )
