# SPDX-License-Identifier: Apache-2.0
"""A table from whole networks alone."""

from __future__ import annotations

import numpy as np
import pytest
from devices import SPACE, costs_of, draw, latencies_of

from nni_latency import TableEstimator
from nni_latency.errors import InvalidValueError
from nni_latency.estimators import score

COSTS = costs_of(3, 0.4)


def _recovered(count, noise=0.01):
    networks = draw(count, seed=2)
    return TableEstimator.from_networks(SPACE, networks, latencies_of(COSTS, networks, noise))


def test_table_is_recovered_from_networks():
    others = draw(200, seed=3)
    assert score(_recovered(150).predict(others), latencies_of(COSTS, others)).within5 == 1.0


def test_recovered_differences_lie_in_their_intervals():
    found = _recovered(150)
    widths = found.recovery.half_widths()
    inside = []
    for label, row in zip(SPACE, COSTS, strict=True):
        values = np.array([found.table[label][choice].value for choice in SPACE[label]])
        off = np.abs((values - values.mean()) - (row - row.mean()))
        inside += (off <= np.array(list(widths[label].values()))).tolist()
    assert np.mean(inside) > 0.85


def test_recovered_intervals_of_networks_hold_most_measurements():
    networks = draw(300, seed=4)
    values, low, high = _recovered(100).recovery.predict_interval(networks, 0.9)
    measured = latencies_of(COSTS, networks, 0.01, seed=5)
    assert np.mean((low <= measured) & (measured <= high)) > 0.8
    assert (low <= values).all()


def test_more_networks_make_narrower_entries():
    few, many = (
        np.mean([width for row in _recovered(count).recovery.half_widths().values() for width in row.values()])
        for count in (30, 300)
    )
    assert many < 0.6 * few


def test_suggested_networks_help_more_than_random_ones():
    networks = draw(25, seed=2)
    found = TableEstimator.from_networks(SPACE, networks, latencies_of(COSTS, networks, 0.01))

    def width(more):
        more = np.vstack([networks, more])
        again = TableEstimator.from_networks(SPACE, more, latencies_of(COSTS, more, 0.01))
        return np.mean([item for row in again.recovery.half_widths().values() for item in row.values()])

    suggested = width(found.recovery.suggest(15))
    assert suggested < np.mean([width(draw(15, seed=seed)) for seed in range(20, 25)])


def test_outliers_count_little():
    networks = draw(150, seed=2)
    measured = latencies_of(COSTS, networks, 0.005)
    measured[::15] *= 3
    others = draw(200, seed=3)
    found = TableEstimator.from_networks(SPACE, networks, measured)
    assert score(found.predict(others), latencies_of(COSTS, others)).within5 == 1.0


def test_no_entry_is_negative_even_of_few_networks():
    table = _recovered(12, noise=0.3).table
    assert all(entry.value > 0 and entry.low >= 0 for layer in table.layers for entry in layer.entries.values())


def test_too_few_networks_say_how_many_more():
    with pytest.raises(
        InvalidValueError, match=r"at least 10 measured networks. Got 4: 6 more are needed, and about 19"
    ):
        TableEstimator.from_networks(SPACE, draw(4), [1e-3] * 4)


def test_cells_have_no_table():
    with pytest.raises(InvalidValueError, match="has no lookup table"):
        TableEstimator.from_networks("nasbench201", np.zeros((20, 6), int), np.ones(20))


def test_further_networks_that_are_not_there_are_refused():
    with pytest.raises(InvalidValueError, match=r"in \[1, 3\]"):
        _recovered(40).recovery.suggest(4, draw(3))
