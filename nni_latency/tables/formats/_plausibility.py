"""Whether latencies can be true, so that a wrong unit is found before a search believes it."""

from __future__ import annotations

import math
import statistics

import nni_latency.tables as tables
from nni_latency.tables._entry import Entry
from nni_latency.tables._operator_entries import OperatorEntry
from nni_latency.units import format_count, format_seconds

#: Multiply-adds a second: less than a single-board computer of 2012, and more than any accelerator reaches with a block
#: of a mobile network and one picture at a time.
_SLOWEST, _FASTEST = 2e7, 3e12

#: With large batches the largest accelerators reach about this.
_FASTEST_OF_ALL = 1e15

#: Time of one candidate [s] where nothing is known about its work.
_SHORTEST, _LONGEST = 2e-7, 60.0

#: Smaller operators tell about the call more than about the device.
_LEAST_WORK = 1e6

#: How far the rate of one layer may lie from that of the others.
_ODD = 300.0


def implausible(table: tables.LookupTable | tables.OperatorTable, *, factor: float = 1.0) -> str | None:
    """Say what latencies mean that cannot be true; None if they can, or are of another metric.

    They are held to their multiply-adds where those are known: a device that computes fewer than 20 million a second,
    or more than any accelerator, is a unit that was mistaken. Microcontrollers are slower.

    Parameters
    ----------
    table : LookupTable or OperatorTable
        The table.
    factor : float, default=1.0
        Ask about latencies that are so many times as long.
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


def odd_layers(table: tables.LookupTable | tables.OperatorTable) -> list[str]:
    """Name layers that are off from the others by so much that they may be in another unit."""
    fixed = (
        () if isinstance(table, tables.OperatorTable) else {layer.name for layer in table.layers if not layer.searched}
    )
    efforts: dict[str, list[float]] = {}
    for (layer, name), entry in table.places():
        if layer not in fixed and _counts(entry):
            efforts.setdefault(name if isinstance(table, tables.OperatorTable) else layer, []).append(_effort(entry))
    if len(efforts) < 3:
        return []
    typical = {name: statistics.median(costs) for name, costs in efforts.items()}
    middle = statistics.median(typical.values())
    return [
        f"{name} is {max(cost / middle, middle / cost):.0f} times {'above' if cost > middle else 'below'} the others"
        for name, cost in typical.items()
        if abs(math.log(cost / middle)) > math.log(_ODD)
    ]


def _rates(table: tables.LookupTable | tables.OperatorTable) -> list[float]:
    """Return multiply-adds a second of every entry with enough of them."""
    work = ((entry.features.macs, entry.value) for _, entry in table.places() if entry.features is not None)
    return [macs / seconds for macs, seconds in work if macs >= _LEAST_WORK and seconds > 0]


def _counts(entry: Entry | OperatorEntry) -> bool:
    return entry.features is None or entry.features.macs >= _LEAST_WORK


def _effort(entry: Entry | OperatorEntry) -> float:
    return entry.value if entry.features is None else entry.value / entry.features.macs


def _short(value: float) -> str:
    return format_count(float(f"{value:.3g}"))
