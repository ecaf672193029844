"""What ``nni-latency estimate`` estimates: an architecture of a space, or a network of the user's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import nni_latency.estimators as estimators
import nni_latency.operators as operators
import nni_latency.spaces as spaces
import nni_latency.tables as tables
from nni_latency.cli._model import (
    inputs_option,
    load_class,
    make_inputs,
    make_network,
    names_a_class,
    onnx_inputs_of,
    send_by_value,
)
from nni_latency.cli._operators import estimate_operators
from nni_latency.cli._option import JSON_OBJECT, option
from nni_latency.cli._space_options import CLASSES, ChosenSpace, SpaceOptions, choose_space, plan_for
from nni_latency.errors import InvalidValueError
from nni_latency.files import is_file

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class NetworkOptions:
    """The network that is estimated: an architecture of a space, or a class of the user's own."""

    architecture: str | None = option(
        "Architecture in the space: a published name, indices or names separated by commas, or a saved sample."
    )
    kwargs: dict[str, Any] | None = option("Arguments of a class of your own as a JSON object.", type=JSON_OBJECT)
    inputs: tuple[str, ...] = inputs_option()


@dataclass(frozen=True)
class Question:
    """What is to be estimated."""

    model: str | None
    space: SpaceOptions
    network: NetworkOptions
    batch_size: int | None


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
    total : Estimate
        Its cost.
    rows : list of Row
        Its layers or operators in order; none where the estimator knows whole networks alone.
    features : Features or None
        Multiply-adds and others of all operators; None where it is not known what the network takes.
    metric : str
        What is told.
    column : str
        What `Row.what` is: a choice or an operator.
    uncounted : tuple of str
        Kinds of operators of which `features` has what their shapes say alone.
    remarks : tuple of str
        What had to be assumed of the network.
    """

    total: estimators.Estimate
    rows: list[Row]
    features: operators.Features | None
    metric: str
    column: str = "choice"
    uncounted: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def ask(estimator: estimators.Estimator, question: Question) -> Answer:
    """Estimate what the options of the command name.

    Raises
    ------
    InvalidValueError
        If they name nothing, or something that does not exist or fit.
    """
    network, model = question.network, question.model
    if model is not None and names_a_class(model):
        made_of = load_class(model)
        # What every model space of NNI has.
        if not (isinstance(made_of, type) and hasattr(made_of, "frozen_factory")):
            if network.architecture:
                raise InvalidValueError("--architecture is for spaces, and a class of your own is a single network.")
            inputs = make_inputs(network.inputs, question.batch_size or 1)
            return _break_down(estimator, make_network(model, made_of, network.kwargs or {}), inputs)
        space = replace(question.space, space=model, space_args=network.kwargs or question.space.space_args)
        network = replace(network, kwargs=None)
        question, model = replace(question, space=space), None
    if model is not None and model.endswith(".onnx"):
        return _ask_onnx(estimator, model, question)
    for name, value in (("kwargs", network.kwargs), ("input", network.inputs)):
        if value:
            raise InvalidValueError(f"--{name} is for a class of your own, such as net.py:Net, or an ONNX file.")
    if model is not None and network.architecture is not None:
        raise InvalidValueError(
            f"MODEL and --architecture both name an architecture: {model!r} and {network.architecture!r}."
        )
    architecture = model if model is not None else network.architecture
    if architecture is None:
        raise InvalidValueError(
            "Say what to estimate: a class such as net.py:Net with --input 3,224,224, or a space with --architecture."
        )
    if question.space.space == tables.OPERATORS:
        total, layers, counted = estimate_operators(estimator, architecture)
        return Answer(total, _rows(layers), counted.features, estimator.metric, uncounted=counted.uncounted)
    return _ask_space(estimator, architecture, question)


def _ask_onnx(estimator: estimators.Estimator, path: str, question: Question) -> Answer:
    network, batch_size = question.network, question.batch_size
    if network.kwargs or network.architecture:
        raise InvalidValueError("--kwargs and --architecture are not for ONNX files. Omit them.")
    return _break_down(estimator, path, onnx_inputs_of(network.inputs), batch_size)


def _break_down(
    estimator: estimators.Estimator, network: nn.Module | str, inputs: Any, batch_size: int | None = None
) -> Answer:
    found = estimators.break_down(estimator, network, inputs, batch_size=batch_size)
    rows = [Row(item.name, item.op.op_key, item.estimate, item.share) for item in found.operators]
    return Answer(found.total, rows, found.features, estimator.metric, "operator", found.uncounted, found.remarks)


def _ask_space(estimator: estimators.Estimator, architecture: str, question: Question) -> Answer:
    chosen = choose_space(estimator, question.space, question.batch_size, ignore=CLASSES)
    space = chosen.make()
    if not hasattr(space, "measure_plan"):
        sample = sample_of(space, chosen.name, architecture)
        if isinstance(estimator, estimators.TableEstimator):
            return _ask_table(estimator, space, chosen, sample)
        network = spaces.network_of(space, sample)()
        send_by_value(network)
        return _break_down(estimator, network, random_inputs(chosen.example_inputs(space)))
    plan = plan_for(space, chosen.name, chosen.batch_size)
    return _ask_plan(estimator, plan, spaces.parse_architecture(architecture, plan))


def _ask_table(
    estimator: estimators.TableEstimator, space: Any, chosen: ChosenSpace, sample: Mapping[str, Any]
) -> Answer:
    """Look up the choices of a network; its work is counted as well where it is known what the space takes."""
    total, layers = estimator.estimate_sample(sample), estimator.breakdown(sample)
    if chosen.input_shape is None and not spaces.knows_inputs(space):
        return Answer(total, _rows(layers), None, estimator.metric)
    graph = operators.trace(spaces.network_of(space, sample)(), random_inputs(chosen.example_inputs(space)))
    counted = operators.count_graph(graph)
    return Answer(total, _rows(layers), counted.features, estimator.metric, "choice", counted.uncounted, graph.remarks)


def sample_of(space: Any, name: str, text: str) -> Mapping[str, Any]:
    """Read a sample: a file, or JSON itself."""
    if not text.lstrip().startswith("{"):
        if not is_file(text):
            raise InvalidValueError(
                f"An architecture of {name!r} must be the file of a saved sample, or a JSON object of labels and "
                f"choices. Got {text[:60]!r}."
            )
        return spaces.read_sample(space, text)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"The architecture is not valid JSON: {error}. Got {text[:60]!r}.") from error
    return spaces.check_sample(space, content)


def random_inputs(inputs: Any) -> Any:
    """Return random numbers of the same shape, which do not make everything in a network alike."""
    import torch

    if not (isinstance(inputs, torch.Tensor) and inputs.is_floating_point()):
        return inputs
    return torch.randn(inputs.shape, generator=torch.Generator().manual_seed(0))


def _ask_plan(estimator: estimators.Estimator, plan: tables.MeasurePlan, selection: dict[str, str]) -> Answer:
    counted = operators.count_operators(plan.ops_of(selection))
    if isinstance(estimator, estimators.MeasuringEstimator):
        return _measure_plan(estimator, plan, selection)
    layers = (
        estimators.estimate_layers(estimator, plan, selection)
        if isinstance(estimator, estimators.LayerEstimator)
        else []
    )
    total = estimators.estimate_selection(estimator, plan, selection)
    return Answer(total, _rows(layers), counted.features, estimator.metric, uncounted=counted.uncounted)


def _measure_plan(
    estimator: estimators.MeasuringEstimator, plan: tables.MeasurePlan, selection: dict[str, str]
) -> Answer:
    """Estimate the network itself, with the names of the plan's layers for its parts."""
    import torch

    network = plan.network_of(selection)()
    found = _break_down(estimator, network, random_inputs(torch.zeros(plan.input_shape)))
    names = {str(place): layer.name for place, layer in enumerate(plan.layers)}
    rows = []
    for row in found.rows:
        place, dot, rest = row.name.partition(".")
        rows.append(Row(f"{names.get(place, place)}{dot}{rest}", row.what, row.estimate, row.share))
    return Answer(found.total, rows, found.features, found.metric, found.column, found.uncounted, found.remarks)


def _rows(layers: list[estimators.LayerShare]) -> list[Row]:
    return [Row(layer.name, layer.choice, layer.estimate, layer.share) for layer in layers]
