# SPDX-License-Identifier: Apache-2.0
"""Which networks of a space are measured, and which are drawn to check what came of it."""

from __future__ import annotations

import pickle

import pytest
import torch
from hub_arguments import SMALL
from own_space import OwnSpace
from torch import nn

from nni_latency.errors import InvalidValueError
from nni_latency.imports import quiet_nni
from nni_latency.operators import trace
from nni_latency.spaces import SampledSpace, draw_samples, make_space, network_of, operator_plan

# Private: the choice is compared with one made by hand.
from nni_latency.spaces._covering import _choose
from nni_latency.validation import draw_networks

with quiet_nni():
    from nni.nas.nn.pytorch import LayerChoice, ModelSpace


def test_half_are_taken_as_drawn_and_then_those_that_add_most():
    networks = [{"a": 1.0}, {"a": 1.0, "b": 0.1}, {"c": 5.0}, {"b": 0.1, "c": 5.0, "d": 9.0}]
    assert _choose(networks, 2) == [0, 3]
    assert _choose(networks, 3) == [0, 1, 3]
    assert sorted(_choose(networks, 10)) == [0, 1, 2, 3]
    many = [{str(place): float(20 - place)} for place in range(20)]
    assert _choose(many, 10) == [0, 1, 2, 3, 4, 19, 5, 6, 7, 8]


def test_a_plan_covers_the_space_and_says_how_far():
    space = OwnSpace()
    shares = []
    plan = operator_plan(space, n_networks=4, batch_size=2, on_progress=shares.append)
    assert plan.space.name == "own_space:OwnSpace"
    assert plan.input_shape == (2, 3, 16, 16)
    assert len(plan.networks) == 4
    assert plan.networks[0].sample == draw_samples(space, 1)[0]
    assert 0.5 < plan.coverage <= 1
    assert shares[-1] == 1.0
    assert {"conv2d", "linear", "mean"} <= {op.kind for op in plan.ops.values()}
    again = operator_plan(space, n_networks=4, batch_size=2)
    assert [network.sample for network in again.networks] == [network.sample for network in plan.networks]
    assert pickle.loads(pickle.dumps(plan.networks[0].build)).sample == plan.networks[0].sample


def test_every_network_is_built_once(monkeypatch):
    built = []

    def counted(space, sample):
        build = network_of(space, sample)
        return lambda: built.append(sample) or build()

    monkeypatch.setattr("nni_latency.spaces._covering.network_of", counted)
    plan = operator_plan(OwnSpace(), n_networks=4)
    assert len(built) == 6
    for network in plan.networks:
        assert network.calls == trace(network_of(OwnSpace(), network.sample)(), torch.zeros(1, 3, 16, 16), "graph")


def test_a_small_space_gives_what_it_has():
    assert len(operator_plan(OwnSpace(widths=(8,)), n_networks=50).networks) == 6


def test_no_network_is_no_plan():
    with pytest.raises(InvalidValueError, match=r"number of networks must be >= 1\. Got 0"):
        operator_plan(OwnSpace(), n_networks=0)


class Fails(ModelSpace):
    """A space whose networks cannot be run."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = LayerChoice([nn.Linear(3, 3)], label="layer")

    def forward(self, inputs):
        raise RuntimeError("never")


def test_networks_that_can_not_be_traced_are_an_error():
    with pytest.raises(InvalidValueError, match="never"):
        operator_plan(Fails(), input_size=4)


def test_networks_to_check_a_table_with_are_others():
    space = make_space("nasbench201", SMALL["nasbench201"])
    known = draw_samples(space, 3)
    sampled = SampledSpace(space, (1, 3, 32, 32), tuple(known))
    drawn = sampled.draw(5)
    assert list(drawn) == [f"random {number}" for number in range(1, 6)]
    assert not [sample for sample in drawn.values() if sample in known]
    assert sampled.draw(5) == drawn != sampled.draw(5, seed=1)
    assert sampled.reference == known[0]
    assert sampled.space.name == "nasbench201"
    assert SampledSpace.of(space, 2).input_shape == (2, 3, 32, 32)


def test_a_small_space_has_few_others():
    space = OwnSpace(widths=(8,))
    known = draw_samples(space, 4)
    assert len(SampledSpace(space, (1, 3, 16, 16), tuple(known)).draw(10)) == 2


def test_a_table_of_every_network_leaves_none_to_validate_with():
    space = OwnSpace(widths=(8,))
    sampled = SampledSpace(space, (1, 3, 16, 16), tuple(draw_samples(space, 6)))
    with pytest.raises(InvalidValueError, match=r"from every network of the space\. Build it from fewer"):
        draw_networks(sampled)
