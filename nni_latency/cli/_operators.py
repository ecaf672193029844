"""A network that is told by its operators, for tables that belong to no space."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nni_latency.errors import InvalidValueError, MissingEntryError
from nni_latency.estimators import (
    Estimate,
    Estimator,
    LayerEstimator,
    LayerShare,
    OperatorTableEstimator,
    TableEstimator,
    layer_shares,
)
from nni_latency.operators import Features, OpSpec, features_of
from nni_latency.tables import Entry, OperatorEntry
from nni_latency.tables.formats import OperatorKey

#: Longest file of operators [byte].
_LARGEST = 2**20


def estimate_operators(estimator: Estimator, text: str) -> tuple[Estimate, list[LayerShare], Features]:
    """Estimate a network by its operators, each named as in the table or by its key.

    Parameters
    ----------
    estimator : Estimator
        A layer-based one.
    text : str
        Keys separated by commas or blanks, or a file of them. One that stands twice counts twice.

    Raises
    ------
    InvalidValueError
        If the estimator costs whole networks alone, or a key is none.
    MissingEntryError
        If the estimator does not know an operator.
    """
    if not isinstance(estimator, LayerEstimator):
        raise InvalidValueError(f"{estimator!r} estimates whole networks, and not networks told by their operators.")
    entries = _entries(estimator)
    parts, work = [], Features()
    for name in _names(text):
        entry = entries.get(name)
        if entry is not None:
            estimate, features = Estimate.of(entry), entry.features
        else:
            op = _operator(name)
            estimate, features = estimator.estimate_op(op), features_of(op)
        parts.append((name, "", estimate))
        work += features or Features()
    return estimator.total(part for _, _, part in parts), layer_shares(estimator, parts), work


def _names(text: str) -> list[str]:
    if _is_file(text):
        try:
            with Path(text).open(encoding="utf-8") as file:
                text = file.read(_LARGEST)
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidValueError(f"The file {text!r} is no list of operator keys: {error}.") from error
    names = text.replace(",", " ").split()
    if not names:
        raise InvalidValueError("The architecture names no operator. Separate their keys by commas or blanks.")
    return names


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:
        # A list of keys is too long for the name of a file.
        return False


def _entries(estimator: Estimator) -> Mapping[str, Entry | OperatorEntry]:
    """Name the entries of a table: those of operators as the files of other projects do."""
    if isinstance(estimator, OperatorTableEstimator):
        return {name: entry for entry in estimator.table.entries for name in entry.names}
    if isinstance(estimator, TableEstimator):
        return {f"{layer}:{choice}": entry for (layer, choice), entry in estimator.table.places()}
    return {}


def _operator(name: str) -> OpSpec:
    try:
        op = OperatorKey.parse(name).operator()
    except InvalidValueError as error:
        raise InvalidValueError(
            f"The table has no entry {name!r}, and it is no key such as "
            "'Conv-input:224x224x3-output:112x112x24' either."
        ) from error

    if op is None:
        raise MissingEntryError(f"The table has no entry {name!r}, and what it computes is not known.")
    return op
