# SPDX-License-Identifier: Apache-2.0
"""Which networks an estimator is held to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nni_latency.errors import InvalidValueError
from nni_latency.spaces import FBNetSpace
from nni_latency.testing import fake_plan
from nni_latency.validation import draw_networks

_PLAN, _ = fake_plan(
    {
        "stem": {"conv": 1.0, "other": 1.0},
        "a": {"x": 1.0, "y": 1.0, "skip": 1.0},
        "b": {"x": 1.0, "y": 1.0},
        "c": {"y": 1.0, "w": 1.0, "x": 1.0},
    },
    fixed=["stem"],
)


@pytest.fixture(scope="module")
def fbnet():
    return FBNetSpace().measure_plan()


def test_names_are_random_published_and_uniform(fbnet):
    names = list(draw_networks(fbnet, 3))
    uniform = [f"all {choice}" for choice in fbnet.searched[1].candidates if choice != "skip"] + ["all skip"]
    assert names == [*fbnet.published, *uniform, "random 1", "random 2", "random 3"]


def test_published_networks_are_drawn_as_they_were_published(fbnet):
    drawn = draw_networks(fbnet, 0)
    assert {name: drawn[name] for name in fbnet.published} == {name: dict(net) for name, net in fbnet.published.items()}


def test_space_without_published_networks_has_none():
    names = draw_networks(FBNetSpace(depth=0.25).measure_plan(), 2)
    assert not [name for name in names if not name.startswith(("random ", "all "))]


def test_uniform_networks_take_what_all_layers_share():
    drawn = draw_networks(_PLAN, 0)
    assert drawn == {
        "all x": {"stem": "conv", "a": "x", "b": "x", "c": "x"},
        "all y": {"stem": "conv", "a": "y", "b": "y", "c": "y"},
    }


@given(st.integers(0, 40), st.integers(0, 5))
def test_networks_differ_and_belong_to_the_space(count, seed):
    drawn = list(draw_networks(_PLAN, count, seed=seed).values())
    assert all(one != other for place, one in enumerate(drawn) for other in drawn[:place])
    for network in drawn:
        assert list(network) == ["stem", "a", "b", "c"]
        assert network["stem"] == "conv"
        assert all(network[layer.name] in layer.candidates for layer in _PLAN.layers)


def test_seed_decides_the_random_networks(fbnet):
    assert draw_networks(fbnet, 4, seed=1) == draw_networks(fbnet, 4, seed=1)
    one, other = draw_networks(fbnet, 4, seed=1), draw_networks(fbnet, 4, seed=2)
    assert one["random 1"] != other["random 1"]
    assert one["all skip"] == other["all skip"]


def test_more_random_networks_begin_with_the_fewer(fbnet):
    few, many = draw_networks(fbnet, 2), draw_networks(fbnet, 6)
    assert (few["random 1"], few["random 2"]) == (many["random 1"], many["random 2"])


def test_small_space_is_drawn_whole_and_no_more():
    plan, _ = fake_plan({"a": {"x": 1.0, "y": 1.0}, "b": {"x": 1.0, "y": 1.0}})
    assert len(draw_networks(plan, 200)) == 4


def test_random_choices_are_as_likely_as_each_other(fbnet):
    drawn = [network for name, network in draw_networks(fbnet, 900).items() if name.startswith("random ")]
    taken = [network[layer.name] for network in drawn for layer in fbnet.searched]
    choices = list(fbnet.searched[1].candidates)
    shares = [taken.count(choice) / len(taken) for choice in choices]
    assert shares == pytest.approx([1 / len(choices)] * len(choices), abs=0.015)


def test_negative_number_is_refused():
    with pytest.raises(InvalidValueError, match=r"random networks must be >= 0\. Got -1\."):
        draw_networks(_PLAN, -1)


def test_no_network_at_all_is_refused():
    plan, _ = fake_plan({"a": {"x": 1.0, "y": 1.0}, "b": {"z": 1.0, "w": 1.0}})
    with pytest.raises(InvalidValueError, match=r"no network to validate with: ask for at least one random one"):
        draw_networks(plan, 0)
