# SPDX-License-Identifier: Apache-2.0
"""Tables filled with the estimates of an estimator."""

from __future__ import annotations

from typing import Any

from nni_latency.errors import InvalidValueError, MismatchError, listed
from nni_latency.estimators._base import Estimate, LayerEstimator
from nni_latency.operators import OpSpec
from nni_latency.tables import Entry, LookupTable, MeasurePlan, OperatorPlan, TableLayer
from nni_latency.units import format_metric


def estimate_table(estimator: LayerEstimator, plan: MeasurePlan | OperatorPlan) -> LookupTable:
    """Build a table of the estimates of every candidate or operator of a plan.

    Parameters
    ----------
    estimator : LayerEstimator
        Estimator of the operators.
    plan : MeasurePlan or OperatorPlan
        The space: its layers, or networks that cover its operators.

    Returns
    -------
    LookupTable
        Table of the estimator's platform without a protocol, since nothing was measured; a remark names the source.

    Raises
    ------
    InvalidValueError
        If the estimator is not layer-based.
    MissingEntryError
        If an operator is unknown.
    """
    if not isinstance(estimator, LayerEstimator):
        raise InvalidValueError(f"{estimator!r} estimates whole networks and cannot be taken apart by layer.")
    if isinstance(plan, OperatorPlan):
        ops = [item.op for network in plan.networks for item in network.trace.operators]
    else:
        ops = [candidate.op for layer in plan.layers for candidate in layer.candidates.values()]
    found: dict[OpSpec, Estimate] = {op: estimator.estimate_op(op) for op in dict.fromkeys(ops)}
    beside = estimator.beside if isinstance(plan, OperatorPlan) else {}
    entries = {
        op: Entry(cost.value, cost.low, cost.high, op=op, beside=beside.get(op, {})) for op, cost in found.items()
    }
    remarks = [f"Estimated by {type(estimator).__name__} and not measured."]
    uncounted = list(dict.fromkeys(name for cost in found.values() for name in cost.missing))
    if uncounted:
        remarks.append(f"Not known to the estimator as asked: {listed(uncounted)}.")
    pairs = estimator.pairs
    if pairs and not _is_of_space(estimator, plan):
        pairs = ()
        remarks.append("What neighbouring layers cost together is left out: it is known of another space.")
    if estimator.constant:
        constant = format_metric(estimator.constant, estimator.metric)
        remarks.append(f"What a run costs besides its operators, {constant}, is left out.")
    header: dict[str, Any] = {
        "space": plan.space,
        "platform": estimator.platform,
        "input_shape": plan.input_shape,
        "metric": estimator.metric,
        "calibration": estimator.calibration,
        "residency": estimator.residency,
        "network_error": estimator.network_error or None,
        "remarks": tuple(remarks),
    }
    if isinstance(plan, OperatorPlan):
        return LookupTable(operators=tuple(entries.values()), operator_coverage=plan.coverage, **header)
    layers = (
        TableLayer.of_plan(layer, {choice: entries[item.op] for choice, item in layer.candidates.items()})
        for layer in plan.layers
    )
    return LookupTable(layers=tuple(layers), pairs=pairs, **header)


def _is_of_space(estimator: LayerEstimator, plan: MeasurePlan | OperatorPlan) -> bool:
    """Return whether the costs of pairs of an estimator are those of the layers of a plan."""
    if isinstance(plan, OperatorPlan):
        return False
    try:
        estimator.check_plan(plan)
    except MismatchError:
        return False
    return True
