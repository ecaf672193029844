# SPDX-License-Identifier: Apache-2.0
"""From raw samples to a table and a validation, on simulated noisy machines whose truth is known."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import PLAN, Machine, build, measure

from nni_latency.estimators import TableEstimator, estimate_selection
from nni_latency.measurement import Protocol
from nni_latency.regression import huber_locations
from nni_latency.tables import Residency, compare_tables
from nni_latency.tables._layer_schedule import Samples
from nni_latency.tables._machine import local_speed, locate, location_errors, process_error
from nni_latency.tables._summary import network_error, summarise
from nni_latency.validation import validate


def _walk(generator, count):
    """Draw how slow a machine is at each visit: constant for a while, at three time scales."""
    levels, walk = np.zeros(3), []
    for _ in range(count):
        changed = generator.random(3) < 1 / np.array([4.0, 40.0, 400.0])
        levels = np.where(changed, generator.exponential(0.1, 3), levels)
        walk.append(levels.sum())
    return np.array(walk)


@pytest.mark.parametrize("seed", range(3))
def test_local_speed_follows_the_machine(seed):
    generator = np.random.default_rng(seed)
    truth = _walk(generator, 600)
    excess, reference = truth + generator.normal(0, 0.05, 600), 0.6 * truth + generator.normal(0, 0.15, 600)
    speed = local_speed(excess, reference, 0.5)
    assert np.std(speed - truth) < 0.7 * np.std(truth)
    assert np.median(speed) == pytest.approx(0.0, abs=1e-12)


def test_local_speed_of_a_visit_does_not_depend_on_the_visit_itself():
    """Only through the few weights that all visits share."""
    generator = np.random.default_rng(0)
    truth = _walk(generator, 600)
    excess, reference = truth + generator.normal(0, 0.05, 600), truth + generator.normal(0, 0.1, 600)
    spoilt = excess.copy()
    spoilt[300] += 0.3
    change = local_speed(spoilt, reference, 0.5) - local_speed(excess, reference, 0.5)
    assert abs(change[300]) < 0.005 < 0.02 < min(change[299], change[301])


@given(st.floats(0.5, 2.0), st.integers(0, 50))
@settings(deadline=None, max_examples=20)
def test_locations_and_errors_do_not_depend_on_the_unit(factor, seed):
    generator = np.random.default_rng(seed)
    networks = np.tile(np.arange(5), 30)
    times, reference = generator.normal(0, 0.1, 150) + networks, generator.normal(0, 0.1, 150)
    one, other = (locate(times + shift, reference, networks, 5, 0.25) for shift in (0.0, np.log(factor)))
    assert other.values == pytest.approx(one.values + np.log(factor), abs=1e-6)
    assert other.errors == pytest.approx(one.errors, rel=1e-6)


@pytest.mark.parametrize("common", [0.0, 0.05])
def test_standard_errors_are_true(common):
    """Of visits that are independent, and of those in whose pieces something is in common."""
    generator, ratios = np.random.default_rng(0), []
    groups = np.tile(np.arange(12), 30)
    for _ in range(60):
        pieces = np.repeat(generator.normal(0, common, (6, 12)), 5, axis=0).ravel()
        values = pieces + generator.normal(0, 0.05, 360)
        found = huber_locations(values, groups, 12)
        ratios.append(found / location_errors(values - found[groups], groups, 12))
    assert 0.85 < np.sqrt(np.mean(np.square(ratios))) < 1.2


def _of_processes(generator, error, *, n_groups=100, n_samples=30):
    """Draw times of groups in three processes, in which each group is faster or slower; the groups differ in noise."""
    groups, processes = (
        np.repeat(np.arange(n_groups), 3 * n_samples),
        np.tile(np.repeat([0, 1, 2], n_samples), n_groups),
    )
    placed = generator.normal(0, error, (n_groups, 3))[groups, processes]
    noise = generator.choice([0.01, 0.03, 0.2], n_groups)[groups]
    return placed + groups + noise * generator.standard_t(3, len(groups)), groups, processes


@pytest.mark.parametrize("truth", [0.0, 0.01, 0.03])
def test_error_of_processes_is_the_true_one(truth):
    values, groups, processes = _of_processes(np.random.default_rng(0), truth)
    assert process_error(values, groups, processes, 100) == pytest.approx(truth, rel=0.15, abs=0.004)


def test_error_of_processes_is_none_in_one_process_and_of_equal_times():
    values, groups, processes = _of_processes(np.random.default_rng(0), 0.03)
    assert process_error(values, groups, np.zeros_like(processes), 100) == 0.0
    assert process_error(groups.astype(float), groups, processes, 100) == 0.0
    assert process_error(values[:3], groups[:3], processes[:3], 100) == 0.0


@pytest.mark.parametrize("truth", [0.005, 0.012, 0.03])
def test_network_error_of_many_networks_is_the_true_one(truth):
    generator = np.random.default_rng(0)
    errors = np.full(150, 0.01)
    assert network_error(generator.normal(0, np.hypot(truth, 0.01), 150), errors) == pytest.approx(truth, rel=0.4)


def test_network_error_of_no_network_is_what_is_usual():
    assert 0.012 < network_error(np.zeros(0), np.zeros(0)) < 0.03


# A table and a validation


@pytest.mark.parametrize("error", [0.012, 0.03])
def test_network_error_is_not_hidden_by_networks_of_every_round(error):
    """Costs of candidates that are fitted to a network follow its deviation, so it must be predicted from others."""
    found = [build(Machine(seed, quiet=True, error=error)).network_error for seed in range(6)]
    assert np.mean(found) == pytest.approx(error, rel=0.3)


def _validated(seed, **options):
    table = build(Machine(seed, **options))
    return validate(TableEstimator(table), PLAN, measure(Machine(seed + 1000, space=seed, **options)))


@pytest.fixture(scope="module")
def busy():
    """Tables and validations on ten busy machines."""
    return [_validated(seed) for seed in range(10)]


@pytest.mark.slow
def test_busy_machine_leaves_little_bias(busy):
    biases = np.array([found.scores.bias for found in busy])
    assert np.sqrt(np.mean(biases**2)) < 0.02
    assert abs(np.mean(biases)) < 0.01


@pytest.mark.slow
def test_busy_machine_leaves_errors_of_the_size_of_the_repeatability(busy):
    assert np.mean([found.scores.mape for found in busy]) < np.mean([found.repeatability.mape for found in busy]) + 0.01


@pytest.mark.slow
def test_lightest_network_is_predicted_on_a_busy_machine(busy):
    light = [next(item.error for item in found.results if item.name == "all skip") for found in busy]
    assert np.max(np.abs(light)) < 0.08


@pytest.mark.slow
def test_intervals_hold_what_they_promise(busy):
    assert 0.9 <= np.mean([found.coverage for found in busy]) <= 0.97


@pytest.mark.slow
def test_intervals_hold_what_they_promise_on_quiet_machines():
    assert 0.9 <= np.mean([_validated(seed, quiet=True).coverage for seed in range(10)]) <= 0.99


@pytest.mark.slow
def test_intervals_follow_how_well_sums_hold():
    """Few networks tell, so intervals are too wide where sums hold better than usual, and a little narrow elsewhere."""
    small, large = ([_validated(seed, error=error) for seed in range(6)] for error in (0.006, 0.03))
    assert np.mean([found.coverage for found in small]) > 0.95
    assert 0.85 <= np.mean([found.coverage for found in large]) <= 0.97
    widths = [np.mean([item.predicted.spread for one in found for item in one.results]) for found in (small, large)]
    assert widths[1] > 1.4 * widths[0]


def _agreement(seed, **options):
    builds = (build(Machine(seed + day, space=seed, **options)) for day in (0, 1000))
    return compare_tables(*builds).agreement


@pytest.mark.slow
@pytest.mark.parametrize("quiet", [False, True])
def test_entries_of_two_builds_agree_within_their_intervals(quiet):
    """Each build has processes of its own, which place weights and activations elsewhere."""
    assert 0.88 <= np.mean([_agreement(seed, quiet=quiet) for seed in range(8)]) <= 0.98


def test_intervals_are_wider_where_processes_differ():
    same, other = (build(Machine(0, quiet=True, placement=placement)).entries for placement in (0.0, 0.01))
    assert np.median([entry.spread for entry in other]) > 1.5 * np.median([entry.spread for entry in same])


def test_interval_of_a_very_noisy_entry_stays_above_zero():
    """Samples of one entry that differ by a factor of a hundred, in three processes."""
    machine = Machine(0)
    machine.noise = 1.5
    assert all(0 < entry.low <= entry.value for entry in build(machine, rounds=6).entries)


def test_quiet_machine_has_small_errors():
    found = [_validated(seed, quiet=True) for seed in range(3)]
    assert np.mean([item.scores.mape for item in found]) < 0.018
    assert all(item.scores.within10 == 1.0 for item in found)


def test_machine_without_a_cache_effect_gets_no_bias_in_light_networks():
    found = [_validated(seed, curve=Residency(0.0, 1.0)) for seed in range(5)]
    light = [next(item.error for item in one.results if item.name == "all skip") for one in found]
    assert abs(np.mean(light)) < 0.04


def test_equal_operators_have_one_cost():
    table = build(Machine(0), rounds=12)
    alike = {}
    for layer in table.layers:
        for entry in layer.entries.values():
            alike.setdefault(entry.op.op_key, set()).add((entry.value, entry.low, entry.high, entry.n_samples))
    assert max(map(len, alike.values())) == 1


def test_network_error_widens_the_estimate_of_a_network():
    table = build(Machine(0), rounds=12)
    estimate = estimate_selection(TableEstimator(table), PLAN, PLAN.reference)
    assert (estimate.high - estimate.low) / (2 * 1.96 * estimate.value) >= table.network_error > 0


def test_table_of_many_samples_is_summarised_quickly():
    samples = Samples(PLAN.sizes)
    for record in Machine(0).rounds(60):
        samples.add(record)
    begin = time.process_time()
    summarise(PLAN, Machine.platform, Protocol(), samples)
    assert time.process_time() - begin < 3.0
