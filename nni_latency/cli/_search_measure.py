"""Measuring what ``nni-latency search`` found, in one run with the reference networks of its space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import nni_latency.spaces as spaces
from nni_latency.cli._searched import Searched
from nni_latency.errors import MeasurementError, MismatchError
from nni_latency.estimators import Estimate, Estimator, OperatorTableEstimator
from nni_latency.measurement import Protocol
from nni_latency.measurement.runtimes import Runtime
from nni_latency.nas import SearchResult
from nni_latency.platforms import Platform
from nni_latency.plugins import load_registry
from nni_latency.tables import MeasurePlan, MeasuringOptions, NetworkSource, measure_networks
from nni_latency.validation import Validation, validate

#: Name of the network among those that are measured.
FOUND = "found"


def runtime_of(platform: Platform, device: str | None) -> Runtime:
    """Return the runtime of an estimator's platform on this machine.

    Raises
    ------
    MismatchError
        If this machine is another platform.
    LatencyError
        If there is no such runtime or device.
    """
    device = device or ("cuda" if platform.facts.get("device_kind") == "cuda" else "cpu")
    registration = load_registry().find("runtime", platform.runtime)
    runtime: Runtime = registration.make(device, threads=platform.threads, precision=platform.precision)
    differences = platform.differences(runtime.platform)
    if differences:
        raise MismatchError(f"The estimator belongs to another platform ({'; '.join(differences)}).")
    return runtime


def measure_found(
    estimator: Estimator,
    searched: Searched,
    result: SearchResult,
    runtime: Runtime,
    budget: float,
    **how: Unpack[MeasuringOptions],
) -> Validation:
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
    budget : float
        Most time spent measuring [s].
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
    protocol = Protocol(threads=runtime.platform.threads, time_budget=budget)
    selections = {FOUND: _selection(source, result.sample)}
    measured = measure_networks(source, selections, runtime, protocol, **how)
    if FOUND in measured.failures:
        raise MeasurementError(f"The network found failed to run: {measured.failures[FOUND]}")
    predicted = {FOUND: Estimate(result.latency, result.latency, result.latency)}
    return validate(estimator, source, measured, predicted=predicted)


def _source(estimator: Estimator, searched: Searched) -> NetworkSource:
    """Return the space as a source of networks; its reference networks are those of the estimator's table."""
    space = searched.make()
    if hasattr(space, "measure_plan"):
        plan: MeasurePlan = space.measure_plan(searched.input_shape[0])
        return plan
    known: tuple[Mapping[str, Any], ...] = ()
    if isinstance(estimator, OperatorTableEstimator) and estimator.table.space.name == searched.name:
        known = tuple(spaces.check_sample(space, network.sample) for network in estimator.table.networks)
    return spaces.SampledSpace(space, searched.input_shape, known)


def _selection(source: NetworkSource, sample: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a sample as the source names its networks."""
    if not isinstance(source, MeasurePlan):
        return sample
    return {layer.name: str(sample[layer.name]) if layer.searched else layer.default for layer in source.layers}
