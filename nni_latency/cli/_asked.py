# SPDX-License-Identifier: Apache-2.0
"""What an estimator says of networks, and of operators without a space, layer by layer where it can."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nni_latency.estimators as estimators
import nni_latency.operators as operators
import nni_latency.spaces as spaces
import nni_latency.tables as tables
import nni_latency.tables.formats as formats
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
from nni_latency.cli._space_options import CLASSES, ChosenSpace, choose_space, plan_for
from nni_latency.errors import InvalidValueError, MissingEntryError
from nni_latency.files import is_file, naming, readable

#: Longest file of operators [byte].
_LARGEST = 2**20

#: A name in a list: in quotes, the key of an operator, or anything without commas and blanks.
_NAME = re.compile(
    rf"[\s,]*(?:\"(?P<double>[^\"]*)\"|'(?P<single>[^']*)'|(?P<key>{operators.OP_KEY.pattern})|(?P<plain>[^\s,]+))"
)


@dataclass(frozen=True)
class Answer:
    """What a network costs.

    Parameters
    ----------
    named : NamedNetwork
        The network.
    total : Estimate
        Its cost.
    rows : list of LayerShare
        Its layers or operators in order; none where the estimator knows whole networks alone.
    features : Features or None
        Multiply-adds and others of all operators; None where it is not known what the network takes.
    column : str
        What the `choice` of a row is: that of a layer, or an operator.
    uncounted : tuple of str
        Kinds of operators of which `features` has what their shapes say alone.
    remarks : tuple of str
        What had to be assumed of the network.
    """

    named: NamedNetwork
    total: estimators.Estimate
    rows: list[estimators.LayerShare]
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
        return Answer(named, total, layers, counted.features, uncounted=counted.uncounted)
    chosen = choose_space(estimator, space_options(named, options), options.batch_size, ignore=CLASSES)
    space = chosen.make()
    if hasattr(space, "measure_plan"):
        plan = plan_for(space, chosen.name, chosen.batch_size)
        check_picture(named, options, plan.input_shape)
        return _ask_plan(estimator, named, plan)
    if isinstance(estimator, estimators.TableEstimator) and estimator.table.layers:
        return _ask_table(estimator, named, space, chosen, options)
    return ask_network(estimator, make_architecture(named, chosen, space, options))


def ask_network(estimator: estimators.Estimator, network: Network) -> Answer:
    """Estimate, or measure, a network that is made."""
    batch_size = network.batch_size if network.is_file else None
    found = estimators.break_down(estimator, network.model, network.inputs, batch_size=batch_size)
    rows = [
        estimators.LayerShare(network.layer_name(item.name), item.op.op_key, item.estimate, item.share)
        for item in found.operators
    ]
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
        return Answer(named, total, layers, None)
    inputs = chosen.example_inputs(space)
    check_picture(named, options, tuple(inputs.shape))
    graph = operators.trace(spaces.network_of(space, sample)(), random_inputs(inputs))
    counted = operators.count_graph(graph)
    return Answer(named, total, layers, counted.features, "choice", counted.uncounted, graph.remarks)


def _ask_plan(estimator: estimators.Estimator, named: NamedNetwork, plan: tables.MeasurePlan) -> Answer:
    selection = spaces.parse_architecture(named.architecture, plan)
    counted = operators.count_operators(plan.ops_of(selection))
    layers = (
        estimators.estimate_layers(estimator, plan, selection)
        if isinstance(estimator, estimators.LayerEstimator)
        else []
    )
    total = estimators.estimate_selection(estimator, plan, selection)
    return Answer(named, total, layers, counted.features, uncounted=counted.uncounted)


def estimate_operators(
    estimator: estimators.Estimator, text: str
) -> tuple[estimators.Estimate, list[estimators.LayerShare], operators.Counted]:
    """Estimate a network by its operators, each named as in the table or by its key.

    Parameters
    ----------
    estimator : Estimator
        A layer-based one.
    text : str
        Keys separated by commas or blanks, in quotes or not, a JSON list of them, or a file of either. One that stands
        twice counts twice.

    Raises
    ------
    InvalidValueError
        If the estimator costs whole networks alone, or a key is none.
    MissingEntryError
        If the estimator does not know an operator.
    """
    if not isinstance(estimator, estimators.LayerEstimator):
        raise InvalidValueError(f"{estimator!r} knows whole networks, not operators. Name an estimator by layers.")
    entries = _entries_by_name(estimator)
    parts: list[tuple[str, str, estimators.Estimate]] = []
    ops: list[operators.OpSpec] = []
    with naming(text) if is_file(text) else contextlib.nullcontext():
        for name in _operator_names(text):
            entry = entries.get(name)
            if entry is not None:
                op, estimate = entry.op, estimators.Estimate.of(entry)
            else:
                op = _operator(name, estimator)
                estimate = estimator.estimate_op(op)
            parts.append((name, "", estimate))
            if op is not None:
                ops.append(op)
    total, counted = estimator.total(part for _, _, part in parts), operators.count_operators(ops)
    return total, estimators.layer_shares(estimator, parts), counted


def _operator_names(text: str) -> list[str]:
    if is_file(text):
        with readable(text, "a list of operator keys", InvalidValueError), Path(text).open(encoding="utf-8") as file:
            text = file.read(_LARGEST)
    names = _json_list(text) if text.lstrip().startswith("[") else _split(text)
    if not names:
        raise InvalidValueError("The architecture names no operator. Separate their keys by commas or blanks.")
    return names


def _split(text: str) -> list[str]:
    return [match[match.lastgroup or 0] for match in _NAME.finditer(text)]


def _json_list(text: str) -> list[str]:
    try:
        names: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"The list of operator keys is not valid JSON: {error}. Got {text[:60]!r}.") from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidValueError(f"A list of operator keys must hold texts. Got {text[:60]!r}.")
    return [str(name) for name in names]


def _entries_by_name(estimator: estimators.Estimator) -> Mapping[str, tables.Entry]:
    """Name the entries of a table: those of operators as the files of other projects do."""
    return estimator.table.entries_by_name() if isinstance(estimator, estimators.TableEstimator) else {}


def _operator(name: str, estimator: estimators.Estimator) -> operators.OpSpec:
    try:
        op = operators.parse_op_keys(name)[0] if "@" in name else formats.OperatorKey.parse(name).operator()
    except InvalidValueError as error:
        raise InvalidValueError(
            f"{estimator!r} has no entry {name!r}, and it is no key such as "
            "'Conv-input:224x224x3-output:112x112x24' or 'relu()@1x16x8x8:fp32' either."
        ) from error
    if op is None:
        raise MissingEntryError(f"{estimator!r} has no entry {name!r}, and what it computes is not known.")
    return op
