# SPDX-License-Identifier: Apache-2.0
"""What small networks save in the cache, and finding it in the runs of whole networks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated import Seen

from nni_latency.errors import InvalidValueError
from nni_latency.measurement import Protocol, balanced_round, light_network
from nni_latency.platforms import Platform
from nni_latency.tables import Residency, fit_residency
from nni_latency.tables._layer_schedule import Round, Samples
from nni_latency.tables._summary import summarise
from nni_latency.testing import fake_plan

_residencies = st.builds(Residency, st.floats(0, 0.95), st.floats(1e-6, 1e3))
_totals = st.floats(1e-6, 1e4)


@given(_residencies, _totals, _totals)
def test_residency_rises_with_the_sum(residency, one, other):
    less, more = sorted((one, other))
    assert residency(less) <= residency(more) * (1 + 1e-12)


@given(_residencies, _totals)
def test_residency_saves_no_more_than_its_share(residency, total):
    assert total * (1 - residency.saving) * (1 - 1e-12) <= residency(total) <= total


@given(_residencies, _totals)
def test_inverse_gives_the_sum_back(residency, total):
    assert residency.inverse(residency(total)) == pytest.approx(total, rel=1e-6)


@given(_residencies, _totals, st.floats(1e-3, 1e3))
def test_scaled_is_the_same_curve_in_another_unit(residency, total, factor):
    assert residency.scaled(factor)(total * factor) == pytest.approx(residency(total) * factor, rel=1e-9)


@given(_residencies, st.lists(_totals, min_size=1, max_size=5))
def test_residency_takes_arrays(residency, totals):
    assert residency(np.array(totals)).tolist() == pytest.approx([residency(total) for total in totals], rel=1e-12)


@pytest.mark.parametrize("saving", [-0.1, 1.0, math.nan])
def test_residency_refuses_a_saving_that_is_no_share(saving):
    with pytest.raises(InvalidValueError, match=rf"'saving' of a residency must be in \[0, 1\)\. Got {saving!r}"):
        Residency(saving, 1.0)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_residency_refuses_a_scale_that_is_no_sum(scale):
    with pytest.raises(InvalidValueError, match=rf"'scale' of a residency must be positive and finite\. Got {scale!r}"):
        Residency(0.5, scale)


def _runs(*, saving=0.0, scale=1.0, factor=1.0, noise=0.02, count=600, seed=0, smallest=0.5):
    """Draw sums of networks from `smallest` to 10, and the times of runs, whose median is that of the curve."""
    generator = np.random.default_rng(seed)
    sums = np.exp(generator.uniform(math.log(smallest), math.log(10.0), count))
    deviations = generator.normal(0.0, noise, count)
    totals = factor * sums * (1 - saving * np.exp(-factor * sums / scale))
    return sums, totals * np.exp(deviations)


def _worst(fitted, *, saving, scale, factor):
    calibration, residency = fitted
    sums = np.geomspace(0.5, 10.0, 50)
    true = factor * sums * (1 - saving * np.exp(-factor * sums / scale))
    return float(np.abs(residency(sums * calibration) / true - 1).max())


#: What the scale of the curve is taken for: 0.3 times the median of the sums that `_runs` draws.
_SCALE = 0.3 * float(np.median(_runs()[0]))


@pytest.mark.parametrize("saving", [0.1, 0.18, 0.3, 0.55])
@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_fit_finds_the_curve(saving, factor):
    curve = {"saving": saving, "scale": _SCALE * factor, "factor": factor}
    assert _worst(fit_residency(*_runs(**curve, noise=0.005)), **curve) < 0.01


@pytest.mark.parametrize("share", [0.6, 1.6])
def test_fit_of_a_curve_of_another_scale_is_nearer_than_a_factor(share):
    """The scale is fixed, and a saving that makes up for it leaves less than half of the error."""
    curve = {"saving": 0.3, "scale": share * _SCALE, "factor": 1.0}
    sums, totals = _runs(**curve, noise=0.005)
    plain = (float(np.median(totals / sums)), Residency(0.0, 1.0))
    assert _worst(fit_residency(sums, totals), **curve) < _worst(plain, **curve) / 2


def test_fit_of_few_noisy_runs_stays_near_what_is_usual():
    fits = [fit_residency(*_runs(saving=0.18, scale=_SCALE, noise=0.08, count=40, seed=seed)) for seed in range(20)]
    savings = [0.0 if curve is None else curve.saving for _, curve in fits]
    assert 0.1 < np.mean(savings) < 0.26
    assert max(savings) < 0.35


def test_runs_that_show_nothing_leave_the_usual_curve():
    _, curve = fit_residency(*_runs(noise=0.5, count=10))
    assert curve.saving == pytest.approx(0.18, abs=0.05)


def test_run_that_counts_little_changes_little():
    sums, totals = _runs(saving=0.18, scale=_SCALE)
    spoilt = totals * np.where(np.arange(len(sums)) < 200, 1.2, 1.0)
    weights = np.where(np.arange(len(sums)) < 200, 1e-9, 1.0)
    (factor, curve), (other, rest) = fit_residency(sums, spoilt, weights), fit_residency(sums[200:], totals[200:])
    assert (factor, curve.saving) == pytest.approx((other, rest.saving), rel=0.05)


@pytest.mark.parametrize("factor", [1.0, 1.07])
def test_fit_finds_no_curve_where_there_is_none(factor):
    calibration, residency = fit_residency(*_runs(factor=factor))
    assert residency is None
    assert calibration == pytest.approx(factor, rel=0.005)


def test_fit_finds_no_curve_where_networks_are_all_alike():
    """A curve cannot be told from a factor there, however much they save."""
    _, residency = fit_residency(*_runs(saving=0.4, scale=8.0, smallest=8.0))
    assert residency is None


def test_fit_without_noise_and_saving_is_exact():
    assert fit_residency([1.0, 2.0, 5.0], [1.5, 3.0, 7.5]) == (pytest.approx(1.5, rel=1e-12), None)


def test_fit_does_not_depend_on_the_unit():
    sums, totals = _runs(saving=0.3, scale=_SCALE)
    (one, curve), (other, small) = fit_residency(sums, totals), fit_residency(sums * 1e-3, totals * 1e-3)
    assert other == pytest.approx(one, rel=1e-9)
    assert (small.saving, small.scale) == (pytest.approx(curve.saving), pytest.approx(curve.scale * 1e-3))


def test_fit_does_not_depend_on_the_order_of_the_runs():
    sums, totals = _runs(saving=0.3, scale=_SCALE)
    calibration, curve = fit_residency(sums[::-1], totals[::-1])
    assert (calibration, curve.saving, curve.scale) == pytest.approx(
        (lambda one, other: (one, other.saving, other.scale))(*fit_residency(sums, totals)), rel=1e-9
    )


# From samples to a table

_LAYERS = {f"layer{index}": {"skip": 0.02, "small": 0.2, "middle": 0.5, "large": 1.0} for index in range(8)}
_CURVE = Residency(0.35, 1.0)


def _samples(curve, rounds=60, noise=0.01):
    """Measure networks of which each runs as fast as the curve says, all its parts alike."""
    plan, _ = fake_plan(_LAYERS)
    costs = [list(column.values()) for column in _LAYERS.values()]
    samples, generator = Samples(plan.sizes), np.random.default_rng(1)
    for index in range(rounds):
        networks = balanced_round(plan.sizes, index, costs=costs, alignment=(0.0, 1.0, 0.5)[index % 3])
        networks.append(light_network([range(4)] * 8, costs, index))
        visits = []
        for network in networks:
            parts = np.array([cost[choice] for cost, choice in zip(costs, network, strict=True)])
            share = curve(float(parts.sum())) / parts.sum()
            times = parts * share * np.exp(generator.normal(0.0, noise, 8))
            whole = float(parts.sum() * share * np.exp(generator.normal(0.0, noise)))
            visits.append(Seen(2.0**-10, [times.tolist()], [whole]))
        samples.add(Round(tuple(networks), tuple(visits)))
    return plan, samples


def _predicted(table, network):
    total = table.calibration * sum(
        layer.entries[layer.choices[choice]].value for layer, choice in zip(table.layers, network, strict=True)
    )
    return total if table.residency is None else table.residency(total)


def _true(curve, network):
    return curve(sum(list(column.values())[choice] for column, choice in zip(_LAYERS.values(), network, strict=True)))


def test_table_of_a_machine_with_a_cache_predicts_light_and_heavy_networks():
    plan, samples = _samples(_CURVE)
    table = summarise(plan, Platform("pi", "fake"), Protocol(statistic=0.5), samples)
    networks = [(choice,) * 8 for choice in range(4)] + [(0, 1, 2, 3) * 2, (0, 0, 0, 0, 1, 1, 1, 1)]
    errors = [_predicted(table, network) / _true(_CURVE, network) - 1 for network in networks]
    # The smallest one, all skips, lies at the very end of the curve.
    assert max(map(abs, errors)) < 0.03


def test_table_of_a_machine_without_a_cache_has_no_curve():
    plan, samples = _samples(lambda total: total)
    table = summarise(plan, Platform("pi", "fake"), Protocol(statistic=0.5), samples)
    assert table.residency is None
    assert table.calibration == pytest.approx(1.0, rel=0.01)
    assert table["layer3"]["large"].value == pytest.approx(1.0, rel=0.01)


def test_entries_are_what_candidates_cost_in_a_large_network():
    """Samples from small networks, where everything is faster, do not make them smaller."""
    plan, samples = _samples(_CURVE)
    table = summarise(plan, Platform("pi", "fake"), Protocol(statistic=0.5), samples)
    for choice, cost in _LAYERS["layer0"].items():
        values = [layer.entries[choice].value * table.calibration for layer in table.layers]
        assert sum(values) / len(values) == pytest.approx(cost, rel=0.06)
