# SPDX-License-Identifier: Apache-2.0
"""The one place where numbers become text, and text becomes numbers; everything inside is SI."""

from __future__ import annotations

import math
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nni_latency.combinations import INVERSE, LARGEST, SUM, Combination
from nni_latency.costs import Cost
from nni_latency.errors import InvalidValueError

_DURATION = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>ms|s|sec|min|m|h|d)?")
_QUANTITY = re.compile(r"(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)\s*(?P<unit>[a-z/1]*)")
_MOST_DIGITS = 18
_SECONDS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def format_seconds(value: float) -> str:
    """Format a time [s] with three significant digits and the unit a person expects; a minute or more in two units.

    >>> format_seconds(0.01234), format_seconds(4.2e-05), format_seconds(3e-09)
    ('12.3 ms', '42.0 us', '3.00 ns')
    >>> format_seconds(95), format_seconds(86_400)
    ('1 min 35 s', '24 h 00 min')
    """
    if not math.isfinite(value):
        return "unknown"
    # Rounded first, so that 999.6 us is 1.00 ms and not 1000 us.
    rounded = float(f"{value:.3g}")
    size = abs(rounded)
    if size >= 60:
        return f"{'-' if value < 0 else ''}{_long_time(abs(value))}"
    if size >= 1 or size == 0:
        return f"{rounded:.3g} s"
    for factor, unit in ((1e3, "ms"), (1e6, "us"), (1e9, "ns")):
        if size * factor >= 1:
            return f"{_three_digits(rounded * factor)} {unit}"
    return f"{rounded * 1e9:.3g} ns"


def _long_time(value: float) -> str:
    """Format a minute or more [s] in two units: the larger one holds what remains after rounding to the smaller one."""
    seconds, minutes, hours = round(value), round(value / 60), round(value / 3600)
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    if hours < 10_000 * 24:
        return f"{hours // 24} d {hours % 24:02d} h"
    return f"{value / 86_400:.3g} d"


def format_count(value: float) -> str:
    """Format a count such as multiply-adds or parameters.

    >>> format_count(383_000_000), format_count(1_234), format_count(7)
    ('383 M', '1.23 k', '7')
    """
    rounded = float(f"{value:.3g}")
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(rounded) >= factor:
            return f"{_three_digits(rounded / factor)} {letter}"
    return f"{value:g}"


def format_bytes(value: float) -> str:
    """Format an amount of data.

    >>> format_bytes(1_234_567), format_bytes(700)
    ('1.23 MB', '700 B')
    """
    text = format_count(value)
    return f"{text}B" if " " in text else f"{text} B"


def number_of(count: float, noun: str, nouns: str = "") -> str:
    """Write a number of things; `nouns` is the plural where it is not the noun with an s.

    >>> number_of(1, "family", "families"), number_of(2, "family", "families"), number_of(0, "network")
    ('1 family', '2 families', '0 networks')
    """
    return f"{count:.15g} {noun if count == 1 else nouns or noun + 's'}"


def format_percent(ratio: float, *, signed: bool = False) -> str:
    """Format a ratio as a percentage with one digit after the point; `signed` puts a plus before what is above 0.

    >>> format_percent(0.0312), format_percent(0.0312, signed=True)
    ('3.1 %', '+3.1 %')
    """
    return f"{round(ratio * 100, 1) + 0.0:{'+' if signed else ''}.1f} %"


def format_slowdown(ratio: float) -> str:
    """Format the ratio of a time now to that before as a percentage in words.

    >>> format_slowdown(1.15), format_slowdown(0.9)
    ('15.0 % slower', '10.0 % faster')
    """
    return f"{format_percent(abs(ratio - 1))} {'slower' if ratio > 1 else 'faster'}"


def format_rank_correlation(value: float, digits: int = 3) -> str:
    """Format a rank correlation; for nan, say why there is none.

    >>> format_rank_correlation(0.98765), format_rank_correlation(math.nan)
    ('0.988', 'none (fewer than three values, or all equal)')
    """
    if math.isnan(value):
        return "none (fewer than three values, or all equal)"
    return f"{value:.{digits}f}"


