# SPDX-License-Identifier: Apache-2.0
"""The network, operator or kernel whose latency is asked for on the command line."""

from __future__ import annotations

from typing import Any

import nni_latency.operators as operators
import nni_latency_service.query as query
from nni_latency.cli import NetworkOptions, make_networks, parse_networks
from nni_latency.errors import InvalidValueError, UnknownNameError


def question_of(text: str, options: NetworkOptions) -> query.Question:
    """Make the question that a command line stands for: a network, or the key of an operator, a kernel or a graph.

    Raises
    ------
    LatencyError
        If it names nothing, or something that does not exist or fit.
    """
    if operators.OP_KEY.fullmatch(text):
        return query.Question.of(text)
    try:
        named = parse_networks([text], options)
    except UnknownNameError as error:
        return _of_key(text, error)
    # The network is traced while its time limit runs.
    (question,) = map(_of_network, make_networks(named, options))
    return question


def _of_network(network: Any) -> query.Question:
    if network.is_file:
        return query.Question.of(network.model, network.inputs, network.batch_size)
    return query.Question.of_module(network.model, network.inputs)


def _of_key(text: str, error: UnknownNameError) -> query.Question:
    try:
        return query.Question.of(text)
    except InvalidValueError:
        raise UnknownNameError(
            f"{str(error).removesuffix('.')}; or the key of an operator, a kernel or a graph."
        ) from error
