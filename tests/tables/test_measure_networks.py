# SPDX-License-Identifier: Apache-2.0
"""Whole networks of a plan, measured from the outside."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from building import PROTOCOL, Stopped, make_plan

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.measurement import MemoryStore, Protocol
from nni_latency.platforms import Platform
from nni_latency.tables import measure_networks
from nni_latency.testing import FakeRuntime

_LIGHT = {"stem": "conv", "a": "x", "b": "z", "c": "small"}
_HEAVY = {"stem": "conv", "a": "z", "b": "y", "c": "large"}
_SELECTIONS = {"light": _LIGHT, "heavy": _HEAVY}
_PROTOCOL = dataclasses.replace(PROTOCOL, half_width=0.0)


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def measure(store):
    def run(selections=_SELECTIONS, *, protocol=_PROTOCOL, runtime=None, **options):
        plan, latencies = make_plan()
        runtime = runtime or FakeRuntime(latencies)
        return measure_networks(plan, selections, runtime, protocol, **{"store": store, **options})

    return run


def _broken_runtime(*choices):
    """Return a runtime on which networks with one of these candidates of layer ``c`` or ``a`` fail."""

    class BrokenRuntime(FakeRuntime):
        def prepare(self, subject, inputs):
            if set(choices) & {dict(part.op.attributes)["choice"] for part in subject.build()}:
                raise RuntimeError("does not compile")
            return super().prepare(subject, inputs)

    return BrokenRuntime(make_plan()[1])


def test_networks_take_the_sum_of_their_parts(measure):
    found = measure()
    assert {name: times.summary.value for name, times in found.networks.items()} == {
        "light": 0.5 + 0.125 + 0.0625 + 0.03125,
        "heavy": 0.5 + 2.0 + 4.0 + 8.0,
    }


def test_networks_keep_their_names_and_choices(measure):
    found = measure()
    assert {name: times.selection for name, times in found.networks.items()} == _SELECTIONS


def test_reference_network_is_measured_besides(measure):
    found = measure()
    # conv, y, z, large
    assert found.reference == pytest.approx(0.5 + 0.25 + 0.0625 + 8.0)
    plan, _ = make_plan()
    assert [times.selection for times in found.references.values()] == list(plan.references)
    assert list(found.references) == ["reference", "reference 2", "reference 3", "reference 4"][: len(plan.references)]
    assert list(found.networks) == ["light", "heavy"]


def test_every_network_is_visited_once_a_round(measure):
    found = measure()
    assert [times.summary.n_samples for times in found.networks.values()] == [6, 6]
    assert found.drift == pytest.approx([FakeRuntime.reference_time] * 6, rel=1e-5)


def test_network_called_reference_is_one_like_the_others(measure):
    found = measure({"reference": _LIGHT, "other": _HEAVY})
    assert found.networks["reference"].summary.value == 0.5 + 0.125 + 0.0625 + 0.03125


def test_network_called_reference_is_kept_when_the_reference_network_fails(measure):
    found = measure({"reference": {**_LIGHT, "b": "x"}}, runtime=_broken_runtime("z"))
    assert list(found.networks) == ["reference"]
    assert found.failures == {}


def test_every_run_is_kept_as_it_was_measured(measure):
    steps = iter([0.0, 0.1, 0.3] * 10_000)
    runtime = FakeRuntime(make_plan()[1], noise=lambda: next(steps))
    found = measure(runtime=runtime, protocol=dataclasses.replace(_PROTOCOL, n_run=2))
    times = found.networks["light"]
    assert len(times.runs) == len(times.speeds) == times.summary.n_samples == 12
    assert min(times.runs) >= 0.71875 < times.summary.value < max(times.runs)


def test_network_that_is_the_reference_network_may_be_measured_too(measure):
    plan, _ = make_plan()
    found = measure({"mine": plan.reference})
    assert found.networks["mine"].summary.value == found.reference


@pytest.mark.parametrize("n_run", [1, 2])
def test_halves_are_of_every_other_round(n_run, store):
    seen = []
    plan, latencies = make_plan()
    # What the reference operator does not see: half a second more for every network in every other round.
    runtime = FakeRuntime(latencies, noise=lambda: 0.5 if len(seen) % 2 else 0.0)
    protocol = dataclasses.replace(_PROTOCOL, n_run=n_run)
    found = measure_networks(plan, _SELECTIONS, runtime, protocol, store=store, on_progress=seen.append)
    one, other = found.networks["light"].halves
    # What all networks have in common is the machine's speed; the light one becomes much slower than they do.
    assert other / one > 1.4


def test_halves_of_a_single_run_are_that_run(measure):
    found = measure(protocol=dataclasses.replace(_PROTOCOL, rounds=1))
    assert found.networks["light"].halves == pytest.approx((0.71875, 0.71875))


def test_measuring_ends_when_the_networks_are_known(measure):
    seen = []
    measure(protocol=Protocol(rounds=100, time_budget=1e9), on_progress=seen.append)
    assert seen[-1].rounds == 13


def test_measuring_goes_on_where_it_was(measure):
    def stop(progress):
        if progress.rounds == 4:
            raise Stopped("stopped")

    with pytest.raises(Stopped, match=r"stopped"):
        measure(on_progress=stop)
    started, seen = [], []
    resumed = measure(on_progress=seen.append, on_start=started.append)
    assert (started, [progress.resumed for progress in seen]) == ([4], [4, 4])
    whole = measure(store="memory")
    assert dataclasses.replace(resumed, duration=0.0) == dataclasses.replace(whole, duration=0.0)


def test_measuring_starts_over_when_it_is_told_to(measure):
    measure()
    started = []
    measure(fresh=True, on_start=started.append)
    assert started == [0]


def test_measuring_again_measures_nothing(measure, store):
    found, version = measure(), store.version()
    assert measure() == found
    assert store.version() == version


@pytest.mark.parametrize(
    "other",
    [
        {"selections": {"light": _LIGHT}},
        {"selections": {"light": _HEAVY, "heavy": _LIGHT}},
        {"runtime": FakeRuntime(make_plan()[1], platform=Platform("pi", "fake"))},
    ],
)
def test_other_networks_and_platforms_are_other_campaigns(measure, other):
    measure()
    started = []
    measure(**other, on_start=started.append)
    assert started == [0]


def test_reference_network_that_fails_takes_no_network_of_that_name_with_it(measure):
    """A user may call a network as the reference network is called elsewhere."""
    mine = {"reference": {**_LIGHT, "b": "x"}, "reference 0": {**_LIGHT, "b": "y"}}
    found = measure(mine, runtime=_broken_runtime("z"))
    assert (list(found.networks), found.failures, found.reference) == (list(mine), {}, None)


def test_network_that_fails_is_listed_with_the_reason(measure):
    found = measure({**_SELECTIONS, "odd": {**_LIGHT, "b": "x"}}, runtime=_broken_runtime("z"))
    # The reference network fails as well, and is not needed.
    assert found.failures == dict.fromkeys(["light", "heavy"], "RuntimeError: does not compile")
    assert found.networks["odd"].summary.value == 0.5 + 0.125 + 1.0 + 0.03125
    assert found.reference is None


def test_networks_that_all_fail_are_an_error(measure):
    with pytest.raises(MeasurementError, match=r"No network can be run: RuntimeError: does not compile"):
        measure(runtime=_broken_runtime("conv"))


def test_networks_that_fail_are_not_waited_for(measure):
    seen, protocol = [], dataclasses.replace(PROTOCOL, rounds=200)
    found = measure(protocol=protocol, runtime=_broken_runtime("large"), on_progress=seen.append)
    assert list(found.failures) == ["heavy"]
    assert (len(found.drift), seen[-1].unsettled) == (13, 0)


def test_no_network_is_refused(measure):
    with pytest.raises(InvalidValueError, match=r"There is no network to measure"):
        measure({})


def test_network_that_lacks_a_layer_is_refused(measure):
    with pytest.raises(InvalidValueError, match=r"choice of 'c' must be one of small, large\. Got None"):
        measure({"light": {"stem": "conv", "a": "x", "b": "z"}})


def test_network_with_an_unknown_choice_is_refused(measure):
    with pytest.raises(InvalidValueError, match=r"choice of 'a' must be one of x, y, z\. Got 'q'"):
        measure({"light": {**_LIGHT, "a": "q"}})


def test_networks_are_timed_in_an_order_that_changes(measure, store):
    selections = {
        ",".join(choices): dict(zip(("a", "b", "c"), choices, strict=True), stem="conv")
        for choices in itertools.product("xyz", "xyz", ("small", "large"))
    }
    measure(selections)
    (campaign,) = store.campaigns()
    rounds = itertools.groupby(campaign.records, key=lambda record: record.round)
    assert len({tuple(record.subjects for record in records) for _, records in rounds}) == 6
