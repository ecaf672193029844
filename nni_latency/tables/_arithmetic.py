# SPDX-License-Identifier: Apache-2.0
"""Tables derived from others: scaled, subsets, merged, weighted sums, throughput."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Literal, get_args

from nni_latency.errors import InvalidValueError, MismatchError, UnknownNameError, listed
from nni_latency.platforms import check_same_platform
from nni_latency.tables._entries import Entry, TableLayer
from nni_latency.tables._lookup_table import LookupTable
from nni_latency.tables._pairs import weighed_pairs
from nni_latency.units import combination_of, format_percent, number_of

Conflict = Literal["error", "first", "last", "mean"]

CONFLICTS: tuple[Conflict, ...] = get_args(Conflict)

#: Relative difference in the time of the reference network above which tables were built at different speeds.
_SPEED = 0.05

#: The metric of a weighted sum.
WEIGHTED = "weighted"


def scale_table(table: LookupTable, factor: float) -> LookupTable:
    """Multiply the cost of every network by a factor.

    Parameters
    ----------
    table : LookupTable
        The table.
    factor : float
        Factor of all costs.

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
    # The time of the reference network measures the machine's speed.
    by = slower if table.metric in ("latency", "throughput") else 1.0
    return table.with_entries(
        lambda entry: entry.scaled(factor),
        residency=table.residency and table.residency.scaled(slower),
        pairs=tuple(pair.scaled(slower) for pair in table.pairs),
        networks=tuple(network.scaled(factor) for network in table.networks),
        reference=table.reference and table.reference * by,
        remarks=(*table.remarks, f"Scaled by {factor:g}."),
    )


def fold_calibration(table: LookupTable) -> LookupTable:
    """Return an equivalent table with calibration 1: its entries are multiplied by the calibration."""
    return replace(_at_calibration(table, 1.0), calibration=1.0)


