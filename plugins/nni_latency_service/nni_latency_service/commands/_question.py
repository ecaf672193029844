"""The network, operator or kernel whose latency is asked for on the command line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import nni_latency.spaces as spaces
import nni_latency.tables as tables
import nni_latency_service.query as query
from nni_latency.cli._asked import NetworkOptions, random_inputs, sample_of
from nni_latency.cli._model import load_class, make_inputs, make_network, names_a_class, onnx_inputs_of, send_by_value
from nni_latency.cli._space_options import SpaceOptions
from nni_latency.errors import InvalidValueError


def question_of(
    model: str | None, space: SpaceOptions, network: NetworkOptions, batch_size: int | None
) -> query.Question:
    """Make the question that the options of a command stand for.

    Raises
    ------
    InvalidValueError
        If they name nothing, or something that does not exist or fit.
    """
    if model is not None and names_a_class(model):
        made_of = load_class(model)
        if not (isinstance(made_of, type) and hasattr(made_of, "frozen_factory")):
            if network.architecture:
                raise InvalidValueError("--architecture is for spaces, and a class of your own is a single network.")
            inputs = make_inputs(network.inputs, batch_size or 1)
            return query.Question.of_module(make_network(model, made_of, network.kwargs or {}), inputs)
        space, model = replace(space, space=model, space_args=network.kwargs or space.space_args), None
        network = replace(network, kwargs=None)
    if space.space is not None or network.architecture is not None:
        return _of_space(model, space, network, batch_size)
    if model is None:
        raise InvalidValueError(
            "Say what to ask about: an ONNX file, a class such as net.py:Net with --input 3,224,224, the key of an "
            "operator or a kernel, or a space with --architecture."
        )
    if network.kwargs:
        raise InvalidValueError("--kwargs is for a class of your own, such as net.py:Net.")
    return query.Question.of(model, onnx_inputs_of(network.inputs), batch_size)


def _of_space(
    model: str | None, asked: SpaceOptions, network: NetworkOptions, batch_size: int | None
) -> query.Question:
    architecture = model if network.architecture is None else network.architecture
    if architecture is None or (model is not None and network.architecture is not None):
        raise InvalidValueError("Name one architecture of the space, with --architecture.")
    space = asked.make()
    if not hasattr(space, "measure_plan"):
        sample = sample_of(space, asked.name, architecture)
        made = spaces.network_of(space, sample)()
        send_by_value(made)
        inputs = spaces.example_inputs_of(space, batch_size or 1, asked.input_size)
        return query.Question.of_module(made, random_inputs(inputs))
    plan: Any = tables.measure_plan_of(space, batch_size or 1)
    made = plan.network_of(spaces.parse_architecture(architecture, plan))()
    import torch

    return query.Question.of_module(made, random_inputs(torch.zeros(plan.input_shape)))
