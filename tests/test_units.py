# SPDX-License-Identifier: Apache-2.0
"""Numbers become text, and text becomes numbers."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nni_latency.errors import InvalidValueError
from nni_latency.units import (
    METRIC_UNITS,
    check_metric,
    format_column,
    format_count,
    format_metric,
    format_percent,
    format_seconds,
    parse_duration,
)

_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.01234, "12.3 ms"),
        (4.2e-05, "42.0 us"),
        (5e-08, "50.0 ns"),
        (3e-09, "3.00 ns"),
        (2.5e-12, "0.0025 ns"),
        (1.0, "1 s"),
        (59.4, "59.4 s"),
        (95, "1 min 35 s"),
        (59.97, "1 min 00 s"),
        (3599.7, "1 h 00 min"),
        (86_400, "24 h 00 min"),
        (172_799, "2 d 00 h"),
        (1e6, "11 d 14 h"),
        (4e29, "4.63e+24 d"),
        (-95, "-1 min 35 s"),
        (0.0, "0 s"),
        (-0.002, "-2.00 ms"),
    ],
)
def test_format_seconds_picks_the_unit_a_person_expects(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_format_seconds_calls_no_number_unknown(value):
    assert format_seconds(value) == "unknown"


@given(st.sampled_from(sorted(METRIC_UNITS)), st.floats(0, 1e300, exclude_min=True))
def test_what_is_above_zero_never_prints_as_zero(metric, value):
    assert re.search("[1-9]", format_metric(value, metric).removesuffix("1/s"))
    assert re.search("[1-9]", format_count(value))


@given(st.floats(60, 1e8), st.floats(1, 1e8))
def test_longer_times_print_as_longer_ones(seconds, more):
    assert _seconds_in(format_seconds(seconds)) <= _seconds_in(format_seconds(seconds + more))
    assert _seconds_in(format_seconds(seconds)) == pytest.approx(seconds, rel=0.011)


def _seconds_in(text):
    words = text.split()
    return sum(float(number) * _UNITS[unit] for number, unit in zip(words[::2], words[1::2], strict=True))


@given(st.floats(1e-9, 59.0))
def test_format_seconds_keeps_three_digits(seconds):
    number, unit = format_seconds(seconds).split()
    assert float(number) * _UNITS[unit] == pytest.approx(seconds, rel=5.1e-3)
    assert float(number) < 1000


@pytest.mark.parametrize(("seconds", "text"), [(9.996e-3, "10.0 ms"), (0.9996, "1 s"), (99.96e-6, "100 us")])
def test_format_seconds_rounds_before_it_picks_the_unit(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(383_000_000, "383 M"), (1_234, "1.23 k"), (999, "999"), (7, "7"), (999_999, "1.00 M"), (2.5e9, "2.50 G")],
)
def test_format_count_uses_si_letters(count, text):
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("value", "metric", "text"),
    [
        (0.005, "latency", "5.00 ms"),
        (0.25, "energy", "0.25 J"),
        (4_300_000, "parameter_memory", "4.30 M byte"),
        (120, "throughput", "120 1/s"),
    ],
)
def test_format_metric_appends_the_unit(value, metric, text):
    assert format_metric(value, metric) == text


def test_format_metric_refuses_an_unknown_metric():
    with pytest.raises(InvalidValueError, match=r"must be one of latency, energy.*Got 'speed'"):
        format_metric(1.0, "speed")


@pytest.mark.parametrize("metric", METRIC_UNITS)
def test_check_metric_returns_every_known_metric(metric):
    assert check_metric(metric) == metric


def test_format_percent_has_one_digit():
    assert format_percent(0.0312) == "3.1 %"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("1.5min", 90),
        ("1.5 m", 90),
        ("2d", 172800),
        ("250 ms", 0.25),
        (" 2H ", 7200),
        (".5s", 0.5),
    ],
)
def test_parse_duration_reads_every_unit(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "0", "0 s", "-3s", "3 parsecs", "1e3", "nan", "ms", "9" * 400])
def test_parse_duration_refuses_what_is_no_positive_time(text):
    with pytest.raises(InvalidValueError, match=r"positive number"):
        parse_duration(text)


@given(st.integers(1, 10**6))
def test_parse_duration_scales_with_the_unit(number):
    assert parse_duration(f"{number}min") == pytest.approx(60 * parse_duration(f"{number}s"))
    assert parse_duration(f"{number}s") == pytest.approx(1000 * parse_duration(f"{number}ms"))


@pytest.mark.parametrize(
    ("values", "unit", "texts"),
    [
        ([0.000401, 0.00152, 0.0278], "s", (["0.40", "1.52", "27.80"], "ms")),
        ([0.000401, 0.00152, 4.87e-06], "s", (["401", "1520", "5"], "us")),
        ([5400, 7200.0, 86400.0], "s", (["1.50", "2.00", "24.00"], "h")),
        ([3e-9, 2e-9], "s", (["0.003", "0.002"], "us")),
        ([0.02, 0.0], "s", (["20.0", "0.0"], "ms")),
        ([0.25, math.inf, -0.5], "J", (["250", "unknown", "-500"], "mJ")),
        ([500, 12_345], "", (["500", "12345"], "")),
        ([500, 250_000, 2_500_000], "", (["<1", "250", "2500"], "k")),
        ([0.9996, 0.9996], "s", (["1.00", "1.00"], "s")),
        ([1.5], "1", (["1.50"], "")),
        ([], "s", ([], "us")),
    ],
)
def test_numbers_of_a_column_have_one_unit(values, unit, texts):
    assert format_column(values, unit) == texts


@given(st.lists(st.floats(1e-6, 1e5), min_size=1, max_size=9))
def test_numbers_of_a_column_are_what_they_were(values):
    texts, unit = format_column(values, "s")
    factor = {**_UNITS, "min": 60.0, "h": 3600.0}[unit]
    for value, text in zip(values, texts, strict=True):
        last = 10.0 ** -len(text.partition(".")[2])
        assert float(text.removeprefix("<")) * factor == pytest.approx(value, abs=1.0001 * last * factor)
