# SPDX-License-Identifier: Apache-2.0
"""Adding this machine to a predictor: which networks, within which budget, and how far it is off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from measured_graphs import FAST, SLOW, fitted, measured, network

from nni_latency import datasets, graphs, learning
from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.learning import _this_machine as this_machine
from nni_latency.learning._learned_platform import kept_apart
from nni_latency.measurement import NetworkSummary, Progress
from nni_latency.platforms import Platform
from nni_latency.testing import FakeRuntime

HERE = Platform("here", "onnxruntime")


@pytest.fixture(scope="module")
def predictor():
    return fitted(5)


@pytest.fixture(scope="module")
def chosen():
    return learning.choose_networks(60)


def test_chosen_networks_are_of_many_families_anchors_first(chosen):
    assert [(item.family, item.seed) for item in chosen[:4]] == [(name, 0) for name in datasets.ANCHORS]
    assert len({item.name for item in chosen}) == len(chosen) == 60
    assert len({item.family for item in chosen}) > 10


def test_the_first_choices_do_not_depend_on_how_many_there_are(chosen):
    assert learning.choose_networks(20) == chosen[:20]


def test_a_runtime_of_modules_gets_no_networks_that_are_written_in_onnx(chosen):
    assert {item.family for item in chosen} - set(graphs.families())
    modules = learning.choose_networks(256, takes_onnx=False)
    assert {item.family for item in modules} <= set(graphs.families())
    assert all(item.seed is not None for item in modules)


def _here(count=6):
    return [replace(item, platform=HERE, latency=2 * item.latency) for item in measured(count, [(FAST, 1.0)])]


def test_a_fifth_is_kept_apart_by_name():
    networks = _here()
    apart = kept_apart(networks)
    assert len(apart) == len(networks) // 5
    assert {item.name for item in kept_apart(networks[::-1])} == {item.name for item in apart}
    assert [len(kept_apart(networks[:count])) for count in (5, 6, 9, 10)] == [0, 1, 1, 2]


def test_a_machine_is_learned_and_scored_on_networks_kept_apart(predictor):
    steps = []
    networks = _here()
    learned = learning.learn_machine(predictor, networks, lambda done, total: steps.append((done, total)))
    assert steps == [(number, 4) for number in range(1, 5)]
    assert (learned.networks, learned.kept_apart) == (24, 4)
    assert 0 < learned.error < 0.3
    assert 0 <= learned.inside <= 4
    assert [platform.id for platform in learned.predictor.platforms_] == [FAST.id, SLOW.id, HERE.id]
    assert len(predictor.platforms_) == 2


def test_the_speed_stays_that_of_when_a_platform_was_measured(predictor):
    known = replace(HERE, facts={"reference": 0.002})
    once = learning.learn_machine(predictor, [replace(item, platform=known) for item in _here()[:6]])
    again = learning.learn_machine(once.predictor, _here()[:6])
    assert again.predictor.platform(HERE).facts["reference"] == 0.002


def test_five_networks_are_too_few_to_keep_some_apart(predictor):
    learned = learning.learn_machine(predictor, _here()[:5])
    assert (learned.kept_apart, learned.error) == (0, None)


class _File(datasets.NetworkFile):
    """A network of a family, as if its file had been written."""

    graph = network([8, 8])

    @property
    def key(self):
        return self.name


class _Machine:
    """A machine on which a network takes two seconds to be written and three to be measured; it keeps what it has."""

    def __init__(self):
        self.now, self.done, self.calls = 0.0, [], []

    def clock(self):
        return self.now

    def files(self, _networks, chosen):
        for family, seed in chosen:
            self.now += 2
            name = f"{family.name}-{seed:05}"
            yield _File(name, Path(f"{name}.onnx"), family.name, seed)

    def measure(self, files, runtime, *, protocol, facts, on_progress, fresh=False):
        self.calls.append((len(files), fresh))
        if fresh:
            self.done.clear()
        for file in files:
            if file.name not in self.done and 3 * len(self.done) < protocol.time_budget:
                self.now += 3
                self.done.append(file.name)
                on_progress(Progress(1, 3.0 * len(self.done), 0.5, 0))
        found = {file.key: NetworkSummary(0.001, 0.001, 0.001, 30, 3, 0.01) for file in files if file.name in self.done}
        platform = replace(HERE, facts=dict(facts))
        return datasets.PlatformLatencies(platform, 1, protocol, "campaign", found, duration=3.0 * len(self.done))


@pytest.fixture
def machine(monkeypatch):
    found = _Machine()
    members = [(family, seed) for seed in range(20) for family in graphs.families().values()]
    monkeypatch.setattr(this_machine, "choose_networks", lambda **_how: members)
    monkeypatch.setattr(this_machine, "measure_reference", lambda _device, _threads: 0.002)
    monkeypatch.setattr(datasets, "measured_files", found.files)
    monkeypatch.setattr(datasets, "measure_networks", found.measure)
    monkeypatch.setattr(graphs, "shipped_digest", lambda: "abc")
    return found


def _measure(machine, budget, **how):
    runtime = FakeRuntime(lambda _op: 1e-6)
    return learning.measure_machine(runtime, budget, clock=machine.clock, facts=lambda: {"cache": 1.0}, **how)


def test_as_many_networks_are_measured_as_two_thirds_of_the_budget_allow(machine):
    shares = []
    found = _measure(machine, 300.0, watch=lambda _what, share: shares.append(share))
    assert 175 <= machine.now <= 210
    assert len(found.networks) == len(machine.done) >= 35
    assert shares == sorted(shares)
    assert shares[-1] <= 0.65
    (platform,) = {item.platform.id: item.platform for item in found.networks}.values()
    assert platform.facts == {"cache": 1.0, "reference": 0.002, "predictor": "abc"}


def test_what_an_earlier_call_measured_is_not_measured_again(machine):
    first = _measure(machine, 300.0)
    done, now = len(machine.done), machine.now
    again = _measure(machine, 300.0)
    assert len(machine.done) == done
    assert machine.now - now < 2.1 * done + 2 * 20
    assert {item.name for item in again.networks} == {item.name for item in first.networks}
    assert "reference" not in again.networks[0].platform.facts


def test_a_fresh_campaign_is_fresh_once(machine):
    _measure(machine, 300.0)
    machine.calls.clear()
    _measure(machine, 300.0, fresh=True)
    assert [fresh for _, fresh in machine.calls] == [True, *(False for _ in machine.calls[1:])]


def test_budgets_for_too_few_networks_are_refused(machine):
    with pytest.raises(InvalidValueError, match=r"The 'budget' must be at least 30 s.*Got 5 s"):
        _measure(machine, 5.0)
    assert not machine.calls


def test_too_few_measured_networks_are_an_error_with_the_reason(machine, monkeypatch):
    def measure(files, *_arguments, protocol, **_options):
        reasons = {files[0].key: "no such kernel"}
        found = {files[1].key: NetworkSummary(0.001, 0.001, 0.001, 30, 3, 0.01)}
        return datasets.PlatformLatencies(HERE, 1, protocol, "campaign", found, failures=reasons, duration=1e3)

    monkeypatch.setattr(datasets, "measure_networks", measure)
    with pytest.raises(MeasurementError, match=r"1 network could be measured.* failed: no such kernel\."):
        _measure(machine, 60.0)


def test_speeds_are_those_of_this_machine_compared_with_then(monkeypatch):
    monkeypatch.setattr("nni_latency.learning._speed.measure_reference", lambda _device, threads: 0.002 * threads)
    there = Platform("there", facts={"reference": 0.001})
    here = [Platform("here", threads=threads, facts={"reference": 0.001}) for threads in (1, 2, 3)]
    found = learning.speeds_now([there, replace(here[0], facts={}), *here], {"here": "cpu"})
    assert found == {"here.torch.fp32.t1": 2.0, "here.torch.fp32.t2": 4.0}


def test_the_reference_operator_is_timed():
    assert 0 < learning.measure_reference() < 1