def whole_number(text: str) -> int | None:
    """Return a whole number >= 0 that is written in digits, up to 18 of them; None for any other text.

    Python itself refuses to read a number of more than 4,300 digits.

    Examples
    --------
    >>> whole_number("12"), whole_number("-1"), whole_number("9" * 5000)
    (12, None, None)
    """
    text = text.strip()
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def parse_share(text: str) -> float:
    """Read a share such as ``10%`` or ``0.1``.

    Raises
    ------
    InvalidValueError
        If it is none above 0 and at most 1.

    Examples
    --------
    >>> parse_share("10%"), parse_share("0.25")
    (0.1, 0.25)
    """
    number, percent, rest = text.strip().partition("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = math.nan
    if rest.strip() or not 0 < share <= 1:
        raise InvalidValueError(f"A share must be above 0 and at most 1, such as 10% or 0.1. Got {text!r}.")
    return share


def parse_duration(text: str) -> float:
    """Read a duration such as ``90``, ``90s``, ``1.5min`` or ``250 ms`` and return seconds.

    Raises
    ------
    InvalidValueError
        If the text is not a positive number with one of those units.

    Examples
    --------
    >>> parse_duration("1.5min"), parse_duration("250 ms")
    (90.0, 0.25)
    """
    match = _DURATION.fullmatch(text.strip().lower())
    seconds = float(match["number"]) * _SECONDS[match["unit"] or ""] if match else 0.0
    if not 0 < seconds < math.inf:
        raise InvalidValueError(
            f"A duration must be a positive number with 'ms', 's', 'min', 'h' or 'd'. Got {text!r}."
        )
    return seconds


#: Units that a person types, with the SI unit and how many of it one is.
_TYPED_UNITS = {
    "ns": ("s", 1e-9),
    "us": ("s", 1e-6),
    "ms": ("s", 1e-3),
    "s": ("s", 1.0),
    "uj": ("J", 1e-6),
    "mj": ("J", 1e-3),
    "j": ("J", 1.0),
    "mw": ("W", 1e-3),
    "w": ("W", 1.0),
    "b": ("byte", 1.0),
    "byte": ("byte", 1.0),
    "kib": ("byte", 2.0**10),
    "mib": ("byte", 2.0**20),
    "gib": ("byte", 2.0**30),
    "/s": ("1/s", 1.0),
    "1/s": ("1/s", 1.0),
    "": ("1", 1.0),
}


@dataclass(frozen=True)
class Quantity:
    """A number with an SI unit, as in `Metric.unit`; ``"1"`` for none."""

    value: float
    unit: str


def parse_quantity(text: str) -> Quantity:
    """Read a positive quantity such as ``12ms``, ``20 mJ``, ``4MiB``, ``100/s`` or ``2.5``.

    Raises
    ------
    InvalidValueError
        If the text is not a positive number, or its unit is not known.

    Examples
    --------
    >>> parse_quantity("12ms"), parse_quantity("2.5")
    (Quantity(value=0.012, unit='s'), Quantity(value=2.5, unit='1'))
    """
    match = _QUANTITY.fullmatch(text.strip().lower())
    unit, factor = _TYPED_UNITS.get(match["unit"], ("", 0.0)) if match else ("", 0.0)
    value = float(match["number"]) * factor if match else 0.0
    if not 0 < value < math.inf:
        raise InvalidValueError(
            f"It must be a positive number with a unit, such as 12ms, 20mJ, 4MiB or 100/s. Got {text!r}."
        )
    return Quantity(value, unit)


def _three_digits(value: float) -> str:
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f}"


def _plainly(unit: str) -> Callable[[float], str]:
    """Return what formats numbers of a unit: as they are, and those from a thousand on with a letter."""
    return lambda value: f"{format_count(value)} {unit}" if abs(value) >= 1e3 else f"{value:.3g} {unit}"


def _energy(value: float) -> str:
    """Format an energy [J]; those of parts of networks in millijoules."""
    small = next(((factor, unit) for factor, unit in ((1e6, "uJ"), (1e3, "mJ")) if 0 < value * factor < 100), None)
    return _plainly("J")(value) if small is None else f"{value * small[0]:.3g} {small[1]}"


@dataclass(frozen=True)
class Metric:
    """A quantity that networks cost.

    Parameters
    ----------
    unit : str
        Its SI unit, as it stands in files.
    combination : Combination
        How the costs of layers make that of a network.
    shown : tuple of float and str
        By what a value is multiplied where it is shown as a bare number, and the unit that it has then.
    format : callable
        Makes a text of a value in the SI unit.
    """

    unit: str
    combination: Combination
    shown: tuple[float, str]
    format: Callable[[float], str]


#: Every metric. A new one is one more line.
METRICS: dict[str, Metric] = {
    "latency": Metric("s", SUM, (1e3, "ms"), format_seconds),
    "energy": Metric("J", SUM, (1e3, "mJ"), _energy),
    "power": Metric("W", SUM, (1.0, "W"), _plainly("W")),
    "peak_memory": Metric("byte", LARGEST, (2**-20, "MiB"), _plainly("byte")),
    "parameter_memory": Metric("byte", SUM, (2**-20, "MiB"), _plainly("byte")),
    "activation_memory": Metric("byte", LARGEST, (2**-20, "MiB"), _plainly("byte")),
    "weighted": Metric("1", SUM, (1.0, "1"), lambda value: f"{value:.4g}"),
    "throughput": Metric("1/s", INVERSE, (1.0, "1/s"), _plainly("1/s")),
}

