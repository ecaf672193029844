# SPDX-License-Identifier: Apache-2.0
"""The timed loop, on a clock that a test advances."""

from __future__ import annotations

import threading
import time

import pytest

from nni_latency.measurement import PerfClock, time_chain
from nni_latency.measurement._timing import ProcessorClock
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


@pytest.mark.parametrize("clock", [PerfClock(), ProcessorClock()])
def test_clocks_never_run_backwards(clock):
    intervals = clock.intervals([clock.mark() for _ in range(100)])
    assert len(intervals) == 99
    assert min(intervals) >= 0
    assert clock.resolution > 0


def test_processor_clock_leaves_out_waiting_for_a_processor():
    # Each mark: the time before reading how long the thread has waited, that, and the time after.
    marks = [(0.0, 1.0, 0.5), (3.5, 2.0, 4.0), (5.0, 2.0, 5.5), (6.0, 9.0, 6.5)]
    assert ProcessorClock().intervals(marks) == [2.0, 1.0, 0.0]


def test_processor_clock_counts_sleep():
    clock = ProcessorClock()
    begin = clock.mark()
    time.sleep(0.05)
    assert clock.intervals([begin, clock.mark()])[0] > 0.04


def test_processor_clock_works_in_every_thread():
    clock, found = ProcessorClock(), []
    threads = [threading.Thread(target=lambda: found.append(clock.mark())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(0 <= waited < end for _, waited, end in found)
    assert len(found) == 3
