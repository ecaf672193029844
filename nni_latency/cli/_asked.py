"""What ``nni-latency estimate`` is asked about: an architecture of a space, or a network of the user's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from click.core import ParameterSource
from torch import nn

import nni_latency.spaces as spaces
from nni_latency.cli._model import load_class, make_inputs, make_network, names_a_class, send_by_value
from nni_latency.cli._operators import estimate_operators
from nni_latency.cli._options import arguments_for, check_batch_size, given_arguments, make_space, plan_for
from nni_latency.errors import InvalidValueError, MismatchError
from nni_latency.estimators import (
    Estimate,
    Estimator,
    LayerEstimator,
    LayerShare,
    MeasuringEstimator,
    OperatorTableEstimator,
    break_down,
    estimate_layers,
    estimate_selection,
)
from nni_latency.operators import Features, features_of
from nni_latency.tables import OPERATORS, MeasurePlan


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
    estimate: Estimate
    share: float


@dataclass(frozen=True)
class Answer:
    """What a network costs.

    Parameters
    ----------
    total : Estimate
        Its cost.
    rows : list of Row
        Its layers or operators in order; none where the estimator knows whole networks alone.
    features : Features
        Multiply-adds and others of all operators that can be counted.
    metric : str
        What is told.
    column : str
        What `Row.what` is: a choice or an operator.
    uncounted : tuple of str
        Kinds of operators that `features` leaves out.
    """

    total: Estimate
    rows: list[Row]
    features: Features
    metric: str
    column: str = "choice"
    uncounted: tuple[str, ...] = ()


def ask(estimator: Estimator, model: str | None, options: dict[str, Any]) -> Answer:
    """Estimate what the options of the command name.

    Raises
    ------
    InvalidValueError
        If they name nothing, or something that is not there or does not fit.
    """
    if model is not None and names_a_class(model):
        made_of = load_class(model)
        # What every model space of NNI has.
        if not (isinstance(made_of, type) and hasattr(made_of, "frozen_factory")):
            _refuse(options, "architecture", "It is for spaces, and a class of your own is one network")
            return _ask_network(estimator, make_network(model, made_of, options["kwargs"] or {}), options)
        options = {**options, "space": model, "space_args": options["kwargs"] or options.get("space_args")}
        model = None
    for name in ("kwargs", "inputs"):
        _refuse(options, name, "It is for a class of your own, such as net.py:Net")
    if model is not None and options["architecture"] is not None:
        raise InvalidValueError(f"MODEL and --architecture both name one: {model!r} and {options['architecture']!r}.")
    architecture = model if model is not None else options["architecture"]
    if architecture is None:
        raise InvalidValueError(
            "Say what to estimate: a class such as net.py:Net with --input 3,224,224, or a space with --architecture."
        )
    if options["space"] == OPERATORS:
        total, layers, features = estimate_operators(estimator, architecture)
        return Answer(total, _rows(layers), features, estimator.metric)
    return _ask_space(estimator, architecture, options)


def _refuse(options: dict[str, Any], name: str, why: str) -> None:
    if options[name]:
        option = {"inputs": "input"}.get(name, name)
        raise InvalidValueError(f"--{option} cannot be given here. {why}.")


def _ask_network(estimator: Estimator, network: nn.Module, options: dict[str, Any]) -> Answer:
    inputs = make_inputs(options["inputs"], options["batch_size"] or 1)
    return _break_down(estimator, network, inputs)


def _break_down(estimator: Estimator, network: nn.Module, inputs: Any) -> Answer:
    found = break_down(estimator, network, inputs)
    rows = [Row(item.name, item.op.op_key, item.estimate, item.share) for item in found.operators]
    return Answer(found.total, rows, found.features, estimator.metric, "operator", found.uncounted)


def _ask_space(estimator: Estimator, architecture: str, options: dict[str, Any]) -> Answer:
    options = _with_the_table_s_space(estimator, options)
    batch_size = check_batch_size(estimator, options["batch_size"])
    arguments = arguments_for(estimator, options["space"], options, ignore=("num_classes",))
    space = make_space(options["space"], arguments)
    if not hasattr(space, "measure_plan"):
        sample = _sample_of(space, options["space"], architecture)
        network = spaces.network_of(space, sample)()
        send_by_value(network)
        inputs = spaces.example_inputs_of(space, batch_size, options["input_size"])
        return _break_down(estimator, network, _random(inputs))
    plan = plan_for(space, options["space"], batch_size)
    return _ask_plan(estimator, plan, spaces.parse_architecture(architecture, plan))


def _with_the_table_s_space(estimator: Estimator, options: dict[str, Any]) -> dict[str, Any]:
    """Take space and input from a table of operators where the command does not say them."""
    if not isinstance(estimator, OperatorTableEstimator) or estimator.table.space.name == OPERATORS:
        return options
    table = estimator.table
    context = click.get_current_context()
    if context.get_parameter_source("space") is ParameterSource.DEFAULT:
        options = {**options, "space": table.space.name}
    if options["space"] != table.space.name:
        return options
    given = given_arguments(options)
    strange = [name for name, value in given.items() if table.space.arguments.get(name) != value]
    if strange:
        raise MismatchError(f"The table belongs to another space than asked, by {', '.join(strange)}: {table.space}.")
    size = options["input_size"] or table.input_shape[-1]
    return {**options, "space_args": dict(table.space.arguments), "input_size": size}


def _sample_of(space: Any, name: str, text: str) -> Mapping[str, Any]:
    """Read a sample: a file, or JSON itself."""
    if not text.lstrip().startswith("{"):
        if len(text) > 1000 or not Path(text).is_file():
            raise InvalidValueError(
                f"An architecture of {name!r} must be the file of a saved sample, or a JSON object of labels and "
                f"choices. Got {text[:60]!r}."
            )
        return spaces.read_sample(space, text)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"The architecture is not whole JSON: {error}. Got {text[:60]!r}.") from error
    return spaces.check_sample(space, content)


def _random(inputs: Any) -> Any:
    """Return random numbers of the same shape, which do not make everything in a network alike."""
    if not (isinstance(inputs, torch.Tensor) and inputs.is_floating_point()):
        return inputs
    return torch.randn(inputs.shape, generator=torch.Generator().manual_seed(0))


def _ask_plan(estimator: Estimator, plan: MeasurePlan, selection: dict[str, str]) -> Answer:
    features = sum(map(features_of, plan.ops_of(selection)), Features())
    if isinstance(estimator, MeasuringEstimator):
        return _measure_plan(estimator, plan, selection)
    layers = estimate_layers(estimator, plan, selection) if isinstance(estimator, LayerEstimator) else []
    total = estimate_selection(estimator, plan, selection)
    return Answer(total, _rows(layers), features, estimator.metric)


def _measure_plan(estimator: MeasuringEstimator, plan: MeasurePlan, selection: dict[str, str]) -> Answer:
    """Estimate the network itself, with the names of the plan's layers for its parts."""
    network = plan.network_of(selection)()
    found = _break_down(estimator, network, _random(torch.zeros(plan.input_shape)))
    names = {str(place): layer.name for place, layer in enumerate(plan.layers)}
    rows = []
    for row in found.rows:
        place, dot, rest = row.name.partition(".")
        rows.append(Row(f"{names.get(place, place)}{dot}{rest}", row.what, row.estimate, row.share))
    return Answer(found.total, rows, found.features, found.metric, found.column, found.uncounted)


def _rows(layers: list[LayerShare]) -> list[Row]:
    return [Row(layer.name, layer.choice, layer.estimate, layer.share) for layer in layers]
