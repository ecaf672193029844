"""Tables filled with the estimates of an estimator."""

from __future__ import annotations

from typing import Any

from nni_latency.errors import InvalidValueError, listed
from nni_latency.estimators._base import Estimate, LayerEstimator
from nni_latency.operators import OpSpec
from nni_latency.tables import (
    Entry,
    LookupTable,
    MeasurePlan,
    OperatorEntry,
    OperatorPlan,
    OperatorTable,
    TableLayer,
)


def estimate_table(estimator: LayerEstimator, plan: MeasurePlan) -> LookupTable:
    """Estimate every candidate of a plan, and put the estimates into a table of the estimator's platform.

    Parameters
    ----------
    estimator : LayerEstimator
        What says what a candidate costs.
    plan : MeasurePlan
        The space.

    Returns
    -------
    LookupTable
        Without a protocol, since nothing was measured; a remark says where the numbers are from.

    Raises
    ------
    InvalidValueError
        If the estimator cannot be taken apart by layer.
    MissingEntryError
        If it does not know an operator.
    """
    _check(estimator)
    layers: list[TableLayer] = []
    uncounted: list[str] = []
    for layer in plan.layers:
        entries = {}
        for choice, candidate in layer.candidates.items():
            found = estimator.estimate_op(candidate.op)
            uncounted += found.missing
            entries[choice] = Entry(found.value, found.low, found.high, op=candidate.op)
        layers.append(TableLayer(layer.name, tuple(layer.candidates), entries, layer.searched, layer.default))
    return LookupTable(layers=tuple(layers), **_header(estimator, plan, uncounted))


def estimate_operator_table(estimator: LayerEstimator, plan: OperatorPlan) -> OperatorTable:
    """Estimate every operator of a plan, and put the estimates into a table of the estimator's platform.

    Parameters
    ----------
    estimator : LayerEstimator
        What says what an operator costs.
    plan : OperatorPlan
        Networks of the space that cover its operators.

    Raises
    ------
    InvalidValueError
        If the estimator cannot be taken apart by operator.
    MissingEntryError
        If it does not know an operator.
    """
    _check(estimator)
    ops = dict.fromkeys(item.op for network in plan.networks for item in network.trace.operators)
    found: dict[OpSpec, Estimate] = {op: estimator.estimate_op(op) for op in ops}
    entries = tuple(OperatorEntry(cost.value, cost.low, cost.high, op) for op, cost in found.items())
    uncounted = [name for cost in found.values() for name in cost.missing]
    return OperatorTable(entries=entries, coverage=plan.coverage, **_header(estimator, plan, uncounted))


def _header(estimator: LayerEstimator, plan: MeasurePlan | OperatorPlan, uncounted: list[str]) -> dict[str, Any]:
    return {
        "space": plan.space,
        "platform": estimator.platform,
        "input_shape": plan.input_shape,
        "metric": estimator.metric,
        "calibration": estimator.calibration,
        "residency": estimator.residency,
        "network_error": estimator.network_error or None,
        "remarks": _remarks(estimator, uncounted),
    }


def _check(estimator: object) -> None:
    if not isinstance(estimator, LayerEstimator):
        raise InvalidValueError(f"{estimator!r} estimates whole networks and cannot be taken apart by layer.")


def _remarks(estimator: LayerEstimator, uncounted: list[str]) -> tuple[str, ...]:
    names = list(dict.fromkeys(uncounted))
    remarks = [f"Estimated by {type(estimator).__name__} and not measured."]
    if names:
        remarks.append(f"Not known to the estimator as asked: {listed(names)}.")
    return tuple(remarks)
