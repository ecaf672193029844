"""Whole networks of a plan, measured from the outside."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from building import PROTOCOL, Stopped, make_plan

from nni_latency.errors import InvalidValueError, MeasurementError, MismatchError, OutputError
from nni_latency.measurement import Protocol
from nni_latency.platforms import Platform
from nni_latency.tables import journal_path, measure_networks, remove_journal
from nni_latency.testing import FakeRuntime
from nni_latency.testing._runtime import REFERENCE

_LIGHT = {"stem": "conv", "a": "x", "b": "z", "c": "small"}
_HEAVY = {"stem": "conv", "a": "z", "b": "y", "c": "large"}
_SELECTIONS = {"light": _LIGHT, "heavy": _HEAVY}
_PROTOCOL = dataclasses.replace(PROTOCOL, half_width=0.0)


def _measure(path, selections=_SELECTIONS, *, protocol=_PROTOCOL, runtime=None, **options):
    plan, latencies = make_plan()
    return measure_networks(plan, selections, runtime or FakeRuntime(latencies), protocol, path, **options)


def _broken_runtime(*choices):
    """Return a runtime on which networks with one of these candidates of layer ``c`` or ``a`` fail."""

    class BrokenRuntime(FakeRuntime):
        def load(self, module):
            inside = [dict(part.op.attributes)["choice"] for part in module]
            if set(choices) & set(inside):
                raise RuntimeError("does not compile")
            return super().load(module)

    return BrokenRuntime(make_plan()[1])


def test_networks_take_the_sum_of_their_parts(tmp_path):
    found = _measure(tmp_path / "v.json")
    assert {name: times.summary.value for name, times in found.networks.items()} == {
        "light": 0.5 + 0.125 + 0.0625 + 0.03125,
        "heavy": 0.5 + 2.0 + 4.0 + 8.0,
    }


def test_networks_keep_their_names_and_choices(tmp_path):
    found = _measure(tmp_path / "v.json")
    assert {name: times.selection for name, times in found.networks.items()} == _SELECTIONS


def test_reference_network_is_measured_besides(tmp_path):
    found = _measure(tmp_path / "v.json")
    # conv, y, z, large
    assert found.reference == 0.5 + 0.25 + 0.0625 + 8.0
    assert list(found.networks) == ["light", "heavy"]


def test_every_network_is_visited_once_a_round(tmp_path):
    found = _measure(tmp_path / "v.json")
    assert [times.summary.n_samples for times in found.networks.values()] == [6, 6]
    assert found.drift == pytest.approx([REFERENCE] * 6, rel=1e-5)


def test_network_called_reference_is_one_like_the_others(tmp_path):
    found = _measure(tmp_path / "v.json", {"reference": _LIGHT, "other": _HEAVY})
    assert found.networks["reference"].summary.value == 0.5 + 0.125 + 0.0625 + 0.03125


def test_network_that_is_the_reference_network_may_be_measured_too(tmp_path):
    plan, _ = make_plan()
    found = _measure(tmp_path / "v.json", {"mine": plan.reference})
    assert found.networks["mine"].summary.value == found.reference


@pytest.mark.parametrize("n_run", [1, 2])
def test_halves_are_of_every_other_round(tmp_path, n_run):
    seen = []
    plan, latencies = make_plan()
    # What the reference operator does not see: half a second more for every network in every other round.
    runtime = FakeRuntime(latencies, noise=lambda: 0.5 if len(seen) % 2 else 0.0)
    protocol = dataclasses.replace(_PROTOCOL, n_run=n_run)
    found = measure_networks(plan, _SELECTIONS, runtime, protocol, tmp_path / "v.json", on_progress=seen.append)
    assert found.networks["light"].halves == (0.71875, 1.21875)


def test_halves_of_a_single_run_are_that_run(tmp_path):
    found = _measure(tmp_path / "v.json", protocol=dataclasses.replace(_PROTOCOL, rounds=1))
    assert found.networks["light"].halves == (0.71875, 0.71875)


def test_measuring_ends_when_the_networks_are_known(tmp_path):
    seen = []
    _measure(tmp_path / "v.json", protocol=Protocol(rounds=100, time_budget=1e9), on_progress=seen.append)
    assert seen[-1].rounds == 16


def test_measuring_goes_on_where_it_was(tmp_path):
    def stop(progress):
        if progress.rounds == 4:
            raise Stopped("stopped")

    with pytest.raises(Stopped, match=r"stopped"):
        _measure(tmp_path / "v.json", on_progress=stop)
    started, seen = [], []
    resumed = _measure(tmp_path / "v.json", on_progress=seen.append, on_start=started.append)
    assert (started, [progress.resumed for progress in seen]) == ([4], [4, 4])
    whole = _measure(tmp_path / "whole.json")
    assert dataclasses.replace(resumed, duration=0.0) == dataclasses.replace(whole, duration=0.0)


def test_measuring_starts_over_when_it_is_told_to(tmp_path):
    _measure(tmp_path / "v.json")
    started = []
    _measure(tmp_path / "v.json", resume=False, on_start=started.append)
    assert started == [0]


def test_journal_stays_until_it_is_removed(tmp_path):
    out = tmp_path / "v.json"
    _measure(out)
    assert journal_path(out).exists()
    remove_journal(out)
    remove_journal(out)
    assert not journal_path(out).exists()


@pytest.mark.parametrize(
    "selections", [{"light": _LIGHT}, {"light": _HEAVY, "heavy": _LIGHT}, {"light": _LIGHT, "large": _HEAVY}]
)
def test_journal_of_other_networks_is_refused(tmp_path, selections):
    _measure(tmp_path / "v.json")
    with pytest.raises(MismatchError, match=r"Start over with --no-resume"):
        _measure(tmp_path / "v.json", selections)


def test_journal_of_another_platform_is_refused_and_both_are_named(tmp_path):
    _measure(tmp_path / "v.json")
    runtime = FakeRuntime(make_plan()[1], platform=Platform("pi", "fake"))
    with pytest.raises(MismatchError, match=r"id: fake-device\.fake\.fp32\.t1 against pi\.fake\.fp32\.t1"):
        _measure(tmp_path / "v.json", runtime=runtime)


def test_network_that_fails_is_listed_with_the_reason(tmp_path):
    found = _measure(tmp_path / "v.json", {**_SELECTIONS, "odd": {**_LIGHT, "b": "x"}}, runtime=_broken_runtime("z"))
    # The reference network fails as well, and is not needed.
    assert found.failures == dict.fromkeys(["light", "heavy", "reference"], "RuntimeError: does not compile")
    assert found.networks["odd"].summary.value == 0.5 + 0.125 + 1.0 + 0.03125
    assert found.reference is None


def test_networks_that_all_fail_are_an_error(tmp_path):
    with pytest.raises(MeasurementError, match=r"Cannot run any candidate of layer 'network' .*does not compile"):
        _measure(tmp_path / "v.json", runtime=_broken_runtime("conv"))


def test_no_network_is_refused(tmp_path):
    with pytest.raises(InvalidValueError, match=r"There is no network to measure"):
        _measure(tmp_path / "v.json", {})


def test_network_that_lacks_a_layer_is_refused(tmp_path):
    with pytest.raises(InvalidValueError, match=r"choice of 'c' must be one of small, large\. Got None"):
        _measure(tmp_path / "v.json", {"light": {"stem": "conv", "a": "x", "b": "z"}})


def test_network_with_an_unknown_choice_is_refused(tmp_path):
    with pytest.raises(InvalidValueError, match=r"choice of 'a' must be one of x, y, z\. Got 'q'"):
        _measure(tmp_path / "v.json", {"light": {**_LIGHT, "a": "q"}})


def test_output_that_is_a_folder_is_refused(tmp_path):
    with pytest.raises(OutputError, match=r"it is a folder"):
        _measure(tmp_path)


def test_networks_are_timed_in_an_order_that_changes(tmp_path):
    selections = {
        ",".join(choices): dict(zip(("a", "b", "c"), choices, strict=True), stem="conv")
        for choices in itertools.product("xyz", "xyz", ("small", "large"))
    }
    _measure(tmp_path / "v.json", selections)
    orders = [line.partition('"visits"')[0] for line in journal_path(tmp_path / "v.json").read_text().splitlines()[1:]]
    assert len({order.partition('"networks"')[2] for order in orders}) == 6
