# SPDX-License-Identifier: Apache-2.0
"""`validate`: compares predictions with measurements, beside how well the measurements agree with themselves."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from nni_latency.costs import NORMAL
from nni_latency.errors import InvalidValueError, MeasurementError, MismatchError, MissingEntryError
from nni_latency.estimators import (
    Estimate,
    Estimator,
    Scores,
    TableEstimator,
    estimate_selection,
    score,
)
from nni_latency.notebook import Drawn
from nni_latency.platforms import Platform, check_same_platform
from nni_latency.tables import MeasurePlan, NetworkMeasurements, NetworkSource, NetworkTimes, sample_text
from nni_latency.units import format_percent, format_rank_correlation, number_of

#: Metrics measured on whole networks.
MEASURED = ("latency", "energy", "power")

#: Relative tolerance of equal numbers.
_ROUNDING = 1e-9

#: Standard error of the median of four normal quantities over that of their mean.
_MEDIAN = 1.09


@dataclass(frozen=True)
class NetworkResult:
    """One network: predicted and measured.

    Parameters
    ----------
    name : str
        Name in the report.
    selection : mapping
        ``{layer: choice}`` or ``{label: choice}``.
    predicted : Estimate
        Prediction of the estimator, at the machine speed of its creation.
    measured, low, high : float
        Measured value and its interval, normalised to that speed. The interval includes the uncertainty of the speed.
    halves : tuple of float
        Measured values from the two halves of the run.
    n_samples : int
        Timed runs.
    """

    name: str
    selection: Mapping[str, Any]
    predicted: Estimate
    measured: float
    low: float
    high: float
    halves: tuple[float, float]
    n_samples: int

    @property
    def error(self) -> float:
        """Relative error: predicted over measured, minus one."""
        return self.predicted.value / self.measured - 1

    @property
    def inside(self) -> bool:
        """Whether the measurement agrees with the prediction's interval within its own uncertainty."""
        more = self.measured > self.predicted.value
        margins = (
            (self.predicted.high - self.predicted.value, self.measured - self.low)
            if more
            else (self.predicted.value - self.predicted.low, self.high - self.measured)
        )
        return abs(self.predicted.value - self.measured) <= math.hypot(*margins) + _ROUNDING * self.measured


@dataclass(frozen=True)
class KeptScores:
    """Scores of networks that a validation does not contain.

    Parameters
    ----------
    scores : Scores
        Agreement of the predictions with the measurements.
    coverage : float
        Share of the networks inside their prediction interval.
    """

    scores: Scores
    coverage: float


@dataclass(frozen=True, repr=False)
class Validation(Drawn):
    """Comparison of an estimator with measurements.

    Parameters
    ----------
    estimator : str
        Description of the estimator.
    metric : str
        Predicted metric.
    platform : Platform
        Platform of the measurements.
    results : tuple of NetworkResult
        Result of each network.
    speed : float
        Median ratio of predicted to measured latency of the space's reference networks: below 1, the machine is slower
        than predicted. Measured times are multiplied by it. 1 without normalisation.
    drift : tuple of float
        Median time of the reference operator in every round [s].
    duration : float
        Time spent measuring [s].
    failures : mapping of str to str
        Failed networks with the reason.
    fallbacks : tuple of str, default=()
        Messages on operators that did not run on the requested device or in the requested precision.
    kept : KeptScores, optional
        Scores in place of `results`, which is empty: of networks that others measured and that are not copied.

    Raises
    ------
    InvalidValueError
        If there are neither results nor scores, or both.
    """

    estimator: str
    metric: str
    platform: Platform
    results: tuple[NetworkResult, ...]
    speed: float
    drift: tuple[float, ...]
    duration: float
    failures: Mapping[str, str]
    fallbacks: tuple[str, ...] = ()
    kept: KeptScores | None = None

    def __post_init__(self) -> None:
        if bool(self.results) == (self.kept is not None):
            raise InvalidValueError("A validation has the results of networks or their scores alone. Give one of them.")

    def __repr__(self) -> str:
        return (
            f"Validation({self.estimator}, {number_of(self.scores.n, 'network')} on {self.platform.id}: MAPE "
            f"{format_percent(self.scores.mape)}, Spearman {format_rank_correlation(self.scores.spearman)})"
        )

    @cached_property
    def scores(self) -> Scores:
        """Agreement of the predictions with the measurements."""
        if self.kept is not None:
            return self.kept.scores
        return score([item.predicted.value for item in self.results], [item.measured for item in self.results])

    @cached_property
    def repeatability(self) -> Scores | None:
        """Agreement of the two halves of the measurements, an upper bound for predictions; None without `results`."""
        if not self.results:
            return None
        return score([item.halves[0] for item in self.results], [item.halves[1] for item in self.results])

    @property
    def coverage(self) -> float:
        """Share of the networks inside their prediction interval; nominally 0.95."""
        if self.kept is not None:
            return self.kept.coverage
        return sum(item.inside for item in self.results) / len(self.results)

    @property
    def worst(self) -> list[NetworkResult]:
        """The networks by decreasing error."""
        return sorted(self.results, key=lambda item: -abs(item.error))


