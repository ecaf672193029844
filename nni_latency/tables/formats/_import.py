# SPDX-License-Identifier: Apache-2.0
"""`import_table` and `export_table`: conversion from and to the file formats of other projects."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from nni_latency.costs import NORMAL
from nni_latency.errors import InvalidValueError, listed
from nni_latency.files import naming, readable, write_atomically
from nni_latency.platforms import Platform
from nni_latency.tables._arithmetic import fold_calibration
from nni_latency.tables._entries import Entry, named_operators, operator_name
from nni_latency.tables._lookup_table import LookupTable
from nni_latency.tables._plan import MeasurePlan
from nni_latency.tables.formats._matching import Matching, Place, implausible, match_sheet, odd_layers
from nni_latency.tables.formats._registry import FORMATS, TableFormat, find_format, read_sheet, recognise_format
from nni_latency.tables.formats._sheet import Row, Sheet
from nni_latency.tables.formats._text import UNITS, power_of, read_bytes, to_si
from nni_latency.units import METRIC_UNITS, number_of

Invalid = Literal["error", "leave-out"]


@dataclass(frozen=True)
class Imported:
    """An imported table, with the rows of the file that it does not contain. Immutable.

    Parameters
    ----------
    table : LookupTable
        The table; operator keys without a space make a table of operators.
    format : str
        Name of the file's format.
    unit : str
        Unit in which the numbers were read.
    unmatched : tuple of str
        Rows that match no layer and candidate of the space.
    left_out : tuple of str
        Rows whose cost is not a positive number, each with its value.
    """

    table: LookupTable
    format: str
    unit: str
    unmatched: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def import_table(
    path: str | Path,
    plan: MeasurePlan | None = None,
    *,
    file_format: str | None = None,
    unit: str | None = None,
    metric: str = "latency",
    platform: Platform | None = None,
    choices: Sequence[str] = (),
    batch_size: int = 1,
    invalid: Invalid = "error",
    check_unit: bool = True,
) -> Imported:
    """Import a table of another project.

    Parameters
    ----------
    path : str or Path
        The file.
    plan : MeasurePlan, optional
        Plan of the space that the file describes. Without it, operator keys make a table of operators, which an
        estimator looks up by operator key; anything else makes a table of an unnamed space.
    file_format : str, optional
        Name in `FORMATS`; recognised from the content by default.
    unit : str, optional
        Unit of the numbers, such as ``ms``. Required where the file does not state it.
    metric : str, default="latency"
        Metric of the numbers.
    platform : Platform, optional
        Platform of the measurements.
    choices : sequence of str, default=()
        Names of the candidates in order, for files without names; by default those of the space.
    batch_size : int, default=1
        Batch size, where there is no plan.
    invalid : {"error", "leave-out"}, default="error"
        How to treat rows whose cost is not a positive number.
    check_unit : bool, default=True
        Raise an error for implausible latencies.

    Returns
    -------
    Imported

    Raises
    ------
    FileFormatError
        If the file is absent, truncated, or in another format. Nothing in it is executed.
    InvalidValueError
        If the unit is unknown, two rows disagree, costs are not positive numbers, or latencies are implausibly short or
        long.
    """
    if invalid not in ("error", "leave-out"):
        raise InvalidValueError(f"The 'invalid' of import_table must be 'error' or 'leave-out'. Got {invalid!r}.")
    source = Path(path)
    with naming(source), readable(source, "a table of another project"):
        data = read_bytes(source)
        kind = find_format(file_format) if file_format is not None else recognise_format(data, str(source))
        sheet = read_sheet(data, kind, str(source))
        unit = _unit(sheet, kind, unit, metric)
        matching = match_sheet(sheet, plan, choices=choices, batch_size=batch_size)
        good, bad = _costs(matching, power_of(unit, metric), zero=METRIC_UNITS[metric] == "byte")
        _check_invalid(bad, good, invalid, source)
        header: dict[str, Any] = {
            "space": matching.space,
            "platform": platform or Platform("unknown", "unknown"),
            "input_shape": matching.input_shape,
            "metric": metric,
            "remarks": (f"Imported from {source.name}, format {kind.name}, unit {unit}.",),
        }
        table = _operators(good, header) if plan is None and sheet.keyed else _lookup_table(matching, good, header)
        if check_unit:
            _check_unit(table, source, unit)
    return Imported(table, kind.name, unit, matching.unmatched, tuple(bad))


def export_table(table: LookupTable, file_format: str, *, unit: str, out: str | Path | None = None) -> tuple[str, ...]:
    """Export a table to the format of another project.

    These formats have no calibration, so each number is multiplied by it; other information that they cannot hold is
    listed in the result.

    Parameters
    ----------
    table : LookupTable
        The table.
    file_format : str
        Name in `FORMATS`.
    unit : str
        Unit of the file.
    out : str or Path, optional
        The file; without it nothing is written, and only the remarks are returned.

    Returns
    -------
    tuple of str
        Information of the table that the file does not hold.

    Raises
    ------
    UnknownNameError
        If the format does not exist.
    InvalidValueError
        If the unit does not fit the metric, or the format can hold none of the entries.
    OutputError
        If the file cannot be written.
    """
    kind = find_format(file_format)
    power_of(unit, table.metric)
    if table.operators and not kind.takes_operators:
        able = ", ".join(item.name for item in FORMATS.values() if item.takes_operators)
        raise InvalidValueError(
            f"The format {kind.name!r} holds layers of candidates, and the table is one of operators. Use {able}."
        )
    if not any(table.places()):
        raise InvalidValueError("The table has no entries: there is nothing to export.")
    written = kind.write(fold_calibration(table), unit)
    if out is not None:
        write_atomically(Path(out), written.content)
    return (*written.remarks, *_export_remarks(table))


def _export_remarks(table: LookupTable) -> list[str]:
    remarks = []
    if table.calibration != 1:
        remarks.append(f"Every number was multiplied by the calibration, {table.calibration:.4g}.")
    if table.residency is not None:
        remarks.append("What small networks save is left out: sums of these numbers are too large for small networks.")
    if table.pairs:
        remarks.append(
            "What neighbouring layers cost together is left out: sums of these numbers are as for mean neighbours."
        )
    if any(entry.beside for entry in table.operators):
        remarks.append(
            "What operators cost beside their neighbours is left out: these numbers are the means over all places."
        )
    if table.batch_size != 1:
        remarks.append(f"The file does not say that the costs are those of a batch of {table.batch_size}.")
    return remarks


def _unit(sheet: Sheet, kind: TableFormat, unit: str | None, metric: str) -> str:
    if unit is not None:
        power_of(unit, metric)
        if sheet.unit not in (None, unit):
            raise InvalidValueError(f"The file says that its unit is {sheet.unit!r}, asked is {unit!r}.")
        return unit
    if sheet.unit is None:
        raise InvalidValueError(
            f"The format {kind.name!r} does not say its unit. Give it as the 'unit'; "
            f"published files of the format are in {kind.usual_unit}."
        )
    power_of(sheet.unit, metric)
    return sheet.unit


def _costs(matching: Matching, power: int, *, zero: bool) -> tuple[dict[Place, Entry], list[str]]:
    """Convert rows to entries; also describe the rows with invalid costs."""
    good: dict[Place, Entry] = {}
    bad = []
    for place, row in matching.rows.items():
        value = to_si(row.value, power)
        if not (math.isfinite(value) and (value > 0 or (zero and value == 0))):
            bad.append(f"{place[0]}:{place[1]} = {row.value} ({row.place})")
            continue
        low, high = _interval(row, value, power)
        try:
            good[place] = Entry(value, low, high, row.n_samples, row.n_dropped, matching.ops.get(place))
        except InvalidValueError as error:
            raise InvalidValueError(f"{row.place}: {error}") from error
    return good, bad


def _interval(row: Row, value: float, power: int) -> tuple[float, float]:
    if row.deviation is not None and row.n_samples:
        half = NORMAL * to_si(row.deviation, power) / math.sqrt(row.n_samples)
        return max(0.0, value - half), value + half
    return tuple(value if end is None else to_si(end, power) for end in (row.low, row.high))  # type: ignore[return-value]


def _check_invalid(bad: list[str], good: dict[Place, Entry], invalid: Invalid, source: Path) -> None:
    if bad and (invalid == "error" or not good):
        raise InvalidValueError(
            f"The costs of {str(source)!r} must be positive numbers. Got {number_of(len(bad), 'other')}: "
            f"{listed(bad)}. Correct them, or leave them out: invalid='leave-out'."
        )


def _check_unit(table: LookupTable, source: Path, unit: str) -> None:
    reason = implausible(table)
    if reason is not None:
        known, power = UNITS[METRIC_UNITS[table.metric]], power_of(unit, table.metric)
        likely = [other for other in known if implausible(table, factor=10.0 ** (known[other] - power)) is None]
        # Tables are not written in nanoseconds where a larger unit suffices.
        likely = [other for other in likely if other != "ns"] or likely
        units = [_compare_units(other, known[other] - power) for other in likely]
        remedy = f"They would be plausible in {' or in '.join(units)}" if units else "No unit makes them plausible"
        raise InvalidValueError(
            f"The latencies of {str(source)!r} cannot be in {unit}: {reason}. {remedy}; "
            "if they are correct, switch off 'check_unit'."
        )
    odd = odd_layers(table)
    if odd:
        raise InvalidValueError(
            f"Parts of {str(source)!r} may be in another unit than {unit}: {listed(odd)}. "
            "Fix them; if they are correct, switch off 'check_unit'."
        )


def _compare_units(unit: str, power: int) -> str:
    """Return a unit with its ratio to the unit that was given."""
    return f"{unit}, {10 ** abs(power):,} times {'more' if power > 0 else 'less'}"


def _operators(entries: dict[Place, Entry], header: dict[str, Any]) -> LookupTable:
    rows = ((operator_name(*place), entry) for place, entry in entries.items())
    return LookupTable(operators=named_operators(rows), **header)


def _lookup_table(matching: Matching, entries: dict[Place, Entry], header: dict[str, Any]) -> LookupTable:
    layers = tuple(
        replace(
            layer,
            entries={
                choice: entries[layer.name, choice] for choice in layer.choices if (layer.name, choice) in entries
            },
        )
        for layer in matching.layers
    )
    return LookupTable(layers=layers, **header)
