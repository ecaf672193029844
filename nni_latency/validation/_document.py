# SPDX-License-Identifier: Apache-2.0
"""A validation as JSON, for programs and for the record beside a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from nni_latency.documents import DocumentFormat, plain
from nni_latency.estimators import Scores
from nni_latency.units import METRIC_UNITS

if TYPE_CHECKING:
    from nni_latency.validation._validation import NetworkResult, Validation


class ValidationSummary(BaseModel):
    """What the file of a validation says in short."""

    model_config = ConfigDict(strict=True)

    scores: Scores
    #: Null where the networks are not in the file.
    repeatability: Scores | None


VALIDATION = DocumentFormat(
    "nni_latency.validation",
    1,
    "validation",
    "the file of a validation",
    "validate the table anew with: nni-latency validate",
    model=ValidationSummary,
)


def validation_content(validation: Validation) -> dict[str, Any]:
    """Return a validation as plain values; a score that could not be computed is null.

    Parameters
    ----------
    validation : Validation
        What to write.

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
        "scores": plain(validation.scores),
        "repeatability": validation.repeatability and plain(validation.repeatability),
        "speed": validation.speed,
        "coverage": validation.coverage,
        "duration": validation.duration,
        "drift": list(validation.drift),
        "failures": dict(validation.failures),
        "fallbacks": list(validation.fallbacks),
        "networks": [_network(result) for result in validation.results],
    }


def read_summary(path: Path) -> ValidationSummary:
    """Read the scores of a saved validation, without the libraries that its networks need.

    Raises
    ------
    FileFormatError
        If the file cannot be read, or is not a validation.
    """
    summary: ValidationSummary = VALIDATION.load(path, ValidationSummary.model_copy)
    return summary


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
