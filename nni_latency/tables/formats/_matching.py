# SPDX-License-Identifier: Apache-2.0
"""Matching of the rows of a sheet to layers and candidates, and detection of implausible latencies."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import nni_latency.tables as tables
from nni_latency.errors import FileFormatError, InvalidValueError
from nni_latency.operators import OpSpec
from nni_latency.tables._entries import Entry
from nni_latency.tables._plan import OPERATORS, MeasurePlan, SpaceReference
from nni_latency.tables.formats._sheet import Row, Sheet, own_name
from nni_latency.units import format_count, format_seconds, number_of

#: Destination of a row: layer and choice.
Place = tuple[str, str]

#: Plausible multiply-adds per second: the least is below a single-board computer of 2012, the most above any
#: accelerator on a block of a mobile network at batch size 1.
_SLOWEST, _FASTEST = 2e7, 3e12

#: The same at large batch sizes, about that of the largest accelerators.
_FASTEST_OF_ALL = 1e15

#: Plausible times of one candidate [s] if its work is unknown.
_SHORTEST, _LONGEST = 2e-7, 60.0

#: Multiply-adds below which an operator is dominated by the overhead of the call.
_LEAST_WORK = 1e6

#: Ratio of the rate of one layer to that of the others from which it is reported.
_ODD = 300.0


@dataclass(frozen=True)
class Matching:
    """Assignment of the rows of a sheet to layers and candidates. Immutable.

    Parameters
    ----------
    space : SpaceReference
        Space of the layers.
    input_shape : tuple of int
        Input shape, batch first.
    layers : tuple of TableLayer
        All layers of the space, without entries.
    rows : mapping of (str, str) to Row
        The row of every layer and choice that has one.
    ops : mapping of (str, str) to OpSpec
        Operators, where known.
    unmatched : tuple of str
        Rows without a match.
    """

    space: SpaceReference
    input_shape: tuple[int, ...]
    layers: tuple[tables.TableLayer, ...]
    rows: Mapping[Place, Row]
    ops: Mapping[Place, OpSpec]
    unmatched: tuple[str, ...]


def match_sheet(
    sheet: Sheet, plan: MeasurePlan | None = None, *, choices: Sequence[str] = (), batch_size: int = 1
) -> Matching:
    """Match every row to a layer and candidate.

    Parameters
    ----------
    sheet : Sheet
        Content of the file.
    plan : MeasurePlan, optional
        Plan of the space; by default the layers are those of the file.
    choices : sequence of str, default=()
        Names of the candidates in order, for files without names; by default those of the space.
    batch_size : int, default=1
        Batch size, where there is no plan.

    Raises
    ------
    FileFormatError
        If the file has another number of layers or candidates than the space.
    InvalidValueError
        If two rows of one candidate disagree, or no row belongs to the space.
    """
    layers = tuple(map(tables.TableLayer.of_plan, plan.layers)) if plan is not None else _layers_of_rows(sheet, choices)
    _check_layers(sheet, layers)
    if plan is None:
        ops = _ops_of_rows(sheet, batch_size)
    else:
        ops = {(layer, choice): op for layer, row in plan.ops.items() for choice, op in row.items()}
    places = _places_by_op(ops) if plan is not None and sheet.keyed else {}
    rows: dict[Place, Row] = {}
    unmatched = list(sheet.unread)
    for row in sheet.rows:
        found = _by_op(row, places, plan) if places else _by_name(row, layers, choices)
        if not found:
            unmatched.append(row.name)
        for place in found:
            _check_same(rows.get(place), row, place)
            rows.setdefault(place, row)
    if not rows:
        raise InvalidValueError(
            f"No row of the file belongs to {plan.space if plan else 'a layer'}. The first is {sheet.rows[0].name}."
            + (" Without a space, none, it becomes a table of operators." if sheet.keyed else "")
        )
    space = plan.space if plan is not None else SpaceReference(OPERATORS if sheet.keyed else "unknown")
    shape = plan.input_shape if plan is not None else (batch_size,)
    return Matching(space, shape, layers, rows, ops, tuple(unmatched))


def _layers_of_rows(sheet: Sheet, names: Sequence[str]) -> tuple[tables.TableLayer, ...]:
    """Build layers from the names in the rows, or ``layer0`` and so on where the rows are only numbered."""
    found: dict[str, list[str]] = {f"layer{index}": [] for index in range(sheet.n_layers or 0)}
    for row in sheet.rows:
        listed = found.setdefault(_layer_name(row.layer), [])
        name = _choice_name(row.choice, names)
        if name not in listed:
            listed.append(name)
    if sheet.n_layers is not None and not sheet.keyed:
        # Rows may lack candidates of their layer: use the union over all layers.
        every = list(dict.fromkeys(name for listed in found.values() for name in listed))
        found = dict.fromkeys(found, every)
    return tuple(tables.TableLayer(layer, tuple(listed), {}) for layer, listed in found.items() if listed)


def _layer_name(layer: str | int | None) -> str:
    return f"layer{layer}" if isinstance(layer, int) else str(layer)


def _choice_name(choice: str | int | None, names: Sequence[str]) -> str:
    if not isinstance(choice, int):
        return own_name(str(choice))
    return names[choice] if choice < len(names) else str(choice)


def _check_layers(sheet: Sheet, layers: Sequence[tables.TableLayer]) -> None:
    searched = [layer for layer in layers if layer.searched]
    if sheet.n_layers not in (None, len(searched)):
        raise FileFormatError(
            f"The file has {number_of(sheet.n_layers, 'layer')} of costs, the space searches {len(searched)}. Is it "
            "of another depth or another space?"
        )


def _by_name(row: Row, layers: Sequence[tables.TableLayer], names: Sequence[str]) -> list[Place]:
    """Return the place that a row identifies by name or index."""
    if isinstance(row.layer, int):
        layer: tables.TableLayer | None = [item for item in layers if item.searched][row.layer]
    else:
        layer = next((item for item in layers if item.name == row.layer), None)
    if layer is None or row.choice is None:
        return []
    if isinstance(row.choice, int):
        known = list(names) or list(layer.choices)
        choice = known[row.choice] if row.choice < len(known) else str(row.choice)
    else:
        choice = row.choice if row.choice in layer.choices else own_name(row.choice)
    return [(layer.name, choice)] if choice in layer.choices else []


def _places_by_op(ops: Mapping[Place, OpSpec]) -> dict[OpSpec, list[Place]]:
    places: dict[OpSpec, list[Place]] = {}
    for place, op in ops.items():
        places.setdefault(op, []).append(place)
    return places


def _by_op(row: Row, places: Mapping[OpSpec, list[Place]], plan: MeasurePlan | None) -> list[Place]:
    """Return every place with the operator of the row."""
    if row.op is None or plan is None:
        return []
    return places.get(_for_batch(row.op, plan.batch_size), [])


def _ops_of_rows(sheet: Sheet, batch_size: int) -> dict[Place, OpSpec]:
    return {
        (_layer_name(row.layer), _choice_name(row.choice, ())): _for_batch(row.op, batch_size)
        for row in sheet.rows
        if row.op is not None
    }


def _for_batch(op: OpSpec, batch_size: int) -> OpSpec:
    return replace(op, input_shapes=tuple((batch_size, *shape[1:]) for shape in op.input_shapes))


def _check_same(old: Row | None, new: Row, place: Place) -> None:
    if old is not None and not (old.value == new.value or (old.value.is_nan() and new.value.is_nan())):
        raise InvalidValueError(
            f"Two rows of {place[0]}:{place[1]} disagree: {old.place} says {old.value}, {new.place} says {new.value}."
        )


def implausible(table: tables.LookupTable, *, factor: float = 1.0) -> str | None:
    """Explain why latencies are implausible; None if they are plausible, or of another metric.

    Where multiply-adds are known, latencies are checked against them: fewer than 20 million per second, or more than
    any accelerator reaches, indicate a wrong unit. Microcontrollers are slower.

    Parameters
    ----------
    table : LookupTable
        The table.
    factor : float, default=1.0
        Factor of the latencies to check.
    """
    if table.metric != "latency":
        return None
    rates = _rates(table)
    if rates:
        rate = statistics.median(rates) / factor
        fastest = min(_FASTEST_OF_ALL, _FASTEST * table.batch_size)
        if _SLOWEST <= rate <= fastest:
            return None
        off = _SLOWEST / rate if rate < _SLOWEST else rate / fastest
        return (
            f"they mean {_short(rate)} multiply-adds a second, {_short(off)} times too "
            f"{'few' if rate < _SLOWEST else 'many'} for any device that runs such networks"
        )
    typical = factor * statistics.median(entry.value for _, entry in table.places())
    if _SHORTEST <= typical <= _LONGEST:
        return None
    word = "long" if typical > _LONGEST else "short"
    return f"they mean {format_seconds(typical)} for a typical candidate, too {word} for any device"


def odd_layers(table: tables.LookupTable) -> list[str]:
    """Describe layers whose costs differ from the others by so much that they may be in another unit."""
    fixed = {layer.name for layer in table.layers if not layer.searched}
    known = any(entry.features is not None for entry in table.entries)
    efforts: dict[str, list[float]] = {}
    for (layer, name), entry in table.places():
        # A layer may cost nothing, as one without parameters does.
        if layer not in fixed and entry.value > 0 and (not known or _counts(entry)):
            efforts.setdefault(name if table.operators else layer, []).append(_effort(entry))
    if len(efforts) < 3:
        return []
    typical = {name: statistics.median(costs) for name, costs in efforts.items()}
    middle = statistics.median(typical.values())
    return [
        f"{name} is {max(cost / middle, middle / cost):.0f} times {'above' if cost > middle else 'below'} the others"
        for name, cost in typical.items()
        if abs(math.log(cost / middle)) > math.log(_ODD)
    ]


def _rates(table: tables.LookupTable) -> list[float]:
    """Return the multiply-adds per second of every entry with enough of them."""
    work = ((entry.features.macs, entry.value) for _, entry in table.places() if entry.features is not None)
    return [macs / seconds for macs, seconds in work if macs >= _LEAST_WORK and seconds > 0]


def _counts(entry: Entry) -> bool:
    return entry.features is not None and entry.features.macs >= _LEAST_WORK


def _effort(entry: Entry) -> float:
    return entry.value if entry.features is None else entry.value / entry.features.macs


def _short(value: float) -> str:
    return format_count(float(f"{value:.3g}"))
