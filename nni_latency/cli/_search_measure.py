# SPDX-License-Identifier: Apache-2.0
"""Measuring what ``nni-latency search`` found, also the addends of a weighted sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import nni_latency.estimators as estimators
import nni_latency.measurement as measurement
import nni_latency.measurement.runtimes as runtimes
import nni_latency.nas as nas
import nni_latency.spaces as spaces
import nni_latency.tables as tables
import nni_latency.validation as validation
from nni_latency.cli._measuring import DeviceOptions, check_known, has_runtime, make_runtime
from nni_latency.cli._searched import Searched
from nni_latency.errors import MismatchError
from nni_latency.platforms import Platform
from nni_latency.units import METRIC_UNITS, format_metric

#: Name of the network among those that are measured.
FOUND = "found"


def runtime_of(
    platform: Platform, device: str | None, runtime_options: tuple[tuple[str, Any], ...] = ()
) -> runtimes.Runtime:
    """Return the runtime of an estimator's platform on a device; without one, on this machine.

    Raises
    ------
    MismatchError
        If the device is another platform, the estimator says none, or its runtime is not installed.
    LatencyError
        If there is no such device.
    """
    check_known(platform)
    here = "cuda" if platform.facts.get("device_kind") == "cuda" else "cpu"
    asked = DeviceOptions(device or here, runtime_options).of(platform)
    if not has_runtime(asked.runtime):
        raise MismatchError(
            f"The numbers hold for {platform.device} with the runtime {asked.runtime!r}, which is not installed here."
        )
    runtime = make_runtime(asked)
    differences = platform.differences(runtime.platform)
    if differences:
        advice = "" if device else " To measure on its device, name that with --device."
        raise MismatchError(f"The estimator belongs to another platform ({'; '.join(differences)}).{advice}")
    return runtime


def measure_found(
    estimator: estimators.Estimator,
    searched: Searched,
    result: nas.SearchResult,
    runtime: runtimes.Runtime,
    protocol: measurement.Protocol,
    **how: Unpack[tables.MeasuringOptions],
) -> validation.Validation:
    """Measure the network that a search found, and compare it with its prediction as a validation does.

    Returns
    -------
    Validation
        Of this one network; its times are at the speed that the machine had when the estimator was made.

    Raises
    ------
    MeasurementError
        If the network found fails to run.
    """
    source = _source(estimator, searched)
    selections = {FOUND: _selection(source, result.sample)}
    measured = tables.measure_networks(source, selections, runtime, protocol, metric=estimator.metric, **how)
    predicted = {FOUND: estimators.Estimate(result.latency, result.latency, result.latency)}
    return validation.validate(estimator, source, measured, predicted=predicted)


def _source(estimator: estimators.Estimator, searched: Searched) -> tables.NetworkSource:
    """Return the space as a source of networks; its reference networks are those of the estimator's table."""
    space = searched.make()
    if hasattr(space, "measure_plan"):
        return tables.measure_plan_of(space, searched.input_shape[0])
    known: tuple[Mapping[str, Any], ...] = ()
    if isinstance(estimator, estimators.TableEstimator) and spaces.is_space(estimator.table.space, space):
        known = tuple(spaces.check_sample(space, network.sample) for network in estimator.table.networks)
    return spaces.SampledSpace(space, searched.input_shape, known)


