# SPDX-License-Identifier: Apache-2.0
"""Tables of runtimes that run a network as one piece."""

from __future__ import annotations

import dataclasses
import random

import pytest
from building import Stopped, store_of

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.estimators import TableEstimator
from nni_latency.measurement import Protocol
from nni_latency.tables import LookupTable, build_table
from nni_latency.testing import FakeRuntime, fake_plan

_LAYERS = {
    "stem": {"conv": 0.5},
    **{
        f"layer{index}": {"x": 0.25 + 0.05 * index, "y": 0.5 + 0.1 * index, "z": 1.0, "skip": 0.01}
        for index in range(6)
    },
}
_PROTOCOL = Protocol(rounds=6, time_budget=1e9, max_measure_execution_time=1e9)


class OutsideRuntime(FakeRuntime):
    """A runtime whose networks take `price` more than their parts, and a share of what those take elsewhere."""

    supports_layer_timing = False
    speed, price = 0.5, 0.125

    def __init__(self, latencies, inner=None, **arguments):
        super().__init__(latencies, **arguments)
        self.inner = inner
        self.loaded = 0

    def prepare(self, subject, inputs):
        """Compile a whole network."""
        run = super().prepare(subject, inputs)
        self.loaded += 1

        def stage(inputs):
            before = self.clock.now
            outputs = run(inputs)
            self.clock.now = before + self.speed * (self.clock.now - before) + self.price
            return outputs

        return stage

    def stand_in(self):
        """Return the runtime that was given."""
        return self.inner


def _plan():
    return fake_plan(_LAYERS, fixed=["stem"])


def _inner(latencies, seed=0, **arguments):
    """Return a runtime on which every operator takes up to a fifth more or less."""
    generator = random.Random(seed)
    return FakeRuntime({key: cost * generator.uniform(0.8, 1.2) for key, cost in latencies.items()}, **arguments)


def _build(path, *, stand_in=True, protocol=_PROTOCOL, runtime=None, **options):
    plan, latencies = _plan()
    runtime = runtime or OutsideRuntime(latencies, _inner(latencies) if stand_in else None)
    return build_table(plan, runtime, protocol, path, **{"store": store_of(path), **options})


def _batches(path):
    """Return the networks of every batch that was measured for a table, as indices."""
    found = {}
    for campaign in store_of(path).campaigns(kind="solved"):
        for record in campaign.records:
            network = tuple(map(int, record.subjects[0].split(",")))
            found.setdefault(record.process, {}).setdefault(record.round, []).append(network)
    return [list(rounds.values()) for rounds in found.values()]


def _flat(table):
    return [entry.value for layer in table.layers for entry in layer.entries.values()]


def _worst(table):
    """Compare what the table says of networks with what they take."""
    estimator, generator = TableEstimator(table), random.Random(1)
    errors = []
    for _ in range(100):
        sample = {name: generator.choice(list(column)) for name, column in _LAYERS.items() if name != "stem"}
        true = 0.125 + 0.5 * (0.5 + sum(_LAYERS[name][choice] for name, choice in sample.items()))
        errors.append(abs(estimator.estimate_sample(sample).value / true - 1))
    return max(errors)


def test_table_predicts_whole_networks(tmp_path):
    assert _worst(_build(tmp_path / "t.json")) < 0.05


def test_table_without_a_stand_in_predicts_whole_networks(tmp_path):
    """What is known of the candidates is what they compute, which here is the same for all."""
    table = _build(tmp_path / "t.json", stand_in=False, protocol=dataclasses.replace(_PROTOCOL, rounds=7))
    assert _worst(table) < 0.05


def test_more_batches_are_better(tmp_path):
    few, many = (
        _worst(_build(tmp_path / f"{rounds}.json", protocol=dataclasses.replace(_PROTOCOL, rounds=rounds)))
        for rounds in (1, 7)
    )
    assert many < 0.5 * few


def test_table_is_of_the_runtime_and_not_of_its_stand_in(tmp_path):
    plan, latencies = _plan()
    runtime = OutsideRuntime(latencies, _inner(latencies))
    table = build_table(plan, runtime, _PROTOCOL, tmp_path / "t.json", store="memory")
    assert (table.platform, table.protocol, table.rounds) == (runtime.platform, _PROTOCOL, 6)
    assert table.coverage == 1.0
    assert LookupTable.load(tmp_path / "t.json") == table


