# SPDX-License-Identifier: Apache-2.0
"""The timed loop, on a clock that a test advances."""

from __future__ import annotations

import pytest

from nni_latency.measurement import PerfClock, time_chain
from nni_latency.testing import FakeClock


def _stage(clock, seconds, function=lambda value: value):
    def run(value):
        clock.advance(seconds)
        return function(value)

    return run


def _growing(clock, *seconds):
    """Make a callable that takes the given times, one after another."""
    left = list(seconds)
    return lambda: clock.advance(left.pop(0))


def test_time_chain_times_every_stage():
    clock = FakeClock(now=5.0)
    assert time_chain([_stage(clock, seconds) for seconds in (0.5, 0.25, 2.0)], None, clock) == [0.5, 0.25, 2.0]


def test_time_chain_hands_on_what_each_stage_returns():
    clock, seen = FakeClock(), []
    stages = [_stage(clock, 1.0, lambda value: value + 1), _stage(clock, 1.0, seen.append)]
    time_chain(stages, 6, clock)
    assert seen == [7]


def test_time_chain_never_falls_below_the_resolution():
    clock = FakeClock(resolution=1e-3)
    assert time_chain([_stage(clock, 0.0), _stage(clock, 1.0)], None, clock) == [1e-3, 1.0]


def test_time_chain_reads_the_clock_after_the_last_stage():
    """A device's clock waits for the device only when it is read; no stage may stand behind that."""
    order = []

    class WaitingClock(FakeClock):
        def intervals(self, marks):
            order.append("read")
            return super().intervals(marks)

    clock = WaitingClock()
    time_chain([lambda _: order.append("first"), lambda _: order.append("second")], None, clock)
    assert order == ["first", "second", "read"]


def test_time_chain_lets_errors_through():
    with pytest.raises(ZeroDivisionError, match=r"division"):
        time_chain([lambda _: 1 / 0], None, FakeClock())


def test_perf_clock_never_runs_backwards():
    clock = PerfClock()
    intervals = clock.intervals([clock.mark() for _ in range(100)])
    assert len(intervals) == 99
    assert min(intervals) >= 0
    assert clock.resolution > 0
