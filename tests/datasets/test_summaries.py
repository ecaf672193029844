"""From visits to latencies: the machine's speed is taken out, and parts add up to the network."""

from __future__ import annotations

import numpy as np
import pytest

from nni_latency.datasets import Speed, part_times, summarise_network
from nni_latency.measurement import Protocol, Record, quantile

_PROTOCOL = Protocol(outlier=0.0)


def _visits(seconds, speeds, parts=()):
    """Invent visits, a second apart, each of three runs at the machine's speed."""
    return [
        Record(
            1e-3, parts, {"latency": [seconds * speed * scale for scale in (0.99, 1.0, 1.01)]}, ("n",), at=float(place)
        )
        for place, speed in enumerate(speeds)
    ]


def test_a_machine_that_slows_down_does_not_change_a_latency():
    speeds = np.repeat([1.0, 1.3], 100)
    speed = Speed({name: _visits(seconds, speeds) for name, seconds in (("a", 0.01), ("b", 0.03))})
    early, late = (
        Record(1e-3, (), {"latency": [0.02 * factor]}, ("n",), at=at) for at, factor in ((20, 1), (180, 1.3))
    )
    assert speed.factor(180) / speed.factor(20) == pytest.approx(1.3, rel=0.03)
    ratio = summarise_network([early], speed, _PROTOCOL).value / summarise_network([late], speed, _PROTOCOL).value
    assert ratio == pytest.approx(1.0, rel=0.03)


def test_without_anchors_times_stay_what_they_are():
    visits = _visits(0.01, [1.0, 1.0, 1.0])
    found = summarise_network(visits, Speed({}), _PROTOCOL)
    runs = [seconds for visit in visits for seconds in visit.whole]
    assert found.value == pytest.approx(quantile(runs, _PROTOCOL.statistic))
    assert found.low <= found.value <= found.high
    assert (found.n_samples, found.n_visits, found.repeatability) == (9, 3, 0.0)


def test_repeatability_is_how_much_visits_differ():
    found = summarise_network(_visits(0.01, [0.9, 1.0, 1.1]), Speed({}), _PROTOCOL)
    assert found.repeatability == pytest.approx(0.1)


def test_one_visit_that_was_disturbed_says_little():
    speed = Speed({"a": _visits(0.01, [1.0] * 20 + [50.0] + [1.0] * 20)})
    assert speed.factor(20) < 1.03


def test_parts_add_up_to_less_where_something_lies_outside_of_them():
    visits = _visits(0.01, [1.0, 1.0], parts=[[0.002, 0.006], [0.002, 0.006]])
    assert part_times(visits, 0.01) == pytest.approx((0.002, 0.006))


def test_parts_add_up_to_the_network():
    visits = _visits(0.008, [1.0, 1.0], parts=[[0.002, 0.006], [0.002, 0.006], [0.9, 0.6]])
    assert part_times(visits, 0.012) == pytest.approx((0.003, 0.009))
    assert part_times(_visits(0.01, [1.0]), 0.012) == ()
    assert part_times(_visits(0.01, [1.0], parts=[[0.1], [0.1, 0.2]]), 0.012) == ()


def test_parts_are_told_finer_than_the_clock_of_a_runtime():
    """A runtime tells whole microseconds: the middle runs are averaged, without those that were disturbed."""
    runs = [[2e-6], [3e-6]] * 4 + [[9e-5], [8e-5]]
    (found,) = part_times(_visits(4e-6, [1.0] * 10, parts=runs), 4e-6)
    assert found == pytest.approx(2.75e-6, rel=0.02)
