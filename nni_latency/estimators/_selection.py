"""Any estimator, asked about a network of a plan by its choices."""

from __future__ import annotations

from collections.abc import Mapping

from nni_latency.errors import InvalidValueError
from nni_latency.estimators._base import Estimate, Estimator, LayerEstimator
from nni_latency.estimators._layer_share import LayerShare, layer_shares
from nni_latency.estimators._measuring import MeasuringEstimator
from nni_latency.tables import MeasurePlan


def estimate_selection(estimator: Estimator, plan: MeasurePlan, selection: Mapping[str, str]) -> Estimate:
    """Estimate a network of a plan, with any estimator.

    Parameters
    ----------
    estimator : Estimator
        A layer-based one is asked for every part; one that is network-based, or measures on demand, gets the whole
        network, made on the spot.
    plan : MeasurePlan
        The space.
    selection : mapping of str to str
        ``{layer: choice}`` with every layer.

    Raises
    ------
    MissingEntryError
        If the estimator knows too little to answer.
    MismatchError
        If it is a table of another space, input size or batch size.
    """
    if isinstance(estimator, LayerEstimator) and not isinstance(estimator, MeasuringEstimator):
        return estimator.total(part for _, _, part in _parts(estimator, plan, selection))
    import torch

    return estimator.estimate(plan.network_of(selection)(), torch.zeros(plan.input_shape))


def estimate_layers(estimator: Estimator, plan: MeasurePlan, selection: Mapping[str, str]) -> list[LayerShare]:
    """List what every layer of a network of a plan costs, so that they add up to the whole.

    Raises
    ------
    InvalidValueError
        If the estimator cannot be taken apart by layer.
    """
    if not isinstance(estimator, LayerEstimator):
        raise InvalidValueError(f"{estimator!r} estimates whole networks and cannot be taken apart by layer.")
    return layer_shares(estimator, _parts(estimator, plan, selection))


def _parts(
    estimator: LayerEstimator, plan: MeasurePlan, selection: Mapping[str, str]
) -> list[tuple[str, str, Estimate]]:
    estimator.check_plan(plan)
    parts = []
    for layer in plan.layers:
        choice = selection[layer.name]
        op = layer.candidates[choice].op
        parts.append((layer.name, choice, estimator.estimate_choice(layer.name, choice, op)))
    return parts