def _selection(source: tables.NetworkSource, sample: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a sample as the source names its networks."""
    if not isinstance(source, tables.MeasurePlan):
        return sample
    return {layer.name: str(sample[layer.name]) if layer.searched else layer.default for layer in source.layers}


@dataclass(frozen=True)
class Addend:
    """One of the costs that a weighted sum adds up.

    Parameters
    ----------
    metric : str
        What it is.
    weight : float
        By what it is multiplied, in one over the SI unit of the metric.
    predicted : float
        Of the network found, in that unit.
    measured : Validation, optional
        The same, measured.
    """

    metric: str
    weight: float
    predicted: float
    measured: validation.Validation | None = None

    @property
    def network(self) -> validation.NetworkResult | None:
        """What was measured of the network, at the speed that the machine had when the table was made."""
        return None if self.measured is None else self.measured.results[0]

    @property
    def raw(self) -> float | None:
        """What was measured of the network, as it was."""
        return None if self.measured is None else self.measured.results[0].measured / self.measured.speed

    def content(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "metric": self.metric,
            "unit": METRIC_UNITS[self.metric],
            "weight": self.weight,
            "predicted": self.predicted,
            "measured": self.raw,
            "measured_at_speed": None if self.network is None else self.network.measured,
        }

    def told(self, value: float) -> str:
        """Say how much of the sum a value is."""
        return f"{self.metric} {format_metric(value, self.metric)} x {self.weight:g}"


def addends_of(estimator: estimators.Estimator, sample: Mapping[str, Any]) -> tuple[Addend, ...]:
    """Return what a weighted sum adds up of a network; nothing of any other estimator."""
    if not isinstance(estimator, estimators.TableEstimator):
        return ()
    return tuple(Addend(part.metric, weight, part.estimate_sample(sample).value) for weight, part in estimator.addends)


def _is_measured(metric: str) -> bool:
    return metric == "latency" or metric in tables.METERED


def measured_metrics(estimator: estimators.Estimator) -> list[str]:
    """Return the metrics that are to be measured of a network: its own, or those that a weighted sum adds up."""
    if isinstance(estimator, estimators.TableEstimator) and estimator.addends:
        return [part.metric for _, part in estimator.addends if _is_measured(part.metric)]
    return [estimator.metric]


def measure_addends(
    estimator: estimators.TableEstimator,
    searched: Searched,
    result: nas.SearchResult,
    runtime: runtimes.Runtime,
    protocol: measurement.Protocol,
    **how: Unpack[tables.MeasuringOptions],
) -> tuple[validation.Validation, tuple[Addend, ...]]:
    """Measure what a weighted sum adds up, and the sum; what is counted and not measured is taken as predicted.

    All metrics come from one campaign.

    Raises
    ------
    MismatchError
        If nothing that it adds up is measured of networks.
    MeasurementError
        If the network found fails to run.
    """
    found = []
    for addend, (_, part) in zip(addends_of(estimator, result.sample), estimator.addends, strict=True):
        if _is_measured(part.metric):
            known = measure_found(part, searched, replace(result, latency=addend.predicted), runtime, protocol, **how)
            addend = replace(addend, measured=known)
        found.append(addend)
    return _added(estimator, result, found), tuple(found)


def _added(
    estimator: estimators.Estimator, result: nas.SearchResult, addends: Sequence[Addend]
) -> validation.Validation:
    """Add up what was measured, as the validation of one network."""
    known = next((item.measured for item in addends if item.measured is not None), None)
    if known is None:
        names = ", ".join(item.metric for item in addends)
        raise MismatchError(f"Measured are latency, {', '.join(tables.METERED)} of networks; the sum is of {names}.")
    first = known.results[0]

    def total(name: str, place: int | None = None) -> float:
        values = [item.predicted if item.network is None else getattr(item.network, name) for item in addends]
        picked = [value if place is None or not isinstance(value, tuple) else value[place] for value in values]
        return sum(item.weight * value for item, value in zip(addends, picked, strict=True))

    at_speed = total("measured")
    raw = sum(item.weight * (item.predicted if item.raw is None else item.raw) for item in addends)
    network = replace(
        first,
        predicted=estimators.Estimate(result.latency, result.latency, result.latency),
        measured=at_speed,
        low=total("low"),
        high=total("high"),
        halves=(total("halves", 0), total("halves", 1)),
    )
    return replace(known, estimator=repr(estimator), metric=estimator.metric, results=(network,), speed=at_speed / raw)
