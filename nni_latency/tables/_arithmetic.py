"""Arithmetic of tables: scaling, taking a part, and putting parts together. Every result is a new table."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar, get_args

from nni_latency.errors import InvalidValueError, MismatchError, UnknownNameError, listed
from nni_latency.platforms import check_same_platform
from nni_latency.tables._entry import Entry
from nni_latency.tables._lookup_table import LookupTable
from nni_latency.tables._operator_table import OperatorTable
from nni_latency.tables._table_layer import TableLayer
from nni_latency.units import combination_of, format_percent, number_of

AnyTable = TypeVar("AnyTable", bound=LookupTable | OperatorTable)
Conflict = Literal["error", "first", "last", "mean"]

CONFLICTS: tuple[Conflict, ...] = get_args(Conflict)

#: Tables of machines whose reference networks differ by more were built at different speeds.
_SPEED = 0.05


def scale_table(table: AnyTable, factor: float) -> AnyTable:
    """Multiply the cost of every network by a factor.

    Parameters
    ----------
    table : LookupTable or OperatorTable
        The table.
    factor : float
        By how much.

    Raises
    ------
    InvalidValueError
        If the factor is not a positive, finite number.

    Examples
    --------
    >>> table = LookupTable.from_latencies({"a": ["x", "y"]}, {"a": {"x": 0.001, "y": 0.002}})
    >>> scale_table(table, 0.5)["a"]["y"].value
    0.001
    """
    if not 0 < factor < float("inf"):
        raise InvalidValueError(f"The 'factor' of a table must be a positive, finite number. Got {factor!r}.")
    slower = combination_of(table.metric).counted(factor)
    rest: dict[str, Any] = {
        "residency": table.residency and table.residency.scaled(slower),
        "remarks": (*table.remarks, f"Scaled by {factor:g}."),
    }
    if isinstance(table, OperatorTable):
        rest["networks"] = tuple(network.scaled(factor) for network in table.networks)
    elif table.reference is not None and table.metric in ("latency", "throughput"):
        rest["reference"] = table.reference * slower
    return table.with_entries(lambda entry: entry.scaled(factor), **rest)  # type: ignore[return-value]


def fold_calibration(table: AnyTable) -> AnyTable:
    """Return a table of calibration 1 whose networks cost the same: its entries are multiplied by the calibration."""
    return replace(_at_calibration(table, 1.0), calibration=1.0)


def subset_table(
    table: LookupTable, *, layers: Collection[str] | None = None, choices: Collection[str] | None = None
) -> LookupTable:
    """Keep some entries. The space stays the same, so the rest is missing afterwards, and `merge_tables` can add it.

    Parameters
    ----------
    table : LookupTable
        The table.
    layers, choices : collection of str, optional
        What to keep; everything without it. Of fixed layers, named or not, all choices are kept.

    Raises
    ------
    UnknownNameError
        If the table has no such layer or choice.
    InvalidValueError
        If no entry is left.

    Examples
    --------
    >>> table = LookupTable.from_latencies({"a": ["x", "y"]}, {"a": {"x": 0.001, "y": 0.002}})
    >>> subset_table(table, choices=["x"]).missing
    (('a', 'y'),)
    """
    for wanted in layers or ():
        table[wanted]
    known = list(dict.fromkeys(choice for layer in table.layers for choice in layer.choices))
    for wanted in choices or ():
        if wanted not in known:
            raise UnknownNameError.of("choice", wanted, known)
    kept = tuple(_part(layer, layers, choices) for layer in table.layers)
    if not any(layer.entries for layer in kept):
        raise InvalidValueError("No entry of the table is left: the layers and choices named have none in common.")
    return replace(table, layers=kept)


def merge_tables(tables: Sequence[LookupTable], *, conflict: Conflict = "error") -> LookupTable:
    """Put tables of one space and platform together.

    The first gives calibration, residency, protocol and everything else; the others give entries, at what they cost
    there: multiplied by their calibration and divided by that of the first.

    Parameters
    ----------
    tables : sequence of LookupTable
        Two at least.
    conflict : {"error", "first", "last", "mean"}, default="error"
        What to do about a candidate for which tables have different entries.

    Raises
    ------
    MismatchError
        If the tables are of different platforms, spaces, inputs or metrics; the message says what differs.
    InvalidValueError
        If there are fewer than two, or entries disagree and `conflict` is "error".

    Examples
    --------
    >>> table = LookupTable.from_latencies({"a": ["x", "y"]}, {"a": {"x": 0.001, "y": 0.002}})
    >>> merge_tables([subset_table(table, choices=["x"]), subset_table(table, choices=["y"])]).coverage
    1.0
    """
    if conflict not in CONFLICTS:
        raise InvalidValueError(
            f"The 'conflict' of merge_tables must be one of {', '.join(CONFLICTS)}. Got {conflict!r}."
        )
    if len(tables) < 2:
        raise InvalidValueError(f"At least two tables can be merged. Got {len(tables)}.")
    first = tables[0]
    for number, other in enumerate(tables[1:], 2):
        _check_alike(first, other, number)
    levelled = [first, *(_at_calibration(other, first.calibration) for other in tables[1:])]
    clashes: list[str] = []
    layers = tuple(_merged_layer(index, levelled, conflict, clashes) for index in range(len(first.layers)))
    if clashes and conflict == "error":
        raise InvalidValueError(
            f"The tables disagree about {number_of(len(clashes), 'entry', 'entries')}: "
            f"{listed(clashes, separator='; ')}. Say which counts with 'conflict': 'first', 'last' or 'mean'."
        )
    return replace(first, layers=layers, remarks=_merged_remarks(tables, clashes, conflict))


def _part(layer: TableLayer, layers: Collection[str] | None, choices: Collection[str] | None) -> TableLayer:
    if layers is not None and layer.name not in layers and layer.searched:
        return replace(layer, entries={}, failures={})
    if choices is None or not layer.searched:
        return layer
    return replace(
        layer,
        entries={choice: entry for choice, entry in layer.entries.items() if choice in choices},
        failures={choice: reason for choice, reason in layer.failures.items() if choice in choices},
    )


def _check_alike(first: LookupTable, other: LookupTable, number: int) -> None:
    check_same_platform(first.platform, other.platform, f"Merging table {number} into the first")
    differences = first.space.differences(other.space)
    for name in ("metric", "input_shape"):
        mine, theirs = getattr(first, name), getattr(other, name)
        differences += [f"{name}: {mine} against {theirs}"] if mine != theirs else []
    if [_outline(layer) for layer in first.layers] != [_outline(layer) for layer in other.layers]:
        differences.append("they have other layers or candidates")
    if differences:
        raise MismatchError(f"Table {number} cannot be merged into the first: {'; '.join(differences)}.")


def _outline(layer: TableLayer) -> tuple[str, tuple[str, ...], bool, str | None]:
    return layer.name, layer.choices, layer.searched, layer.default


def _at_calibration(table: AnyTable, calibration: float) -> AnyTable:
    """Return a table whose networks cost the same at another calibration."""
    factor = combination_of(table.metric).footing(table.calibration / calibration)
    return table if factor == 1 else table.with_entries(lambda entry: entry.scaled(factor))  # type: ignore[return-value]


def _merged_layer(index: int, tables: Sequence[LookupTable], conflict: Conflict, clashes: list[str]) -> TableLayer:
    layer = tables[0].layers[index]
    entries = {}
    for choice in layer.choices:
        found = [
            (number, table.layers[index].entries[choice])
            for number, table in enumerate(tables, 1)
            if choice in table.layers[index].entries
        ]
        if len({(entry.low, entry.value, entry.high) for _, entry in found}) > 1:
            said = ", ".join(f"table {number} says {entry.value:.6g}" for number, entry in found)
            clashes.append(f"{layer.name}:{choice}: {said}")
        if found:
            entries[choice] = _resolved([entry for _, entry in found], conflict)
    failures: dict[str, str] = {}
    for table in tables:
        failures |= {choice: why for choice, why in table.layers[index].failures.items() if choice not in entries}
    return replace(layer, entries=entries, failures=failures)


def _resolved(entries: Sequence[Entry], conflict: Conflict) -> Entry:
    if conflict != "mean" or len(entries) == 1:
        return entries[-1 if conflict == "last" else 0]
    return Entry.mean(entries)


def _merged_remarks(tables: Sequence[LookupTable], clashes: Sequence[str], conflict: Conflict) -> tuple[str, ...]:
    first = tables[0]
    said = f", {len(clashes)} disagreed: {conflict} counts" if clashes else ""
    remarks = [f"Merged from {number_of(len(tables), 'table')}{said}."]
    if first.platform.device == "unknown":
        remarks.append("None of the merged tables says what device it is of; they were taken for one.")
    if any(table.residency != first.residency for table in tables):
        remarks.append("What small networks save is that of the first of the merged tables.")
    references = [table.reference for table in tables if table.reference is not None]
    if references and max(references) > (1 + _SPEED) * min(references):
        remarks.append(
            f"The machine was {format_percent(max(references) / min(references) - 1)} slower for one of the merged "
            "tables than for another, by the space's reference network; scale one of them first."
        )
    return tuple(dict.fromkeys([*(remark for table in tables for remark in table.remarks), *remarks]))
