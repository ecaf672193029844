# SPDX-License-Identifier: Apache-2.0
"""Entries from the costs of whole networks."""

from __future__ import annotations

import numpy as np
import pytest

from nni_latency.errors import InvalidValueError
from nni_latency.tables import solve_entries

_N_LAYERS, _N_CHOICES = 12, 6


def _world(seed, *, spread=0.2, count=60, noise=0.002):
    """Invent a table, a prior that is off by up to `spread`, and measured networks."""
    generator = np.random.default_rng(seed)
    truth = [generator.uniform(0.2, 3.0, _N_CHOICES) for _ in range(_N_LAYERS)]
    prior = [column * generator.uniform(1 - spread, 1 + spread, _N_CHOICES) for column in truth]
    networks = generator.integers(0, _N_CHOICES, (count, _N_LAYERS))
    totals = _sums(truth, networks) * np.exp(generator.normal(0.0, noise, count))
    others = generator.integers(0, _N_CHOICES, (200, _N_LAYERS))
    return truth, prior, networks, totals, others


def _sums(columns, networks):
    return sum(column[chosen] for column, chosen in zip(columns, networks.T, strict=True))


def _errors(columns, truth, networks):
    return np.abs(_sums(columns, networks) / _sums(truth, networks) - 1)


@pytest.mark.parametrize("seed", range(4))
def test_solved_entries_predict_new_networks(seed):
    truth, prior, networks, totals, others = _world(seed)
    errors = _errors(solve_entries(networks, totals, prior).values, truth, others)
    assert float(np.mean(errors)) < 0.02


@pytest.mark.parametrize("seed", range(4))
def test_solved_entries_predict_better_than_the_prior(seed):
    truth, prior, networks, totals, others = _world(seed)
    solved, known = (
        float(np.sqrt(np.mean(_errors(columns, truth, others) ** 2)))
        for columns in (solve_entries(networks, totals, prior).values, prior)
    )
    assert solved < 0.6 * known


def test_more_networks_are_better():
    errors = []
    for count in (10, 30, 90):
        truth, prior, networks, totals, others = _world(0, count=count)
        errors.append(float(np.mean(_errors(solve_entries(networks, totals, prior).values, truth, others))))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.5 * errors[0]


def test_prior_may_be_in_any_unit():
    _, prior, networks, totals, others = _world(1)
    one = solve_entries(networks, totals, prior)
    other = solve_entries(networks, totals, [column * 1e6 for column in prior])
    assert _sums(other.values, others) == pytest.approx(_sums(one.values, others), rel=1e-6)


def test_entries_have_the_unit_of_the_networks():
    _, prior, networks, totals, _ = _world(2)
    one, other = solve_entries(networks, totals, prior), solve_entries(networks, totals * 1e-6, prior)
    assert np.concatenate(other.values) == pytest.approx(np.concatenate(one.values) * 1e-6, rel=1e-6)
    assert np.concatenate(other.deviations) == pytest.approx(np.concatenate(one.deviations) * 1e-6, rel=1e-4)


def test_features_may_be_in_any_unit():
    _, prior, networks, totals, others = _world(3)
    features = [np.column_stack([column**2, np.arange(_N_CHOICES) + 1.0]) for column in prior]
    one = solve_entries(networks, totals, prior, features)
    other = solve_entries(networks, totals, prior, [column * [1e9, 1e-3] for column in features])
    assert _sums(other.values, others) == pytest.approx(_sums(one.values, others), rel=1e-5)


def test_order_of_the_networks_does_not_matter():
    _, prior, networks, totals, _ = _world(4)
    order = np.random.default_rng(0).permutation(len(totals))
    one, other = solve_entries(networks, totals, prior), solve_entries(networks[order], totals[order], prior)
    assert np.concatenate(other.values) == pytest.approx(np.concatenate(one.values), rel=1e-6)
    assert (other.spread, other.noise) == (one.spread, one.noise)


def test_feature_explains_what_the_prior_does_not():
    """The device pays a fixed price for everything but skips, of which the prior knows nothing."""
    truth, prior, networks, _, others = _world(5, spread=0.02)
    paid = [(np.arange(_N_CHOICES) > 1).astype(float) for _ in range(_N_LAYERS)]
    truth = [column + 2.0 * price for column, price in zip(truth, paid, strict=True)]
    totals = _sums(truth, networks)
    without = _errors(solve_entries(networks, totals, prior).values, truth, others).mean()
    given = _errors(solve_entries(networks, totals, prior, [price[:, None] for price in paid]).values, truth, others)
    assert float(given.mean()) < 0.01
    assert float(given.mean()) < 0.5 * float(without)


def test_feature_that_is_zero_everywhere_changes_nothing():
    _, prior, networks, totals, others = _world(6)
    one = solve_entries(networks, totals, prior)
    other = solve_entries(networks, totals, prior, [np.zeros((_N_CHOICES, 2))] * _N_LAYERS)
    assert _sums(other.values, others) == pytest.approx(_sums(one.values, others), rel=1e-9)


def test_deviations_enclose_the_truth():
    """About nineteen of twenty sums of the networks lie where the deviations of the entries allow."""
    truth, prior, networks, totals, _ = _world(7)
    solved = solve_entries(networks, totals, prior)
    z = (np.concatenate(solved.values) - np.concatenate(truth)) / np.concatenate(solved.deviations)
    assert float(np.mean(np.abs(z) < 1.96)) > 0.85


def test_spread_says_how_far_off_the_prior_is():
    spreads = []
    for spread in (0.02, 0.5):
        _, prior, networks, totals, _ = _world(8, spread=spread, count=90)
        spreads.append(solve_entries(networks, totals, prior).spread)
    assert spreads[0] < 0.05
    assert spreads[1] > 0.15


def test_entries_are_positive_whatever_was_measured():
    _, prior, networks, totals, _ = _world(9)
    wild = totals * np.random.default_rng(0).uniform(0.1, 10.0, len(totals))
    assert all((column > 0).all() for column in solve_entries(networks, wild, prior).values)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_fewer_than_three_networks_are_refused(count):
    _, prior, networks, totals, _ = _world(0)
    with pytest.raises(InvalidValueError, match=rf"needs at least three networks .*Got {count}\."):
        solve_entries(networks[:count], totals[:count], prior)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_costs_that_are_none_are_refused(bad):
    _, prior, networks, totals, _ = _world(0)
    totals[3] = bad
    with pytest.raises(InvalidValueError, match=r"with positive, finite costs"):
        solve_entries(networks, totals, prior)