#: Metrics that are counted, not measured.
COUNTED_METRICS = ("parameter_memory", "activation_memory")

#: The SI unit of every metric, as it stands in files.
METRIC_UNITS: dict[str, str] = {name: metric.unit for name, metric in METRICS.items()}


def check_metric(metric: str) -> str:
    """Return `metric` if it is one that the package knows, else raise `InvalidValueError`."""
    if metric not in METRICS:
        raise InvalidValueError(f"The 'metric' must be one of {', '.join(METRICS)}. Got {metric!r}.")
    return metric


def with_article(metric: str) -> str:
    """Return the name of a metric as it stands in a sentence.

    >>> with_article("latency"), with_article("energy")
    ('a latency', 'an energy')
    """
    return f"{'an' if metric[0] in 'aeio' else 'a'} {metric}"


def combination_of(metric: str) -> Combination:
    """Return how the costs of layers make that of a network, by the metric."""
    return METRICS[check_metric(metric)].combination


def format_metric(value: float, metric: str) -> str:
    """Format a value of a metric with its unit.

    >>> format_metric(0.005, "latency"), format_metric(0.25, "energy")
    ('5.00 ms', '0.25 J')
    """
    return METRICS[check_metric(metric)].format(value)


def cost_row(cost: Cost | None, metric: str) -> dict[str, float | None]:
    """Return value and interval by the names that rows of JSON, CSV and frames have for them; None for no cost.

    >>> cost_row(Cost(0.002, 0.001, 0.003), "latency")
    {'latency_s': 0.002, 'low_s': 0.001, 'high_s': 0.003}
    """
    unit = "_s" if metric == "latency" else ""
    numbers = (None, None, None) if cost is None else (cost.value, cost.low, cost.high)
    return dict(zip((f"{metric}{unit}", f"low{unit}", f"high{unit}"), numbers, strict=True))


#: Units that the numbers of one column may have, the smallest first, by their SI unit; "" is that of counts.
_COLUMN_UNITS: dict[str, tuple[tuple[float, str], ...]] = {
    "s": ((1e-6, "us"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h")),
    "J": ((1e-6, "uJ"), (1e-3, "mJ"), (1.0, "J"), (1e3, "kJ")),
    "W": ((1e-3, "mW"), (1.0, "W"), (1e3, "kW")),
    "byte": ((1.0, "byte"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB")),
    "1/s": ((1.0, "1/s"), (1e3, "k/s")),
    "1": ((1.0, ""),),
    "": ((1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T")),
}

#: Counts below it are printed to the last digit.
_WHOLE = 100_000


def format_column(values: Sequence[float], unit: str = "") -> tuple[list[str], str]:
    """Format numbers that stand below each other: all in one unit, with as many digits after the point.

    Parameters
    ----------
    values : sequence of float
        The numbers, in the SI unit.
    unit : str
        The SI unit, such as ``s``; empty for counts.

    Returns
    -------
    texts : list of str
        The numbers without a unit. The median has three digits; what would be rounded to zero is ``<`` the last digit.
    unit : str
        The unit of all of them.

    Examples
    --------
    >>> format_column([0.0278, 0.0123, 2.5e-06], "s")
    (['27.8', '12.3', '<0.1'], 'ms')
    >>> format_column([12, 1234]), format_column([3_000_000, 25_000_000])
    ((['12', '1234'], ''), (['3.0', '25.0'], 'M'))
    """
    sizes = [abs(value) for value in values if value and math.isfinite(value)]
    if not sizes or (not unit and max(sizes) < _WHOLE and all(size == int(size) for size in sizes)):
        return [f"{value:.0f}" if math.isfinite(value) else "unknown" for value in values], _COLUMN_UNITS[unit][0][1]
    # The mean of the two in the middle may be too large for a number.
    middle = min(float(f"{statistics.median(sizes):.3g}"), sys.float_info.max)
    units = _COLUMN_UNITS[unit]
    factor, name = next((item for item in reversed(units) if middle >= item[0]), units[0])
    digits = min(3, max(0, 2 - math.floor(math.log10(middle / factor))))
    return [_fixed(value / factor, digits) for value in values], name


def _fixed(value: float, digits: int) -> str:
    if not math.isfinite(value):
        return "unknown"
    least: float = 10.0**-digits
    if value and abs(value) <= least / 2:
        return f"{'-' if value < 0 else ''}<{least:.{digits}f}"
    return f"{value:.{digits}f}"