def test_table_tells_the_time_of_the_reference_network(tmp_path):
    plan, _ = _plan()
    costs = [_LAYERS[name][choice] for name, choice in plan.reference.items()]
    assert _build(tmp_path / "t.json").reference == pytest.approx(0.125 + 0.5 * sum(costs), rel=1e-9)


@pytest.mark.slow
def test_machine_that_slows_down_gives_the_same_table(tmp_path):
    done = [0]
    plan, latencies = _plan()
    runtime = OutsideRuntime(latencies, _inner(latencies), drift=lambda: 1.5 if done[-1] >= 40 else 1.0)
    runtime.price = 0.0
    slow = build_table(
        plan,
        runtime,
        _PROTOCOL,
        tmp_path / "slow.json",
        store="memory",
        on_progress=lambda progress: done.append(progress.rounds),
    )
    assert slow.drift[-1] == pytest.approx(1.5 * slow.drift[0], rel=1e-4)
    other = OutsideRuntime(latencies, _inner(latencies))
    other.price = 0.0
    steady = build_table(plan, other, _PROTOCOL, tmp_path / "steady.json", store="memory")
    assert _flat(slow) == pytest.approx(_flat(steady), rel=1e-6)


def test_every_network_is_prepared_once_a_batch(tmp_path):
    plan, latencies = _plan()
    runtime = OutsideRuntime(latencies, _inner(latencies))
    build_table(plan, runtime, _PROTOCOL, tmp_path / "t.json", store=store_of(tmp_path / "t.json"))
    assert runtime.loaded == sum(len(rounds[0]) for rounds in _batches(tmp_path / "t.json"))


def test_every_batch_has_the_reference_network_once(tmp_path):
    plan, _ = _plan()
    _build(tmp_path / "t.json")
    reference = plan.indices_of(plan.reference)
    counts = [[networks.count(reference) for networks in rounds] for rounds in _batches(tmp_path / "t.json")]
    assert counts == [[1] * 10] * 6


def test_batches_hold_every_candidate(tmp_path):
    plan, _ = _plan()
    _build(tmp_path / "t.json")
    networks = [network for rounds in _batches(tmp_path / "t.json") for network in rounds[0]]
    assert [set(column) for column in zip(*networks, strict=True)] == [set(range(size)) for size in plan.sizes]


def _stop(progress):
    if progress.rounds == 30:
        raise Stopped("stopped")


@pytest.mark.slow
@pytest.mark.parametrize("stand_in", [True, False])
def test_build_goes_on_where_it_was(tmp_path, stand_in):
    out = tmp_path / "t.json"
    with pytest.raises(Stopped, match=r"stopped"):
        _build(out, stand_in=stand_in, on_progress=_stop)
    seen = []
    resumed = _build(out, stand_in=stand_in, on_progress=seen.append)
    assert {progress.resumed for progress in seen} == {30}
    whole = _build(tmp_path / "whole.json", stand_in=stand_in)
    assert _flat(resumed) == pytest.approx(_flat(whole), rel=1e-6)
    assert (resumed.rounds, resumed.drift) == (whole.rounds, whole.drift)


def test_resumed_build_does_not_measure_the_prior_again(tmp_path):
    out = tmp_path / "t.json"
    with pytest.raises(Stopped, match=r"stopped"):
        _build(out, on_progress=_stop)
    plan, latencies = _plan()
    inner = _inner(latencies)
    build_table(plan, OutsideRuntime(latencies, inner), _PROTOCOL, out, store=store_of(out))
    assert inner.clock.now == 0.0


def test_starting_over_measures_the_prior_again(tmp_path):
    """It may have been measured for another space, on another machine, or with a mistake."""
    out = tmp_path / "t.json"
    with pytest.raises(Stopped, match=r"stopped"):
        _build(out, on_progress=_stop)
    plan, latencies = _plan()
    inner = _inner(latencies)
    build_table(plan, OutsideRuntime(latencies, inner), _PROTOCOL, out, store=store_of(out), fresh=True)
    assert inner.clock.now > 0.0


