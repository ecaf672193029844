# SPDX-License-Identifier: Apache-2.0
"""Which workers get work: places of benches, twins, drift, quarantine."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from nni_latency_farm import Announcement, Registry, Traits, platform_key

from nni_latency.platforms import Platform

HERE, THERE = Platform("here"), Platform("there")
TIMES = {"conv": 1e-3, "linear": 2e-3}


def announce(name, platform=HERE):
    return Announcement(name, platform, Traits())


def times(factor):
    return {name: seconds * factor for name, seconds in TIMES.items()}


def farm_of(count, platform=HERE, registry=None):
    moments = iter(range(10_000))
    registry = registry or Registry(clock=lambda: float(next(moments)))
    for number in range(count):
        registry.join(f"{platform.device}-{number}", announce(f"{platform.device}-{number}", platform), TIMES)
    return registry


def state_of(registry, name):
    (found,) = (state for state, _ in registry.states() if state.name == name)
    return found


def test_how_much_slower_a_worker_has_become_is_told():
    registry = farm_of(1)
    assert state_of(registry, "here-0").slower == 1.0
    for factor in (0.5, 0.6):
        registry.check("here-0", times(factor))
    assert state_of(registry, "here-0").slower == pytest.approx(1.2)


def test_benches_spread_over_the_workers_of_their_platform():
    registry = farm_of(2, THERE, farm_of(3))
    places = Counter(registry.assign(f"bench {number}", "client", platform_key(HERE)) for number in range(6))
    assert places == {"here-0": 2, "here-1": 2, "here-2": 2}


def test_a_bench_stays_where_it_is():
    registry = farm_of(3)
    places = {registry.assign("bench", "client", platform_key(HERE)) for _ in range(5)}
    assert len(places) == 1


def test_a_bench_that_shares_its_worker_moves_to_an_idle_twin():
    registry = farm_of(1)
    assert {registry.assign(bench, "client", platform_key(HERE)) for bench in "ab"} == {"here-0"}
    registry.join("here-1", announce("here-1"), TIMES)
    assert registry.assign("a", "client", platform_key(HERE)) == "here-1"
    assert registry.assign("b", "client", platform_key(HERE)) == "here-0"


def test_no_worker_of_another_platform_takes_a_bench():
    registry = farm_of(2, THERE)
    assert registry.assign("bench", "client", platform_key(HERE)) is None
    assert registry.why_none(platform_key(HERE)) == "No worker of it is there."


def test_platforms_of_one_id_and_other_facts_do_not_mix():
    other = Platform("here", facts={"torch": "1.0"})
    registry = Registry()
    registry.join("old", announce("old", other), TIMES)
    assert registry.assign("bench", "client", platform_key(HERE)) is None


def test_a_worker_that_leaves_gives_up_its_benches():
    registry = farm_of(2)
    place = registry.assign("bench", "client", platform_key(HERE))
    registry.leave(place)
    assert registry.assign("bench", "client", platform_key(HERE)) not in (place, None)
    registry.leave(place)


def test_a_client_that_dies_gives_up_its_benches():
    registry = farm_of(1)
    for bench, client in (("a", "dead"), ("b", "dead"), ("c", "alive")):
        registry.assign(bench, client, platform_key(HERE))
    registry.release_client("dead")
    assert state_of(registry, "here-0").benches == 1


def test_a_worker_that_drifts_is_quarantined_until_it_is_as_it_was():
    registry = farm_of(1)
    assert registry.check("here-0", times(1.2)) == ""
    assert registry.check("here-0", times(1.4)) == "Its reference networks take 40.0 % longer than they did."
    assert state_of(registry, "here-0").state == "quarantined"
    assert registry.assign("bench", "client", platform_key(HERE)) is None
    assert "here-0 is in quarantine: Its reference networks take 40.0 %" in registry.why_none(platform_key(HERE))
    assert registry.check("here-0", times(1.1)) == ""
    assert registry.assign("bench", "client", platform_key(HERE)) == "here-0"


def test_the_best_time_is_the_measure_where_a_worker_joined_while_it_was_disturbed():
    registry = Registry()
    registry.join("pi", announce("pi"), times(2.0))
    assert registry.check("pi", times(1.0)) == ""
    assert registry.check("pi", times(1.5)) == "Its reference networks take 50.0 % longer than they did."


def test_a_bench_leaves_a_worker_in_quarantine():
    registry = farm_of(2)
    place = registry.assign("bench", "client", platform_key(HERE))
    registry.check(place, times(3.0))
    assert registry.assign("bench", "client", platform_key(HERE)) not in (place, None)


def test_a_worker_that_disagrees_with_its_twins_is_quarantined():
    registry = farm_of(3)
    registry.join("odd", announce("odd"), times(0.5))
    assert state_of(registry, "odd").reason == (
        "Its reference networks take 0.50 times as long as on its twins (here-0, here-1, here-2)."
    )
    assert state_of(registry, "here-0").state == "ready"


def test_of_two_workers_that_disagree_the_later_one_is_quarantined():
    registry = farm_of(1)
    registry.join("late", announce("late"), times(2.0))
    assert registry.check("here-0", TIMES) == ""
    assert state_of(registry, "late").state == "quarantined"
    assert state_of(registry, "here-0").state == "ready"


def test_twins_are_of_the_same_platform():
    registry = farm_of(3)
    registry.join("fast", announce("fast", THERE), times(0.1))
    assert state_of(registry, "fast").state == "ready"


def test_a_worker_that_cannot_run_its_reference_networks_is_quarantined():
    registry = farm_of(1)
    reason = registry.check("here-0", {}, "the GPU fell off the bus.")
    assert reason == "Its reference networks cannot be run: the GPU fell off the bus."
    assert registry.check("here-0", TIMES) == ""


def test_announcements_survive_the_wire():
    inner = announce("pi", Platform("here", "torch"))
    sent = Announcement(
        "pi", Platform("here", "ghost", facts={"cores": 4}), Traits(divides=True), {"load": 0.5}, inner, {"a": "b"}
    )
    assert Announcement.of(sent.content()) == sent
    assert Announcement.of(sent.content()).platform.facts == {"cores": 4}


class Farms(RuleBasedStateMachine):
    """Whatever happens in whatever order, every bench is on one worker at most, which is ready and of its platform."""

    workers = Bundle("workers")

    def __init__(self):
        super().__init__()
        self.registry = Registry()
        self.platforms = {}
        self.placed = {}

    @rule(target=workers, number=st.integers(0, 5), platform=st.sampled_from([HERE, THERE]), factor=st.floats(0.5, 2))
    def join(self, number, platform, factor):
        name = f"{platform.device}-{number}"
        self.registry.join(name, announce(name, platform), times(factor))
        self.platforms[name] = platform
        return name

    @rule(worker=workers)
    def leave(self, worker):
        self.registry.leave(worker)

    @rule(worker=workers, factor=st.floats(0.5, 2), error=st.sampled_from(["", "broken"]))
    def check(self, worker, factor, error):
        self.registry.check(worker, times(factor), error)

    @rule(bench=st.integers(0, 8), client=st.sampled_from(["x", "y"]), platform=st.sampled_from([HERE, THERE]))
    def assign(self, bench, client, platform):
        name = f"{platform.device} {bench} {client}"
        place = self.registry.assign(name, client, platform_key(platform))
        ready = {state.address for state, _ in self.registry.states() if state.state == "ready"}
        mine = {address for address in ready if self.platforms[address] == platform}
        assert place in mine if mine else place is None

    @rule(client=st.sampled_from(["x", "y"]))
    def release_client(self, client):
        self.registry.release_client(client)

    @rule(bench=st.integers(0, 8), client=st.sampled_from(["x", "y"]))
    def release(self, bench, client):
        self.registry.release(f"here {bench} {client}")

    @invariant()
    def places_and_benches_agree(self):
        counted = Counter(self.registry._places.values())
        assert all(state.benches == counted[state.address] for state, _ in self.registry.states())


TestFarms = Farms.TestCase


@pytest.mark.parametrize("tolerance", [0.05, 1.0])
def test_tolerance_says_what_is_too_much(tolerance):
    registry = Registry(tolerance)
    registry.join("pi", announce("pi"), TIMES)
    assert bool(registry.check("pi", times(1.5))) == (tolerance < 0.5)
