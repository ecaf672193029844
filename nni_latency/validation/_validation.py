"""`validate`: predictions against measurements, beside how well the measurements agree with themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nni_latency.errors import MeasurementError, MismatchError
from nni_latency.estimators import (
    Estimate,
    Estimator,
    OperatorTableEstimator,
    Scores,
    TableEstimator,
    estimate_selection,
    score,
)
from nni_latency.platforms import Platform, check_same_platform
from nni_latency.tables import MeasurePlan, NetworkMeasurements, NetworkSource


@dataclass(frozen=True)
class NetworkResult:
    """One network: predicted and measured.

    Parameters
    ----------
    name : str
        What it is called in the report.
    selection : mapping
        ``{layer: choice}`` or ``{label: choice}``.
    predicted : Estimate
        By the estimator, for the machine as it was when the estimator was made.
    measured, low, high : float
        Measured value and its interval, at the speed that the machine had then.
    halves : tuple of float
        The same from the two halves of the run.
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
        """Predicted over measured, less one."""
        return self.predicted.value / self.measured - 1


@dataclass(frozen=True)
class Validation:
    """An estimator held to measurements.

    Parameters
    ----------
    estimator : str
        What was held to them.
    metric : str
        What was predicted.
    platform : Platform
        Where it was measured.
    results : tuple of NetworkResult
        By network.
    speed : float
        Time of the space's reference network when the estimator was made over that in this run: below 1 the machine is
        slower now. Measured times are multiplied by it. 1 where the estimator does not know.
    drift : tuple of float
        Median time of the reference operator in every round [s].
    duration : float
        Time spent measuring [s].
    failures : mapping of str to str
        Networks that could not be run, each with the reason.
    """

    estimator: str
    metric: str
    platform: Platform
    results: tuple[NetworkResult, ...]
    speed: float
    drift: tuple[float, ...]
    duration: float
    failures: Mapping[str, str]

    @cached_property
    def scores(self) -> Scores:
        """How well the predictions agree with the measurements."""
        return score([item.predicted.value for item in self.results], [item.measured for item in self.results])

    @cached_property
    def repeatability(self) -> Scores:
        """How well one half of the measurements agrees with the other: what no prediction can be better than."""
        return score([item.halves[0] for item in self.results], [item.halves[1] for item in self.results])

    @property
    def worst(self) -> list[NetworkResult]:
        """The networks, those with the largest errors first."""
        return sorted(self.results, key=lambda item: -abs(item.error))


def predict_networks(
    estimator: Estimator, plan: NetworkSource, selections: Mapping[str, Mapping[str, Any]], platform: Platform
) -> dict[str, Estimate]:
    """Predict networks that are to be measured; what does not fit is told before the measuring.

    Parameters
    ----------
    estimator : Estimator
        Who predicts.
    plan : NetworkSource
        The space: a `MeasurePlan`, or one whose networks are drawn, which are built and estimated as they are.
    selections : mapping of str to mapping
        Networks by name, ``{layer: choice}`` with every layer each, or ``{label: choice}`` with every label.
    platform : Platform
        Where they are measured.

    Raises
    ------
    MismatchError
        If the estimator is for another platform, space or metric.
    MissingEntryError
        If it knows too little.
    """
    if estimator.metric != "latency":
        raise MismatchError(f"Measured is the latency of networks, {estimator!r} estimates their {estimator.metric}.")
    check_same_platform(estimator.platform, platform, f"Validating {estimator!r}")
    return {name: _predict(estimator, plan, selection) for name, selection in selections.items()}


def _predict(estimator: Estimator, plan: NetworkSource, selection: Mapping[str, Any]) -> Estimate:
    if isinstance(plan, MeasurePlan):
        return estimate_selection(estimator, plan, selection)
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
    """Hold an estimator to measured networks. It works for every estimator.

    Parameters
    ----------
    estimator : Estimator
        Whose predictions are checked.
    plan : NetworkSource
        The space of the networks.
    measured : NetworkMeasurements
        By `nni_latency.tables.measure_networks`.
    normalise : bool, default=True
        Take the measurements to the speed that the machine had when the estimator was made, by the space's reference
        network.
    predicted : mapping of str to Estimate, optional
        What `predict_networks` said of them before.

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
    selections = {name: times.selection for name, times in measured.networks.items()}
    predicted = predicted or predict_networks(estimator, plan, selections, measured.platform)
    if not measured.networks:
        raise MeasurementError(f"No network could be measured: {next(iter(measured.failures.values()), 'none given')}.")
    before = estimator.table.reference if isinstance(estimator, (TableEstimator, OperatorTableEstimator)) else None
    speed = before / measured.reference if normalise and before and measured.reference else 1.0
    results = tuple(
        NetworkResult(
            name,
            times.selection,
            predicted[name],
            times.summary.value * speed,
            times.summary.low * speed,
            times.summary.high * speed,
            (times.halves[0] * speed, times.halves[1] * speed),
            times.summary.n_samples,
        )
        for name, times in measured.networks.items()
    )
    return Validation(
        repr(estimator),
        estimator.metric,
        measured.platform,
        results,
        speed,
        measured.drift,
        measured.duration,
        measured.failures,
    )