def predict_networks(
    estimator: Estimator, plan: NetworkSource, selections: Mapping[str, Mapping[str, Any]], platform: Platform
) -> dict[str, Estimate]:
    """Predict networks to measure; mismatches raise before the measurement.

    Parameters
    ----------
    estimator : Estimator
        Estimator to validate.
    plan : NetworkSource
        The space: a `MeasurePlan`, or a space of drawn networks, which are built and estimated as a whole.
    selections : mapping of str to mapping
        Networks by name: ``{layer: choice}`` with every layer, or ``{label: choice}`` with every label.
    platform : Platform
        Platform of the measurements.

    Raises
    ------
    MismatchError
        If the estimator is for another platform, space or metric.
    MissingEntryError
        If the estimator lacks the data for a prediction.
    """
    if estimator.metric not in MEASURED:
        raise MismatchError(
            f"Measured are {', '.join(MEASURED)} of networks, {estimator!r} estimates their {estimator.metric}."
        )
    check_same_platform(estimator.platform, platform, f"Validating {estimator!r}")
    return {name: _predict(estimator, plan, selection) for name, selection in selections.items()}


def predict_references(
    estimator: Estimator, plan: NetworkSource, references: Mapping[str, Mapping[str, Any]]
) -> dict[str, Estimate]:
    """Predict reference networks like `predict_networks`, without those that the estimator cannot predict.

    A table of operators holds the measured costs of its reference networks. They take the place of predictions, whose
    errors would be taken for the speed of the machine.
    """
    known = {}
    if isinstance(estimator, TableEstimator):
        known = {sample_text(network.sample): Estimate.of(network) for network in estimator.table.networks}
    found = {}
    for name, selection in references.items():
        with contextlib.suppress(MissingEntryError):
            found[name] = known.get(sample_text(selection)) or _predict(estimator, plan, selection)
    return found


def _predict(estimator: Estimator, plan: NetworkSource, selection: Mapping[str, Any]) -> Estimate:
    if isinstance(plan, MeasurePlan):
        return estimate_selection(estimator, plan, selection)
    # A hand-made table contains choices without operators.
    if isinstance(estimator, TableEstimator) and set(selection) == {layer.name for layer in estimator.table.searched}:
        return estimator.estimate_sample(selection)
    import torch

    return estimator.estimate(plan.network_of(selection)(), torch.zeros(plan.input_shape))


def validate(
    estimator: Estimator,
    plan: NetworkSource,
    measured: NetworkMeasurements,
    *,
    normalise: bool = True,
    predicted: Mapping[str, Estimate] | None = None,
) -> Validation:
    """Compare an estimator with measured networks. Supports every estimator.

    Parameters
    ----------
    estimator : Estimator
        Estimator to validate.
    plan : NetworkSource
        Space of the networks.
    measured : NetworkMeasurements
        Result of `nni_latency.tables.measure_networks`.
    normalise : bool, default=True
        Whether to normalise the measurements to the machine speed of the estimator's predictions, using the space's
        reference networks. An error by a common factor then shows in `Validation.speed` instead of the scores.
    predicted : mapping of str to Estimate, optional
        Earlier results of `predict_networks`, including reference networks, by name.

    Returns
    -------
    Validation

    Raises
    ------
    MismatchError
        If the estimator is for another platform or metric than was measured.
    MeasurementError
        If no network could be measured.
    """
    if estimator.metric != measured.metric:
        raise MismatchError(f"Measured is the {measured.metric} of networks, {estimator!r} gives {estimator.metric}.")
    selections = {name: times.selection for name, times in measured.networks.items()}
    predicted = predicted or predict_networks(estimator, plan, selections, measured.platform)
    references = {name: times.selection for name, times in measured.references.items() if name not in predicted}
    if normalise:
        predicted = {**predicted, **predict_references(estimator, plan, references)}
    if not measured.networks:
        raise MeasurementError(f"No network could be measured: {next(iter(measured.failures.values()), 'none given')}.")
    speed, error = _speed(measured, predicted) if normalise else (1.0, 0.0)
    return Validation(
        repr(estimator),
        estimator.metric,
        measured.platform,
        tuple(_result(name, times, predicted[name], speed, error) for name, times in measured.networks.items()),
        speed,
        measured.drift,
        measured.duration,
        measured.failures,
        measured.fallbacks,
    )


def _speed(measured: NetworkMeasurements, predicted: Mapping[str, Estimate]) -> tuple[float, float]:
    """Return the machine's speed from the reference networks, and its relative standard error; 1 if unknown."""
    pairs = [(predicted[name], times.summary) for name, times in measured.references.items() if name in predicted]
    if not pairs:
        return 1.0, 0.0
    variances = [sum((item.spread / NORMAL) ** 2 for item in pair) for pair in pairs]
    factor = _MEDIAN if len(pairs) > 2 else 1.0
    speed = float(np.median([estimate.value / summary.value for estimate, summary in pairs]))
    return speed, factor * float(np.sqrt(np.mean(variances) / len(pairs)))


def _result(name: str, times: NetworkTimes, predicted: Estimate, speed: float, error: float) -> NetworkResult:
    """Normalise the measurement of a network to the speed of the estimator."""
    taken = times.summary.with_error(error).scaled(speed)
    halves = (times.halves[0] * speed, times.halves[1] * speed)
    return NetworkResult(
        name, times.selection, predicted, taken.value, taken.low, taken.high, halves, times.summary.n_samples
    )
