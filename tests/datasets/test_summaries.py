# SPDX-License-Identifier: Apache-2.0
"""From visits to latencies: the machine's speed is taken out, and parts add up to the network."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nni_latency.costs import Cost
from nni_latency.datasets import part_times, summarise_networks
from nni_latency.measurement import Protocol, Record, quantile

_PROTOCOL = Protocol(outlier=0.0)


def _visits(seconds, speeds, parts=(), moments=None):
    """Invent visits, a second apart, each of three runs at the machine's speed."""
    return [
        Record(
            1e-3,
            parts,
            {"latency": [seconds * speed * scale for scale in (0.99, 1.0, 1.01)]},
            ("n",),
            at=float(place if moments is None else moments[place]),
        )
        for place, speed in enumerate(speeds)
    ]


def _busy(rounds, networks=12, seed=0):
    """Invent visits of networks in turn on a machine whose speed changes within a second; return them by network."""
    random = np.random.default_rng(seed)
    moments = np.cumsum(random.uniform(0.05, 0.15, rounds * networks))
    speeds, log = np.ones(len(moments)), 0.0
    for place in range(1, len(moments)):
        kept = np.exp(-(moments[place] - moments[place - 1]) / 0.7)
        log = kept * log + np.sqrt(1 - kept**2) * 0.15 * random.normal()
        speeds[place] = np.exp(log)
    turns = np.concatenate([random.permutation(networks) for _ in range(rounds)])
    found = {}
    for number in range(networks):
        mine = np.flatnonzero(turns == number)
        own = np.exp(0.03 * random.normal(size=len(mine)))
        found[f"n{number}"] = _visits(0.001 * (number + 2), speeds[mine] * own, moments=moments[mine])
    return found


def _ratios(found):
    """Return by how much latencies differ from what was invented, apart from one factor for all, as logarithms."""
    off = np.log([found[f"n{number}"].value / (0.001 * (number + 2)) for number in range(len(found))])
    return off - np.median(off)


def test_a_machine_that_slows_down_does_not_change_a_latency():
    visits = _busy(10)
    slowed = {}
    for key, records in visits.items():
        half = len(records) // 2
        more = [
            replace(item, samples={"latency": [1.3 * seconds for seconds in item.whole]}) for item in records[half:]
        ]
        slowed[key] = records[:half] + more
    before, after = (_ratios(summarise_networks(item, _PROTOCOL)) for item in (visits, slowed))
    np.testing.assert_allclose(before, after, atol=0.03)


def test_neighbours_in_time_tell_how_fast_the_machine_was():
    """A speed that changes within a second is taken out better than quartiles of all runs throw it off."""
    found, quartiles = [], []
    for seed in range(6):
        visits = _busy(5, seed=seed)
        found.append(_ratios(summarise_networks(visits, _PROTOCOL)))
        values = {
            key: Cost(quantile([seconds for record in records for seconds in record.whole], 0.25), 0.0, 1.0)
            for key, records in visits.items()
        }
        quartiles.append(_ratios(values))
    assert np.std(found) < 0.75 * np.std(quartiles)


def test_intervals_hold_what_was_invented():
    inside = []
    for seed in range(6):
        summaries = summarise_networks(_busy(6, seed=seed), _PROTOCOL)
        off, widths = _ratios(summaries), [np.log(item.high / item.value) for item in summaries.values()]
        inside += (np.abs(off) <= widths).tolist()
    assert np.mean(inside) > 0.85


def test_one_network_is_what_its_runs_say():
    visits = _visits(0.01, [1.0, 1.0, 1.0])
    found = summarise_networks({"n": visits}, _PROTOCOL)["n"]
    assert found.value == pytest.approx(quantile([*visits[0].whole], _PROTOCOL.statistic))
    assert found.low < found.value < found.high
    assert (found.n_samples, found.n_visits, found.repeatability) == (9, 3, 0.0)


def test_repeatability_is_how_much_visits_differ():
    speeds = [0.9, 1.0, 1.1]
    quiet = {f"q{number}": _visits(0.02, [1.0] * 3, moments=np.arange(3) + 0.1 * number) for number in range(8)}
    found = summarise_networks({"n": _visits(0.01, speeds, moments=100.0 * np.arange(3)), **quiet}, _PROTOCOL)
    assert found["n"].repeatability == pytest.approx(0.1, rel=0.1)
    assert found["q1"].repeatability < 0.01


def test_one_visit_that_was_disturbed_says_little():
    visits = {f"n{number}": _visits(0.01, [1.0] * 9, moments=np.arange(9) + 0.1 * number) for number in range(8)}
    visits["n3"][4] = replace(visits["n3"][4], samples={"latency": [0.5] * 3})
    found = summarise_networks(visits, _PROTOCOL)
    assert all(item.value == pytest.approx(found["n0"].value, rel=0.03) for item in found.values())


def test_parts_add_up_to_less_where_something_lies_outside_of_them():
    visits = _visits(0.01, [1.0, 1.0], parts=[[0.002, 0.006], [0.002, 0.006]])
    assert part_times(visits, 0.01) == pytest.approx((0.002, 0.006))


def test_parts_add_up_to_the_network():
    visits = _visits(0.008, [1.0, 1.0], parts=[[0.002, 0.006], [0.002, 0.006], [0.9, 0.6]])
    assert part_times(visits, 0.012) == pytest.approx((0.003, 0.009))
    assert part_times(_visits(0.01, [1.0]), 0.012) == ()
    assert part_times(_visits(0.01, [1.0], parts=[[0.1], [0.1, 0.2]]), 0.012) == ()


def test_parts_of_several_visits_count_as_shares_of_the_network():
    """In the second visit the machine was slower; in the third, a part was disturbed."""
    speeds, shares = (1.0, 2.0, 1.0), ([0.2, 0.6], [0.2, 0.6], [0.7, 0.3])
    visits = [
        _visits(0.01, [speed], parts=[[share * 0.01 * speed for share in both]])[0]
        for speed, both in zip(speeds, shares, strict=True)
    ]
    assert part_times(visits, 0.01) == pytest.approx((0.002, 0.006))


def test_parts_are_told_finer_than_the_clock_of_a_runtime():
    """A runtime tells whole microseconds: the middle runs are averaged, without those that were disturbed."""
    runs = [[2e-6], [3e-6]] * 4 + [[9e-5], [8e-5]]
    (found,) = part_times(_visits(4e-6, [1.0] * 10, parts=runs), 4e-6)
    assert found == pytest.approx(2.75e-6, rel=0.02)
