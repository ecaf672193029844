# SPDX-License-Identifier: Apache-2.0
"""How the costs of parts make the cost of a whole."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nni_latency.combinations import INVERSE, LARGEST, SUM
from nni_latency.costs import Cost
from nni_latency.errors import InvalidValueError
from nni_latency.tables import Residency
from nni_latency.units import METRICS, combination_of

_EVERY = (SUM, INVERSE, LARGEST)
_combinations = st.sampled_from(_EVERY)
_numbers = st.floats(1e-3, 1e3)
_parts = st.lists(_numbers, min_size=1, max_size=6)
_curves = st.none() | st.builds(Residency, st.floats(0, 0.5), st.floats(0.1, 10))


def _cost(value):
    return Cost(value, 0.9 * value, 1.2 * value)


def _whole(combination, parts, calibration=1.0, curve=None):
    return combination.whole(combination.total(combination.counted(part, calibration) for part in parts), curve)


@given(_combinations, _parts)
def test_whole_by_definition(combination, parts):
    expected = {SUM: math.fsum(parts), INVERSE: 1 / math.fsum(1 / part for part in parts), LARGEST: max(parts)}
    assert _whole(combination, parts) == pytest.approx(expected[combination])


@given(_combinations, _numbers)
def test_whole_of_one_part_is_the_part_and_counted_its_own_inverse(combination, part):
    assert _whole(combination, [part]) == pytest.approx(part)
    assert combination.counted(combination.counted(part)) == pytest.approx(part)


@given(_combinations, _parts, _curves, st.floats(0.5, 2))
def test_records_numbers_and_arrays_agree(combination, parts, curve, calibration):
    number = _whole(combination, parts, calibration, curve)
    counted = [combination.counted(_cost(part), calibration) for part in parts]
    record = combination.whole(combination.total_cost(Cost, counted), curve)
    total = np.full(2, combination.total([]))
    for part in parts:
        total = combination.join(total, combination.counted(np.full(2, part), calibration))
    assert record.value == pytest.approx(number)
    assert record.low <= record.value <= record.high
    assert combination.whole(total, curve) == pytest.approx(np.full(2, number))


@given(_combinations, _parts, _numbers)
def test_whole_scales_with_its_parts(combination, parts, factor):
    assert _whole(combination, [factor * part for part in parts]) == pytest.approx(factor * _whole(combination, parts))


@given(_combinations, _numbers, _curves)
def test_total_of_is_the_inverse_of_whole(combination, whole, curve):
    assert combination.whole(combination.total_of(whole, curve), curve) == pytest.approx(whole, rel=1e-6)


@given(_combinations, _parts, st.floats(0.5, 2))
def test_footing_on_the_parts_is_a_calibration_of_the_total(combination, parts, calibration):
    moved = [combination.footing(calibration) * part for part in parts]
    assert _whole(combination, moved) == pytest.approx(_whole(combination, parts, calibration))


@given(_combinations, _parts)
def test_nothing_adds_nothing(combination, parts):
    assert _whole(combination, [*parts, combination.nothing]) == pytest.approx(_whole(combination, parts))


@pytest.mark.parametrize("combination", _EVERY)
def test_total_of_what_no_network_has_is_not_a_number(combination):
    assert math.isnan(combination.total([1.0, math.nan, 2.0]))


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_is_shown_and_combined(metric):
    factor, unit = METRICS[metric].shown
    assert factor > 0 and unit
    number, *unit = METRICS[metric].format(0.5).split()
    # A weighted sum has no unit.
    assert float(number) and (unit or METRICS[metric].unit == "1")
    assert combination_of(metric) in _EVERY


def test_combination_of_an_unknown_metric():
    with pytest.raises(InvalidValueError, match=r"The 'metric' must be one of latency, .*Got 'colour'"):
        combination_of("colour")