def test_prior_of_another_space_is_not_used(tmp_path):
    """It is left behind when a build is stopped before its first batch, or started over for another space."""
    out = tmp_path / "t.json"
    with pytest.raises(Stopped, match=r"stopped"):
        _build(out, on_progress=_stop)
    layers = {"a": {"x": 1.0, "y": 2.0}, "b": {"x": 0.5, "y": 4.0}}
    plan, latencies = fake_plan(layers)
    table = build_table(
        plan, OutsideRuntime(latencies, FakeRuntime(latencies)), _PROTOCOL, out, store=store_of(out), fresh=True
    )
    estimate = TableEstimator(table).estimate_sample({"a": "y", "b": "y"}).value
    assert estimate == pytest.approx(0.125 + 0.5 * 6.0, rel=0.05)


def test_finished_build_leaves_nothing_behind(tmp_path):
    _build(tmp_path / "t.json")
    assert {path.name for path in tmp_path.iterdir()} == {"t.json"}


def test_candidate_that_fails_in_the_stand_in_is_left_out(tmp_path):
    plan, latencies = _plan()
    broken = next(key for key in latencies if "choice=y,layer=layer2" in key)

    class Broken(FakeRuntime):
        def prepare(self, subject, inputs):
            if subject.digest == broken:
                raise ValueError("not this one")
            return super().prepare(subject, inputs)

    table = build_table(
        plan, OutsideRuntime(latencies, Broken(latencies)), _PROTOCOL, tmp_path / "t.json", store="memory"
    )
    assert table.missing == (("layer2", "y"),)
    assert dict(table["layer2"].failures) == {"y": "ValueError: not this one"}


def _refusing(latencies, refused):
    class Refusing(OutsideRuntime):
        def prepare(self, subject, inputs):
            choices = {f"{layer}:{choice}" for layer, choice in subject.specification.get("selection", {}).items()}
            if refused <= choices:
                raise RuntimeError("does not compile")
            return super().prepare(subject, inputs)

    return Refusing(latencies, _inner(latencies))


def test_networks_that_fail_are_left_out(tmp_path):
    plan, latencies = _plan()
    runtime = _refusing(latencies, {"layer0:z", "layer1:skip"})
    table = build_table(plan, runtime, dataclasses.replace(_PROTOCOL, rounds=7), tmp_path / "t.json", store="memory")
    assert table.coverage == 1.0
    assert _worst(table) < 0.06


def test_reference_network_that_fails_ends_the_build(tmp_path):
    plan, latencies = _plan()
    reference = {f"{layer}:{choice}" for layer, choice in plan.reference.items()}
    message = r"The reference network cannot be run: RuntimeError: does not compile\."
    with pytest.raises(MeasurementError, match=message):
        build_table(plan, _refusing(latencies, reference), _PROTOCOL, tmp_path / "t.json", store="memory")


def test_progress_tells_batches_and_share(tmp_path):
    seen = []
    _build(tmp_path / "t.json", on_progress=seen.append)
    assert {progress.rounds for progress in seen} == set(range(1, 61))
    assert seen[-1].share == 1.0
    assert all(progress.share >= progress.rounds // 10 / 6 - 1e-6 for progress in seen)


def test_progress_never_goes_back(tmp_path):
    seen = []
    _build(tmp_path / "t.json", on_progress=seen.append)
    assert [progress.rounds for progress in seen] == sorted(progress.rounds for progress in seen)
    assert [progress.spent for progress in seen] == sorted(progress.spent for progress in seen)


def test_budget_that_is_too_small_for_three_networks_is_refused(tmp_path):
    """All networks but the reference network fail, and one batch is all that there is."""
    plan, latencies = _plan()
    reference = plan.reference

    class Refusing(OutsideRuntime):
        def prepare(self, subject, inputs):
            if subject.specification.get("selection", reference) != reference:
                raise RuntimeError("does not compile")
            return super().prepare(subject, inputs)

    runtime = Refusing(latencies, _inner(latencies))
    with pytest.raises(InvalidValueError, match=r"before three networks were measured"):
        build_table(plan, runtime, dataclasses.replace(_PROTOCOL, rounds=1), tmp_path / "t.json", store="memory")
