"""File of a validation: JSON for programs and for the record of a table."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from nni_latency.documents import DocumentFormat
from nni_latency.estimators import Scores
from nni_latency.units import METRIC_UNITS

if TYPE_CHECKING:
    from nni_latency.validation._validation import NetworkResult, Validation


import json
from dataclasses import replace
from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveFloat

from nni_latency.estimators import Estimate
from nni_latency.platforms import Platform
from nni_latency.units import check_metric
from nni_latency.validation._validation import NetworkResult, Validation


class ScoresDocument(BaseModel):
    """The scores in a file."""

    model_config = ConfigDict(strict=True)

    n: int
    mape: float
    rmspe: float
    bias: float
    within5: float
    within10: float
    spearman: float | None
    worst: float


class ValidationSummary(BaseModel):
    """What the file of a validation says in short."""

    model_config = ConfigDict(strict=True)

    scores: ScoresDocument
    repeatability: ScoresDocument


VALIDATION = DocumentFormat(
    "nni_latency.validation",
    1,
    "validation",
    "the file of a validation",
    "validate the table anew with: nni-latency validate",
    model=ValidationSummary,
)


def validation_content(validation: Validation) -> dict[str, Any]:
    """Return a validation as plain values; undefined scores are null.

    Parameters
    ----------
    validation : Validation
        The validation.

    Returns
    -------
    dict
        Everything in SI units, errors as ratios.
    """
    return {
        **VALIDATION.head,
        "estimator": validation.estimator,
        "metric": validation.metric,
        "unit": METRIC_UNITS[validation.metric],
        "platform": {"id": validation.platform.id, "facts": dict(validation.platform.facts)},
        "scores": _scores(validation.scores),
        "repeatability": _scores(validation.repeatability),
        "speed": validation.speed,
        "coverage": validation.coverage,
        "duration": validation.duration,
        "drift": list(validation.drift),
        "failures": dict(validation.failures),
        "fallbacks": list(validation.fallbacks),
        "networks": [_network(result) for result in validation.results],
    }


def read_summary(path: Path) -> ValidationSummary:
    """Read the scores of a saved validation.

    Raises
    ------
    FileFormatError
        If the file cannot be read, or is not a validation.
    """
    summary: ValidationSummary = VALIDATION.load(path, ValidationSummary.model_copy)
    return summary


def _scores(scores: Scores) -> dict[str, float | None]:
    # NaN, which is not equal to itself, is not valid JSON.
    return {name: value if value == value else None for name, value in asdict(scores).items()}


def _network(result: NetworkResult) -> dict[str, Any]:
    return {
        "name": result.name,
        "predicted": result.predicted.value,
        "predicted_low": result.predicted.low,
        "predicted_high": result.predicted.high,
        "measured": result.measured,
        "low": result.low,
        "high": result.high,
        "error": result.error,
        "inside": result.inside,
        "halves": list(result.halves),
        "n_samples": result.n_samples,
        "missing": list(result.predicted.missing),
        "selection": dict(result.selection),
    }


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
    #: Missing in the oldest files.
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
    """What the file of a validation says; its scores follow from the networks."""

    model_config = ConfigDict(strict=True)

    estimator: str
    metric: str
    platform: WhereDocument
    speed: PositiveFloat
    duration: float
    drift: list[float]
    failures: dict[str, str]
    fallbacks: list[str] = Field(default_factory=list)
    networks: list[ResultDocument] = Field(min_length=1)


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
    """Write a validation to its file atomically.

    Raises
    ------
    InvalidValueError
        If the content is not valid for reading back.
    OutputError
        If it cannot be written.
    """
    content = validation_content(validation)
    return _WHOLE.save(path, content, {"networks": map(json.dumps, content.pop("networks"))})


def _validation(document: ValidationDocument) -> Validation:
    where = Platform.parse(document.platform.id)
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
    )


def _result(item: ResultDocument) -> NetworkResult:
    low, high = (item.predicted if end is None else end for end in (item.predicted_low, item.predicted_high))
    predicted = Estimate(item.predicted, low, high, tuple(item.missing))
    first, second = item.halves
    return NetworkResult(
        item.name, item.selection, predicted, item.measured, item.low, item.high, (first, second), item.n_samples
    )