def subset_table(
    table: LookupTable, *, layers: Collection[str] | None = None, choices: Collection[str] | None = None
) -> LookupTable:
    """Keep some entries. The space is unchanged, so the others become missing, and `merge_tables` can add them.

    Parameters
    ----------
    table : LookupTable
        The table.
    layers, choices : collection of str, optional
        Names to keep; by default all. Fixed layers keep all their choices, named or not.

    Raises
    ------
    UnknownNameError
        If the table has no layer or choice of that name.
    InvalidValueError
        If no entry is left.

    Examples
    --------
    >>> table = LookupTable.from_latencies({"a": ["x", "y"]}, {"a": {"x": 0.001, "y": 0.002}})
    >>> subset_table(table, choices=["x"]).missing
    (('a', 'y'),)
    """
    table.check_layers("Keeping some entries")
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
    """Merge tables of one space and platform.

    Calibration, residency, costs of pairs, protocol and all other metadata are those of the first table; the others
    contribute entries, multiplied by their calibration and divided by that of the first.

    Parameters
    ----------
    tables : sequence of LookupTable
        At least two tables.
    conflict : {"error", "first", "last", "mean"}, default="error"
        How to resolve candidates with different entries.

    Raises
    ------
    MismatchError
        If the tables differ in platform, space, input or metric; the message names the differences.
    InvalidValueError
        If there are fewer than two tables, or entries disagree and `conflict` is "error".

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
    for table in tables:
        table.check_layers("Merging")
    for number, other in enumerate(tables[1:], 2):
        _check_compatible(first, other, number)
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


def _check_compatible(first: LookupTable, other: LookupTable, number: int) -> None:
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


def _at_calibration(table: LookupTable, calibration: float) -> LookupTable:
    """Return an equivalent table with another calibration."""
    ratio = table.calibration / calibration
    factor, pairs = combination_of(table.metric).footing(ratio), tuple(pair.scaled(ratio) for pair in table.pairs)
    if factor == 1:
        return table
    networks = tuple(replace(network, entries=factor * network.entries) for network in table.networks)
    return table.with_entries(lambda entry: entry.scaled(factor), pairs=pairs, networks=networks)


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
            values = ", ".join(f"table {number} says {entry.value:.6g}" for number, entry in found)
            clashes.append(f"{layer.name}:{choice}: {values}")
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
    disagreement = f", {len(clashes)} disagreed: {conflict} counts" if clashes else ""
    remarks = [f"Merged from {number_of(len(tables), 'table')}{disagreement}."]
    if first.platform.device == "unknown":
        remarks.append("None of the merged tables says what device it is of; they were taken for one.")
    if any(table.residency != first.residency for table in tables):
        remarks.append("What small networks save is that of the first of the merged tables.")
    if any(table.pairs != first.pairs for table in tables):
        remarks.append("What neighbouring layers cost together is that of the first of the merged tables.")
    references = [table.reference for table in tables if table.reference is not None]
    if references and max(references) > (1 + _SPEED) * min(references):
        remarks.append(
            f"The machine was {format_percent(max(references) / min(references) - 1)} slower for one of the merged "
            "tables than for another, by the space's reference network; scale one of them first."
        )
    return tuple(dict.fromkeys([*(remark for table in tables for remark in table.remarks), *remarks]))


def weigh_tables(tables: Sequence[LookupTable], weights: Sequence[float]) -> LookupTable:
    """Return the table of a weighted sum of metrics: each entry is the weighted sum of the tables' entries.

    Parameters
    ----------
    tables : sequence of LookupTable
        Tables of one space, input and platform, whose metrics are additive over layers.
    weights : sequence of float
        One per table, in the inverse SI unit of its metric: with 100 for latency and 20 for energy, 10 ms weigh as much
        as 50 mJ.

    Returns
    -------
    LookupTable
        A table of the metric ``weighted``, without residency.

    Raises
    ------
    InvalidValueError
        If there are fewer than two tables, a weight is not positive, or a metric is not additive.
    MismatchError
        If the tables differ in space, input, platform or candidates.

    Examples
    --------
    >>> costs = {"a": {"x": 0.001, "y": 0.002}}
    >>> latency = LookupTable.from_latencies({"a": ["x", "y"]}, costs)
    >>> energy = LookupTable.from_latencies({"a": ["x", "y"]}, {"a": {"x": 0.05, "y": 0.01}}, metric="energy")
    >>> weigh_tables([latency, energy], [100, 2])["a"]["x"].value
    0.2
    """
    if len(tables) < 2 or len(tables) != len(weights) or not all(0 < weight < math.inf for weight in weights):
        raise InvalidValueError(
            "A weighted sum takes two tables at least and a positive weight for each. Got "
            f"{number_of(len(tables), 'table')} and the weights {list(weights)}."
        )
    first = tables[0]
    for table in tables:
        table.check_layers("A weighted sum")
        if not combination_of(table.metric).has_expectation:
            raise InvalidValueError(f"The {table.metric} of layers does not add up, so it has no weighted sum.")
        check_same_platform(first.platform, table.platform, "A weighted sum")
        if (table.space, table.input_shape) != (first.space, first.input_shape):
            raise MismatchError("The tables of a weighted sum must be of one space and input.")
        if [(layer.name, layer.choices) for layer in table.layers] != [
            (layer.name, layer.choices) for layer in first.layers
        ]:
            raise MismatchError("The tables of a weighted sum must have the same layers and candidates.")
    folded = [fold_calibration(table) for table in tables]
    layers = [_weighed([table.layers[place] for table in folded], weights) for place in range(len(first.layers))]
    pairs = weighed_pairs([table.pairs for table in folded], weights)
    remarks = tuple(dict.fromkeys(remark for table in tables for remark in table.remarks))
    return replace(
        folded[0], metric=WEIGHTED, layers=tuple(layers), pairs=pairs, residency=None, network_error=None,
        reference=None, campaign=None, remarks=remarks,
    )  # fmt: skip


def _weighed(layers: Sequence[TableLayer], weights: Sequence[float]) -> TableLayer:
    """Return a layer with the candidates that have an entry in all tables."""
    entries = {}
    for choice, entry in layers[0].entries.items():
        parts = [layer.entries.get(choice) for layer in layers]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            total = Entry.sum(part.scaled(weight) for part, weight in zip(known, weights, strict=True))
            entries[choice] = replace(total, op=entry.op)
    return replace(layers[0], entries=entries)


def as_throughput(table: LookupTable) -> LookupTable:
    """Convert a table of latencies to throughput: the batch size over the latency [1/s].

    Raises
    ------
    InvalidValueError
        If the table has another metric, or is one of operators.
    """
    table.check_layers("Throughput")
    if table.metric != "latency":
        raise InvalidValueError(f"Only latencies become throughput. The table is one of {table.metric}.")
    batch = table.batch_size
    residency = table.residency and table.residency.scaled(1 / batch)
    pairs = tuple(pair.scaled(1 / batch) for pair in table.pairs)
    return table.with_entries(
        lambda entry: entry.inverted(batch), metric="throughput", residency=residency, pairs=pairs
    )
