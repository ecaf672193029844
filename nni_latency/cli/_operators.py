"""A network that is told by its operators, for tables that belong to no space."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nni_latency.estimators as estimators
import nni_latency.operators as operators
import nni_latency.tables as tables
import nni_latency.tables.formats as formats
from nni_latency.errors import InvalidValueError, MissingEntryError
from nni_latency.files import is_file, naming, readable

#: Longest file of operators [byte].
_LARGEST = 2**20

#: A name in a list: in quotes, the key of an operator, or anything without commas and blanks.
_NAME = re.compile(
    rf"[\s,]*(?:\"(?P<double>[^\"]*)\"|'(?P<single>[^']*)'|(?P<key>{operators.OP_KEY.pattern})|(?P<plain>[^\s,]+))"
)


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
    entries = _entries(estimator)
    parts: list[tuple[str, str, estimators.Estimate]] = []
    ops: list[operators.OpSpec] = []
    with naming(text) if is_file(text) else contextlib.nullcontext():
        for name in _names(text):
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


def _names(text: str) -> list[str]:
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


def _entries(estimator: estimators.Estimator) -> Mapping[str, tables.Entry | tables.OperatorEntry]:
    """Name the entries of a table: those of operators as the files of other projects do."""
    if isinstance(estimator, estimators.OperatorTableEstimator):
        return {name: entry for entry in estimator.table.entries for name in (*entry.names, entry.op.op_key)}
    if isinstance(estimator, estimators.TableEstimator):
        return {f"{layer}:{choice}": entry for (layer, choice), entry in estimator.table.places()}
    return {}


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
