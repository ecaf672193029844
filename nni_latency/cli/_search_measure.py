"""Measuring what ``nni-latency search`` found, in one run with the reference networks of its space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import nni_latency.estimators as estimators
import nni_latency.measurement as measurement
import nni_latency.measurement.runtimes as runtimes
import nni_latency.nas as nas
import nni_latency.spaces as spaces
import nni_latency.tables as tables
import nni_latency.validation as validation
from nni_latency.cli._measuring_options import check_known
from nni_latency.cli._searched import Searched
from nni_latency.errors import MeasurementError, MismatchError
from nni_latency.platforms import Platform
from nni_latency.plugins import load_registry

#: Name of the network among those that are measured.
FOUND = "found"


def runtime_of(platform: Platform, device: str | None) -> runtimes.Runtime:
    """Return the runtime of an estimator's platform on this machine.

    Raises
    ------
    MismatchError
        If this machine is another platform, or the estimator says none.
    LatencyError
        If there is no such runtime or device.
    """
    check_known(platform)
    device = device or ("cuda" if platform.facts.get("device_kind") == "cuda" else "cpu")
    registration = load_registry().find("runtime", platform.runtime)
    runtime: runtimes.Runtime = registration.make(device, threads=platform.threads, precision=platform.precision)
    differences = platform.differences(runtime.platform)
    if differences:
        raise MismatchError(f"The estimator belongs to another platform ({'; '.join(differences)}).")
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

    Parameters
    ----------
    estimator : Estimator
        Estimator of the search.
    searched : Searched
        The space.
    result : SearchResult
        What was found.
    runtime : Runtime
        Where to measure.
    protocol : Protocol
        How to measure.
    **how
        As for `nni_latency.tables.measure_networks`.

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
    if FOUND in measured.failures:
        raise MeasurementError(f"The network found failed to run: {measured.failures[FOUND]}")
    predicted = {FOUND: estimators.Estimate(result.latency, result.latency, result.latency)}
    return validation.validate(estimator, source, measured, predicted=predicted)


def _source(estimator: estimators.Estimator, searched: Searched) -> tables.NetworkSource:
    """Return the space as a source of networks; its reference networks are those of the estimator's table."""
    space = searched.make()
    if hasattr(space, "measure_plan"):
        return tables.measure_plan_of(space, searched.input_shape[0])
    known: tuple[Mapping[str, Any], ...] = ()
    if isinstance(estimator, estimators.OperatorTableEstimator) and spaces.is_space(estimator.table.space, space):
        known = tuple(spaces.check_sample(space, network.sample) for network in estimator.table.networks)
    return spaces.SampledSpace(space, searched.input_shape, known)


def _selection(source: tables.NetworkSource, sample: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a sample as the source names its networks."""
    if not isinstance(source, tables.MeasurePlan):
        return sample
    return {layer.name: str(sample[layer.name]) if layer.searched else layer.default for layer in source.layers}
