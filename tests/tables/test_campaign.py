# SPDX-License-Identifier: Apache-2.0
"""Rounds until every candidate is known well enough, whatever fails on the way."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest
from building import LATENCIES, PROTOCOL, Stopped, build, choice_runtime, make_plan, rounds_of, store_of, values

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.measurement import Protocol, fewest_samples, time_chain
from nni_latency.tables import LookupTable, build_table
from nni_latency.testing import FakeClock, FakeRuntime, fake_plan

_LONG = Protocol(rounds=200, time_budget=1e9, max_measure_execution_time=1e9)


def _fail(message="broken"):
    raise ValueError(message)


def _build(path, latencies, *, troubles=None, protocol=_LONG, fixed=(), **options):
    """Build a table of invented candidates; ``troubles`` are what some of them do when they run."""
    plan, by_op_key = fake_plan(latencies, fixed=fixed)
    arguments = {key: options.pop(key) for key in ("noise", "drift", "clock") if key in options}
    runtime = choice_runtime(plan, by_op_key, troubles or {}, **arguments)
    return build_table(plan, runtime, protocol, path, **{"store": store_of(path), **options})


def _noisy(clock, seed=0):
    """Return what a candidate does whose time is anything from once to three times a second."""
    generator = random.Random(seed)
    return lambda: clock.advance(2.0 * generator.random())


class _DividingRuntime(FakeRuntime):
    """A runtime that compiles a chain to one network, and returns the times of its parts."""

    divides = True

    def join(self, stages, value):
        return lambda value: [self._times(stages, value)]

    def divide(self, stage, value, runs):
        return [stage(value)[0] for _ in range(runs)]

    def _times(self, stages, value):
        return time_chain(stages, value, self.clock)


def test_networks_whose_time_is_spent_before_all_runs_of_the_whole_have_entries(tmp_path):
    plan, by_op_key = fake_plan({"a": {"x": 1.0, "y": 2.0}, "b": {"x": 3.0, "y": 4.0}})
    protocol = Protocol(n_warmup=0, n_run=5, rounds=4, time_budget=1e9, max_measure_execution_time=10.0)
    table = build_table(plan, _DividingRuntime(by_op_key), protocol, tmp_path / "t.json", store="memory")
    assert values(table) == {"a": {"x": 1.0, "y": 2.0}, "b": {"x": 3.0, "y": 4.0}}


# Early end


def test_build_ends_once_all_intervals_are_narrow(tmp_path):
    """Without noise that takes the fewest samples that have an interval; the rounds are looked at by fours."""
    table = _build(tmp_path / "t.json", {"a": {"x": 1.0, "y": 2.0, "z": 3.0}})
    fewest = fewest_samples(_LONG.statistic, _LONG.confidence)
    assert fewest == 13
    assert table.rounds == 16
    assert table.unsettled == ()


@pytest.mark.parametrize("noise", [0.0, 1e-9])
def test_build_of_a_half_width_of_zero_spends_all_rounds(tmp_path, noise):
    generator = random.Random(0)
    protocol = dataclasses.replace(_LONG, rounds=30, half_width=0.0)
    latencies = {"a": {"x": 1.0, "y": 2.0}}
    table = _build(tmp_path / "t.json", latencies, protocol=protocol, noise=lambda: noise * generator.random())
    assert table.rounds == 30


_EIGHT = dict.fromkeys(["one", "two", "three", "four", "noisy", "six", "seven", "eight"], 1.0)


def test_later_rounds_deal_only_what_is_not_settled(tmp_path):
    clock = FakeClock()
    protocol = dataclasses.replace(_LONG, rounds=60)
    latencies = {"a": _EIGHT}
    table = _build(tmp_path / "t.json", latencies, troubles={"a:noisy": _noisy(clock)}, clock=clock, protocol=protocol)
    assert table.rounds == 60
    assert table["a"]["two"].n_samples == 16
    assert table["a"]["noisy"].n_samples == 60
    # The first candidate is a reference network of this plan of one layer, which every round visits.
    assert table["a"]["one"].n_samples == 60


def test_later_rounds_are_as_short_as_what_is_left(tmp_path):
    clock = FakeClock()
    latencies = {"a": _EIGHT}
    _build(
        tmp_path / "t.json",
        latencies,
        troubles={"a:noisy": _noisy(clock)},
        clock=clock,
        protocol=dataclasses.replace(_LONG, rounds=20),
    )
    sizes = [len(networks) for networks in rounds_of(tmp_path / "t.json", fake_plan(latencies)[0])]
    # The noisy one is one of the three reference networks, which are visited in every round.
    assert sizes == [8] * 16 + [3] * 4


def test_what_did_not_settle_is_listed(tmp_path):
    clock = FakeClock()
    protocol = dataclasses.replace(_LONG, rounds=40)
    table = _build(
        tmp_path / "t.json",
        {"a": {"quiet": 1.0, "noisy": 1.0}, "b": {"x": 2.0}},
        troubles={"a:noisy": _noisy(clock)},
        clock=clock,
        protocol=protocol,
    )
    assert table.unsettled == (("a", "noisy"),)
    assert LookupTable.load(tmp_path / "t.json").unsettled == (("a", "noisy"),)


def test_progress_counts_what_is_not_settled(tmp_path):
    clock, seen = FakeClock(), []
    _build(
        tmp_path / "t.json",
        {"a": {"quiet": 1.0, "calm": 1.0, "noisy": 1.0}},
        troubles={"a:noisy": _noisy(clock)},
        clock=clock,
        protocol=dataclasses.replace(_LONG, rounds=20),
        on_progress=seen.append,
    )
    assert [progress.unsettled for progress in seen] == [3] * 15 + [1] * 5


def test_candidate_too_short_to_matter_is_settled(tmp_path):
    """However uncertain: its interval is not to be seen in the time of any network."""
    clock, generator = FakeClock(), random.Random(0)
    latencies = {"a": {"x": 1.0, "y": 1.0}, "b": {"tiny": 1e-6, "x": 1.0}}
    troubles = {"b:tiny": lambda: clock.advance(1e-5 * generator.random())}
    table = _build(tmp_path / "t.json", latencies, troubles=troubles, clock=clock)
    entry = table["b"]["tiny"]
    assert entry.half_width > _LONG.half_width * entry.value
    assert table.rounds <= 16
    assert table.unsettled == ()


# Budget and warm-up


def test_budget_that_does_not_suffice_for_one_round_is_refused(tmp_path):
    clock = FakeClock()
    protocol = Protocol(n_warmup=0, time_budget=2.5)
    message = r"budget of 2\.50? s is too small for one round of 3 networks, .* 3\.\d+ s: nothing would be measured"
    with pytest.raises(InvalidValueError, match=message):
        _build(tmp_path / "t.json", {"a": dict.fromkeys("xyz", 1.0)}, clock=clock, protocol=protocol, timer=clock.mark)
    assert not (tmp_path / "t.json").exists()


def test_a_budget_far_too_small_is_told_before_the_round_ends(tmp_path):
    clock = FakeClock()
    protocol = Protocol(n_warmup=0, time_budget=1.5)
    latencies = {"a": dict.fromkeys("uvwxyz", 1.0)}
    with pytest.raises(InvalidValueError, match=r"one round of 6 networks, which takes about 6\.\d+ s: nothing"):
        _build(tmp_path / "t.json", latencies, clock=clock, protocol=protocol, timer=clock.mark)


def _warm_up_rounds(tmp_path, factors):
    """Count the rounds before the first that counts, where the machine is slower by a factor in each."""
    networks, visits = 3, {"count": 0}

    def drift():
        # Of the candidates and of the reference, which comes twice a visit: five runs in all, after three to load.
        done = max(0, visits["count"] - 3) // (5 * networks)
        visits["count"] += 1
        return factors[done] if done < len(factors) else 1.0

    protocol = dataclasses.replace(_LONG, rounds=1, n_warmup=2)
    first = []
    table = _build(
        tmp_path / "t.json",
        {"a": {"x": 1.0, "y": 2.0, "z": 4.0}},
        drift=drift,
        protocol=protocol,
        on_progress=lambda _progress: first.append((visits["count"] - 3) // (5 * networks)),
    )
    return first[0] - 1, table


@pytest.mark.parametrize(
    ("factors", "rounds"),
    [
        ([], 2),
        ([2.0], 3),
        ([8.0, 4.0, 2.0], 5),
        ([1.04, 1.0], 2),
        # It is given up after ten.
        ([2.0**power for power in range(12, 0, -1)], 10),
    ],
)
def test_warm_up_repeats_until_two_rounds_agree(tmp_path, factors, rounds):
    assert _warm_up_rounds(tmp_path, factors)[0] == rounds


def test_slow_first_rounds_leave_no_trace(tmp_path):
    _, table = _warm_up_rounds(tmp_path, [8.0, 4.0, 2.0])
    assert values(table) == {"a": {"x": 1.0, "y": 2.0, "z": 4.0}}
    assert table.drift == (float(f"{FakeRuntime.reference_time:.6g}"),)


# The reference network


def test_every_round_visits_the_reference_networks(tmp_path):
    plan, _ = make_plan()
    build(tmp_path / "t.json")
    references = [plan.indices_of(reference) for reference in plan.references]
    assert len(set(references)) == len(references) == 3
    for networks in rounds_of(tmp_path / "t.json"):
        assert set(references) <= set(networks)


def test_table_tells_the_time_of_the_reference_network(tmp_path):
    table = build(tmp_path / "t.json")
    assert make_plan()[0].reference == {"stem": "conv", "a": "y", "b": "z", "c": "large"}
    assert table.reference == pytest.approx(0.5 + 0.25 + 0.0625 + 8.0)


def test_reference_network_that_can_not_run_is_left_out(tmp_path):
    plan, latencies = make_plan()
    runtime = choice_runtime(plan, latencies, {"a:y": _fail})
    table = build_table(plan, runtime, PROTOCOL, tmp_path / "t.json", store=store_of(tmp_path / "t.json"))
    assert table.reference is None
    assert table.missing == (("a", "y"),)


def test_rounds_after_the_first_visit_a_light_network(tmp_path):
    """It may be one of the others by chance, but the cheapest of all is met far oftener than by chance."""
    layers = {f"layer{index}": {"x": 1.0, "y": 2.0, "z": 3.0} for index in range(6)}
    generator = random.Random(0)
    protocol = dataclasses.replace(_LONG, rounds=40, half_width=0.0)
    noise = {"noise": lambda: 0.01 * generator.random()}
    _build(tmp_path / "t.json", layers, protocol=protocol, **noise)
    taken = rounds_of(tmp_path / "t.json", fake_plan(layers)[0])
    assert len(taken[0]) <= 7
    lightest = sum((0,) * 6 in networks for networks in taken)
    # A third of the rounds is sorted, where it is the first network dealt.
    assert lightest > 40 / 3


# Drift


def _slowing_down(path, *, after, rounds=8):
    """Build a table on a machine that becomes slower by half after so many rounds."""
    seen = []
    plan, latencies = make_plan()
    runtime = FakeRuntime(latencies, drift=lambda: 1.5 if len(seen) >= after else 1.0)
    protocol = dataclasses.replace(PROTOCOL, rounds=rounds, half_width=0.0)
    return build_table(plan, runtime, protocol, path, store=store_of(path), on_progress=seen.append)


def _flat(table):
    return [entry.value for layer in table.layers for entry in layer.entries.values()]


def test_machine_that_slows_down_gives_the_same_table(tmp_path):
    """The time of the reference operator tells; the speed that the table is of is that of the faster rounds."""
    slow, steady = _slowing_down(tmp_path / "slow.json", after=5), _slowing_down(tmp_path / "steady.json", after=8)
    assert _flat(slow) == pytest.approx(_flat(steady), rel=1e-3)
    assert slow.reference == pytest.approx(steady.reference, rel=5e-3)
    assert slow.calibration == pytest.approx(steady.calibration, rel=5e-3)


def test_machine_that_is_slow_most_of_the_time_changes_no_ratio(tmp_path):
    slow, steady = _slowing_down(tmp_path / "slow.json", after=1), _slowing_down(tmp_path / "steady.json", after=8)
    assert _flat(slow) == pytest.approx([1.5 * value for value in _flat(steady)], rel=5e-3)


def test_machine_that_slows_down_widens_no_interval(tmp_path):
    table = _slowing_down(tmp_path / "t.json", after=4)
    widths = [entry.half_width / entry.value for layer in table.layers for entry in layer.entries.values()]
    assert max(widths) < 0.005


def test_drift_is_recorded_by_round(tmp_path):
    table = _slowing_down(tmp_path / "t.json", after=5)
    usual = FakeRuntime.reference_time
    assert table.drift == pytest.approx([usual] * 5 + [1.5 * usual] * 3, rel=1e-5)
    assert LookupTable.load(tmp_path / "t.json").drift == table.drift


# Failures


def test_candidate_that_fails_is_left_out_and_the_reason_is_kept(tmp_path):
    plan, latencies = make_plan()
    runtime = choice_runtime(plan, latencies, {"b:y": _fail})
    table = build_table(plan, runtime, PROTOCOL, tmp_path / "t.json", store=store_of(tmp_path / "t.json"))
    expected = {name: dict(column) for name, column in LATENCIES.items()}
    del expected["b"]["y"]
    assert values(table) == expected
    assert [dict(layer.failures) for layer in table.layers] == [{}, {}, {"y": "ValueError: broken"}, {}]
    assert table.coverage == 8 / 9


def test_candidate_that_fails_later_has_no_entry_and_takes_no_other_with_it(tmp_path):
    """It was measured in several rounds before; nothing of it is kept, and all of the others is."""
    runs = itertools.count()
    plan, latencies = make_plan()
    runtime = choice_runtime(plan, latencies, {"c:large": lambda: next(runs) > 30 and _fail("worn out")})
    table = build_table(
        plan,
        runtime,
        dataclasses.replace(PROTOCOL, rounds=12),
        tmp_path / "t.json",
        store=store_of(tmp_path / "t.json"),
    )
    assert table.missing == (("c", "large"),)
    assert dict(table["c"].failures) == {"large": "ValueError: worn out"}
    assert next(runs) > 31
    assert (table.rounds, values(table)["b"]) == (12, LATENCIES["b"])


def test_candidate_that_fails_once_loaded_is_found_in_the_warm_up(tmp_path):
    runs = itertools.count()
    plan, latencies = make_plan()
    runtime = choice_runtime(plan, latencies, {"a:z": lambda: next(runs) and _fail()})
    table = build_table(plan, runtime, PROTOCOL, tmp_path / "t.json", store=store_of(tmp_path / "t.json"))
    assert (table.missing, table.rounds) == ((("a", "z"),), 6)


@pytest.mark.parametrize("stop", [False, True])
def test_resumed_build_does_not_try_again_what_failed(tmp_path, stop):
    tries = []

    def trouble():
        tries.append(1)
        _fail()

    def interrupt(progress):
        if progress.rounds == 2:
            raise Stopped("stopped")

    plan, latencies = make_plan()
    runtime = choice_runtime(plan, latencies, {"b:y": trouble})
    with pytest.raises(Stopped, match=r"stopped"):
        build_table(
            plan, runtime, PROTOCOL, tmp_path / "t.json", store=store_of(tmp_path / "t.json"), on_progress=interrupt
        )
    assert len(tries) == 1
    runtime = choice_runtime(plan, latencies, {"b:y": trouble} if stop else {})
    table = build_table(plan, runtime, PROTOCOL, tmp_path / "t.json", store=store_of(tmp_path / "t.json"))
    assert len(tries) == 1
    assert dict(table["b"].failures) == {"y": "ValueError: broken"}


def test_starting_over_tries_again_what_failed(tmp_path):
    plan, latencies = make_plan()
    out = tmp_path / "t.json"
    runtime = choice_runtime(plan, latencies, {"b:y": _fail})
    with pytest.raises(Stopped, match=r"stopped"):
        build_table(plan, runtime, PROTOCOL, out, store=store_of(out), on_progress=lambda _progress: _stop())
    (campaign,) = store_of(out).campaigns()
    assert [failure.subject for failure in campaign.failures] == ["b/y"]
    assert build_table(plan, FakeRuntime(latencies), PROTOCOL, out, store=store_of(out), fresh=True).coverage == 1.0


def _stop():
    raise Stopped("stopped")


def test_default_of_a_fixed_layer_that_fails_ends_the_build(tmp_path):
    plan, latencies = make_plan()
    message = r"Cannot run the fixed layer 'stem': ValueError: broken\."
    with pytest.raises(MeasurementError, match=message):
        build_table(
            plan,
            choice_runtime(plan, latencies, {"stem:conv": _fail}),
            PROTOCOL,
            tmp_path / "t.json",
            store=store_of(tmp_path / "t.json"),
        )


def test_variant_of_a_fixed_layer_may_fail(tmp_path):
    """Only its default is in every network."""
    layers = {"a": {"x": 1.0, "y": 2.0}, "head": {"wide": 1.0, "narrow": 0.5}}
    table = _build(tmp_path / "t.json", layers, fixed=["head"], troubles={"head:narrow": _fail})
    assert table.missing == (("head", "narrow"),)


def test_layer_all_of_whose_candidates_fail_ends_the_build(tmp_path):
    plan, latencies = make_plan()
    troubles = {"c:small": _fail, "c:large": lambda: _fail("too large")}
    message = r"Cannot run any candidate of layer 'c': ValueError: (broken|too large)\."
    with pytest.raises(MeasurementError, match=message):
        build_table(
            plan,
            choice_runtime(plan, latencies, troubles),
            PROTOCOL,
            tmp_path / "t.json",
            store=store_of(tmp_path / "t.json"),
        )
