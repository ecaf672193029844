"""What an estimator says of a network, layer by layer where it can."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import nni_latency.estimators as estimators
import nni_latency.operators as operators
import nni_latency.spaces as spaces
import nni_latency.tables as tables
from nni_latency.cli._network import (
    NamedNetwork,
    Network,
    NetworkOptions,
    check_picture,
    make,
    make_architecture,
    random_inputs,
    sample_of,
    space_options,
)
from nni_latency.cli._operators import estimate_operators
from nni_latency.cli._space_options import CLASSES, ChosenSpace, choose_space, plan_for


@dataclass(frozen=True)
class Row:
    """What one layer or operator costs.

    Parameters
    ----------
    name : str
        Where it stands.
    what : str
        The choice of a layer, or what an operator computes.
    estimate : Estimate
        Its cost.
    share : float
        Of the network's.
    """

    name: str
    what: str
    estimate: estimators.Estimate
    share: float


@dataclass(frozen=True)
class Answer:
    """What a network costs.

    Parameters
    ----------
    named : NamedNetwork
        The network.
    total : Estimate
        Its cost.
    rows : list of Row
        Its layers or operators in order; none where the estimator knows whole networks alone.
    features : Features or None
        Multiply-adds and others of all operators; None where it is not known what the network takes.
    column : str
        What `Row.what` is: a choice or an operator.
    uncounted : tuple of str
        Kinds of operators of which `features` has what their shapes say alone.
    remarks : tuple of str
        What had to be assumed of the network.
    """

    named: NamedNetwork
    total: estimators.Estimate
    rows: list[Row]
    features: operators.Features | None
    column: str = "choice"
    uncounted: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def ask(estimator: estimators.Estimator, named: NamedNetwork, options: NetworkOptions) -> Answer:
    """Estimate a network that a command line names.

    Raises
    ------
    LatencyError
        If it cannot be made, does not fit the estimator's table, or is not known to the estimator.
    """
    if named.kind != "architecture":
        return ask_network(estimator, make(named, options))
    if named.space == tables.OPERATORS:
        total, layers, counted = estimate_operators(estimator, named.architecture)
        return Answer(named, total, _rows(layers), counted.features, uncounted=counted.uncounted)
    chosen = choose_space(estimator, space_options(named, options), options.batch_size, ignore=CLASSES)
    space = chosen.make()
    if hasattr(space, "measure_plan"):
        plan = plan_for(space, chosen.name, chosen.batch_size)
        check_picture(named, options, plan.input_shape)
        return _ask_plan(estimator, named, plan)
    if isinstance(estimator, estimators.TableEstimator):
        return _ask_table(estimator, named, space, chosen, options)
    return ask_network(estimator, make_architecture(named, chosen, space, options))


def ask_network(estimator: estimators.Estimator, network: Network) -> Answer:
    """Estimate, or measure, a network that is made."""
    batch_size = network.batch_size if network.is_file else None
    found = estimators.break_down(estimator, network.model, network.inputs, batch_size=batch_size)
    rows = [Row(network.layer_name(item.name), item.op.op_key, item.estimate, item.share) for item in found.operators]
    return Answer(network.named, found.total, rows, found.features, "operator", found.uncounted, found.remarks)


def _ask_table(
    estimator: estimators.TableEstimator,
    named: NamedNetwork,
    space: Any,
    chosen: ChosenSpace,
    options: NetworkOptions,
) -> Answer:
    """Look up the choices of a network; its work is counted as well where it is known what the space takes."""
    sample: Mapping[str, Any] = sample_of(space, chosen.name, named.architecture)
    total, layers = estimator.estimate_sample(sample), estimator.breakdown(sample)
    if chosen.input_shape is None and not spaces.knows_inputs(space):
        return Answer(named, total, _rows(layers), None)
    inputs = chosen.example_inputs(space)
    check_picture(named, options, tuple(inputs.shape))
    graph = operators.trace(spaces.network_of(space, sample)(), random_inputs(inputs))
    counted = operators.count_graph(graph)
    return Answer(named, total, _rows(layers), counted.features, "choice", counted.uncounted, graph.remarks)


def _ask_plan(estimator: estimators.Estimator, named: NamedNetwork, plan: tables.MeasurePlan) -> Answer:
    selection = spaces.parse_architecture(named.architecture, plan)
    counted = operators.count_operators(plan.ops_of(selection))
    layers = (
        estimators.estimate_layers(estimator, plan, selection)
        if isinstance(estimator, estimators.LayerEstimator)
        else []
    )
    total = estimators.estimate_selection(estimator, plan, selection)
    return Answer(named, total, _rows(layers), counted.features, uncounted=counted.uncounted)


def _rows(layers: list[estimators.LayerShare]) -> list[Row]:
    return [Row(layer.name, layer.choice, layer.estimate, layer.share) for layer in layers]
