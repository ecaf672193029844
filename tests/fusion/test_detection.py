# SPDX-License-Identifier: Apache-2.0
"""Which operators run as one kernel, found out on invented devices."""

from __future__ import annotations

import itertools

import pytest
from fusing_devices import CONSTANT, PROBES, PROTOCOL, TRUE, Telling, fusing, seconds_of

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.fusion import FusionSchedule, detect_fusion, parse_probes, read_rules
from nni_latency.measurement import LocalBenches, MemoryStore
from nni_latency.testing import FakeRuntime, check_runtime, check_schedule


class _Blocked(Telling):
    """A runtime whose convolutions work in a layout that other operators know only in whole blocks, or never."""

    _PLAIN, _BLOCKS = ("copy",), {"cat": 16, "max_pool2d": 16, "mul": 8}

    def layout_changes(self, subject, inputs):
        """Count the inputs of convolutions, the last result, and the way out and back."""
        kinds, (_, channels, *_) = subject.specification["kinds"], subject.specification["input_shape"]
        taken = len(inputs) if isinstance(inputs, tuple) else 1
        between = [kind for kind in kinds if kind != "conv2d"]
        way = [1 + taken for kind in between if kind in self._PLAIN or channels % self._BLOCKS.get(kind, 1)]
        return taken + 1 + sum(way)


def _fused(rules):
    return {rule.kinds for rule in rules.fused}


def _detect(runtime, tmp_path, **options):
    return detect_fusion(runtime, PROTOCOL, tmp_path / "rules.json", **{"probes": PROBES, "store": "memory", **options})


def test_what_the_device_fuses_is_found(tmp_path):
    rules = _detect(fusing(), tmp_path)
    assert _fused(rules) == _fused(TRUE)
    assert len(rules.rules) == len(PROBES)
    assert not rules.unclear
    assert [rule.kinds for rule in rules.rules if rule.folds] == [("conv2d", "batch_norm")]


def test_what_the_runtime_adds_to_a_run_is_taken_off(tmp_path):
    rules = _detect(fusing(), tmp_path)
    assert rules.constant == pytest.approx(CONSTANT)
    times = next(rule.times for rule in rules.rules if rule.kinds == ("conv2d", "relu"))
    assert (times.before, times.last, times.together) == pytest.approx((4e-4, 1e-4, 4e-4))
    assert times.share == pytest.approx(1)


def test_operators_that_leave_the_layout_of_convolutions_are_found(tmp_path):
    rules = _detect(_Blocked(lambda subject: [("kernel", tuple(subject.specification["kinds"]))]), tmp_path)
    assert rules.plain == ("copy",)
    assert rules.blocks == {"max_pool2d": 16, "mul": 8, "cat": 16}
    assert read_rules(tmp_path / "rules.json") == rules


def test_a_device_that_fuses_nothing_has_no_rule_that_does(tmp_path):
    assert not _detect(FakeRuntime(seconds_of, noise=lambda: CONSTANT), tmp_path).fused


def test_measuring_ends_when_everything_is_clear(tmp_path):
    rounds = []
    _detect(fusing(), tmp_path, on_progress=lambda state: rounds.append(state.rounds))
    assert rounds[-1] < PROTOCOL.rounds


def test_what_is_not_clear_is_said(tmp_path):
    """Noise as large as what an operator takes leaves no verdict."""
    noise = itertools.cycle((1e-3, 3e-4, 2e-3, 6e-4, 1.5e-3, 4e-4, 9e-4))
    rules = _detect(FakeRuntime(seconds_of, noise=lambda: next(noise)), tmp_path)
    assert rules.unclear


def test_an_interrupted_detection_is_resumed(tmp_path):
    def stop(state):
        if state.rounds == 3:
            raise KeyboardInterrupt

    store, resumed = MemoryStore(), []
    with pytest.raises(KeyboardInterrupt):
        _detect(fusing(), tmp_path, store=store, on_progress=stop)
    rules = _detect(fusing(), tmp_path, store=store, on_start=resumed.append)
    assert resumed == [3]
    assert _fused(rules) == _fused(TRUE)
    assert rules.campaign is not None


