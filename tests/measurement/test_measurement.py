# SPDX-License-Identifier: Apache-2.0
"""The record of one experiment."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nni_latency.errors import MeasurementError
from nni_latency.measurement import Measurement, Protocol, quantile, trim

_samples = st.lists(st.floats(1e-6, 1e2), min_size=1, max_size=50).map(tuple)
_protocols = st.builds(Protocol, outlier=st.floats(0, 0.49), statistic=st.floats(0.05, 0.95))


@given(_samples, _protocols)
def test_summary_is_the_quantile_of_what_trimming_keeps(samples, protocol):
    summary = Measurement(samples, protocol).summary
    assert summary.value == quantile(trim(samples, protocol.outlier)[0], protocol.statistic)


@given(_samples, _protocols)
def test_summary_encloses_its_value(samples, protocol):
    summary = Measurement(samples, protocol).summary
    assert 0 < summary.low <= summary.value <= summary.high < math.inf


@given(_samples, _protocols)
def test_summary_counts_all_samples(samples, protocol):
    measurement = Measurement(samples, protocol)
    assert measurement.summary.n_samples == len(samples)
    assert len(measurement.kept) + len(measurement.dropped) == len(samples)
    assert measurement.summary.n_dropped == len(measurement.dropped)


@given(_samples, _protocols, st.sampled_from([0.5, 2.0, 1024.0]))
def test_summary_scales_with_the_unit(samples, protocol, factor):
    """Powers of two scale floating-point numbers without rounding."""
    one = Measurement(samples, protocol).summary
    other = Measurement(tuple(factor * sample for sample in samples), protocol).summary
    assert (other.value, other.low, other.high) == (factor * one.value, factor * one.low, factor * one.high)
    assert other.spread == one.spread


def test_interference_does_not_move_the_value():
    """Other processes only ever add time; the lower quartile of the rest stays where it was."""
    quiet = (1.0, 1.01, 1.02, 1.03, 1.04, 1.05, 1.06, 1.07)
    disturbed = (*quiet[:6], 9.0, 50.0)
    protocol = Protocol(outlier=0.05)
    assert Measurement(disturbed, protocol).summary.value == Measurement(quiet, protocol).summary.value


def test_spread_is_half_the_interval_over_the_value():
    summary = Measurement((1.0, 2.0, 3.0), Protocol(outlier=0, statistic=0.5)).summary
    assert summary.spread == pytest.approx(0.5)


def test_measurement_needs_a_sample():
    with pytest.raises(MeasurementError, match=r"at least one sample"):
        Measurement((), Protocol())


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_measurement_refuses_a_sample_that_is_no_time(bad):
    with pytest.raises(MeasurementError, match=rf"Got {bad!r}: the clock"):
        Measurement((1.0, bad), Protocol())
