# SPDX-License-Identifier: Apache-2.0
"""Families: published networks have their published size, members vary by seed, and every one can be traced."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.graphs import Variation, families, find_families
from nni_latency.operators import trace

FAMILIES = families()

#: Millions of parameters of the networks that were published, as torchvision or the papers have them.
PUBLISHED = {
    "alexnet": 61.10,
    "convnext": 28.58,  # without the scale of every layer, which folds into its weights
    "densenet": 7.98,
    "efficientnet": 5.29,
    "mnasnet": 3.89,
    "mobilenetv1": 4.23,
    "mobilenetv2": 3.50,
    "mobilenetv3": 5.48,
    "nasbench201": 1.07,
    "resnet": 11.69,
    "shufflenetv2": 2.28,
    "squeezenet": 1.24,
    "vgg": 138.36,
    "vit": 5.72,
}

_CLASSES = {"bert": 2, "nasbench201": 10, "resnet1d": 10}


def _made(name, seed):
    """Make a member without memory for its weights."""
    with torch.device("meta"):
        return FAMILIES[name].build(Variation(seed, name)).eval()


@pytest.mark.parametrize("name", PUBLISHED)
def test_seed_0_is_the_published_network(name):
    count = sum(weight.numel() for weight in _made(name, 0).parameters())
    assert count / 1e6 == pytest.approx(PUBLISHED[name], abs=0.006)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=2, deadline=None)
@given(seed=st.integers(1, 2**31))
def test_every_member_runs_and_is_traced(name, seed):
    family = FAMILIES[name]
    inputs = family.example_inputs(2)
    network = _made(name, seed)
    assert network(inputs.to("meta")).shape == (2, _CLASSES.get(name, 1000))
    assert trace(network, inputs, by="graph").operators


@pytest.mark.parametrize("name", FAMILIES)
def test_members_differ_and_a_seed_decides(name):
    sizes = [sum(weight.numel() for weight in _made(name, seed).parameters()) for seed in (1, 2, 3, 4, 1)]
    assert sizes[0] == sizes[-1]
    assert len(set(sizes)) >= 3


def test_weights_are_decided_by_the_seed_alone():
    first = FAMILIES["squeezenet"].network(3)
    torch.rand(1)
    second = FAMILIES["squeezenet"].network(3)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


def test_making_a_network_leaves_the_random_numbers_of_others_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    FAMILIES["squeezenet"].network(1)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_family_can_be_sent_to_another_process_and_says_what_it_is(name):
    family = FAMILIES[name]
    assert pickle.loads(pickle.dumps(family)) == family
    assert "arXiv:" in family.summary


def test_families_are_found_by_name():
    assert [family.name for family in find_families(["vgg", "resnet", "vgg"])] == ["vgg", "resnet"]
    assert len(find_families(["vgg", "all"])) == len(FAMILIES)
    with pytest.raises(UnknownNameError, match=r"Unknown family 'resnets'.*resnet"):
        find_families(["resnets"])


def test_a_negative_seed_is_refused():
    with pytest.raises(InvalidValueError, match=r"must be >= 0. Got -1"):
        FAMILIES["vgg"].network(-1)