def test_what_cannot_be_run_is_left_out_and_named(tmp_path):
    class Poor(FakeRuntime):
        def latency_of(self, op):
            if op.kind == "add":
                raise ValueError("there is no addition here")
            return super().latency_of(op)

    rules = _detect(Poor(seconds_of, rules=TRUE), tmp_path)
    assert ("conv2d", "relu") in _fused(rules)
    assert set(rules.failures) == {"conv2d + add", "conv2d + add + relu", "add + relu"}
    assert "there is no addition here" in rules.failures["add + relu"]


def test_a_runtime_that_runs_nothing_is_an_error(tmp_path):
    class Poorest(FakeRuntime):
        def latency_of(self, op):
            raise ValueError("there is nothing here")

    with pytest.raises(MeasurementError, match=r"cannot run a network of a single ReLU: .*there is nothing here"):
        _detect(Poorest({}), tmp_path)


def test_a_runtime_that_tells_is_asked(tmp_path):
    def kernels(subject):
        kinds = subject.specification["kinds"]
        # Functions may be named as well as modules.
        names = [f"parts.{number}" + (f".{kind}" if kind == "relu" else "") for number, kind in enumerate(kinds)]
        return [("FusedConv", tuple(names))] if "conv2d" in subject.key else [(name, (name,)) for name in names]

    runtime = Telling(kernels)
    check_runtime(FakeRuntime(lambda op: 1e-4))
    rules = _detect(runtime, tmp_path)
    assert _fused(rules) == {probe.kinds for probe in PROBES if "conv2d" in probe.kinds}
    found = {rule.kinds: rule for rule in rules.rules}
    assert found["conv2d", "relu"].source == "read from the runtime's model: FusedConv runs conv2d + relu"
    assert found["linear", "relu"].source == "read from the runtime's model: parts.1.relu runs relu"
    assert found["conv2d", "batch_norm"].folds
    assert runtime.clock.now == 0, "nothing was measured"
    assert read_rules(tmp_path / "rules.json") == rules


def test_an_addition_that_joins_the_other_branch_counts(tmp_path):
    runtime = Telling(lambda subject: [("Conv", ("parts.0",)), ("FusedConv", ("branch", "parts.1"))])
    (rule,) = _detect(runtime, tmp_path, probes=parse_probes("conv2d+add")).rules
    assert rule.fused
    assert rule.source == "read from the runtime's model: FusedConv runs conv2d + add"


def test_a_network_that_cannot_be_asked_about_is_named(tmp_path):
    def kernels(subject):
        if "sigmoid" in subject.key:
            raise ValueError("there is no sigmoid here")
        return []

    rules = _detect(Telling(kernels), tmp_path)
    assert rules.failures == {"conv2d + sigmoid": "ValueError: there is no sigmoid here"}
    assert not rules.fused
    with pytest.raises(MeasurementError, match=r"asked about no probe: ValueError: there is no sigmoid here"):
        _detect(Telling(kernels), tmp_path, probes=PROBES[5:6], overwrite=True)


@pytest.mark.parametrize(
    ("kernels", "message"),
    [
        ({}, "None or a list of"),
        ([("a", ("b",)), ("c", ("b",))], "every operator once"),
        ([(1, ("b",))], "by texts"),
    ],
)
def test_the_contract_finds_what_says_nonsense_of_its_kernels(kernels, message):
    runtime = Telling(lambda _: kernels)
    runtime.latencies = lambda op: 1e-4
    with pytest.raises(AssertionError, match=message):
        check_runtime(runtime)


def test_the_schedule_keeps_the_contract_of_schedules():
    check_schedule(lambda: FusionSchedule(PROBES, PROTOCOL, isolated=False), LocalBenches(fusing()))


def test_probes_must_be_there_and_different(tmp_path):
    for probes in ((), PROBES[:1] * 2):
        with pytest.raises(InvalidValueError, match="all be different, at least one"):
            _detect(fusing(), tmp_path, probes=probes)


def test_finished_rules_are_not_replaced_by_accident(tmp_path):
    (tmp_path / "rules.json").write_text("{}")
    with pytest.raises(InvalidValueError, match=r"exists\. Choose another file"):
        _detect(fusing(), tmp_path)
    assert _detect(fusing(), tmp_path, overwrite=True).fused
