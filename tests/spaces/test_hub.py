# SPDX-License-Identifier: Apache-2.0
"""Every space of NNI's hub by name: made, drawn, built and traced."""

from __future__ import annotations

import pickle

import pytest
from hub_arguments import SMALL

from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.operators import trace
from nni_latency.plugins import load_registry
from nni_latency.spaces import (
    HUB_SPACES,
    draw_samples,
    example_inputs_of,
    hub_space,
    make_space,
    network_of,
    reference_of,
)

#: Side of the usual input [pixel].
SIZES = {
    **dict.fromkeys(("proxylessnas", "mobilenetv3", "shufflenet"), 224),
    **dict.fromkeys(("nasbench101", "nasbench201", "darts", "nasnet", "enas", "amoebanet", "pnas"), 32),
    "autoformer": 64,
}


def keys(network, inputs):
    return [item.op.op_key for item in trace(network, inputs).operators]


@pytest.mark.parametrize("name", sorted(HUB_SPACES))
def test_every_space_is_made_drawn_built_and_traced(name):
    space = make_space(name, SMALL[name])
    inputs = example_inputs_of(space)
    assert tuple(inputs.shape) == (1, 3, SIZES[name], SIZES[name])
    sample = draw_samples(space, 2)[-1]
    build = pickle.loads(pickle.dumps(network_of(space, sample)))
    found = trace(build(), inputs)
    assert found.outputs[0][0] == 1
    # What builds a network on its own is the network that NNI freezes.
    assert [item.op.op_key for item in found.operators] == keys(space.freeze(sample), inputs)


@pytest.mark.parametrize("name", sorted(HUB_SPACES))
def test_every_space_is_registered(name):
    assert load_registry().find("space", name).owner == "builtin"


def test_a_reference_makes_the_same_space_again():
    space = hub_space("mobilenetv3", **SMALL["mobilenetv3"])
    reference = reference_of(space)
    assert reference.name == "mobilenetv3"
    assert reference.arguments["width_multipliers"] == (0.5, 1.0)
    assert reference.arguments["num_labels"] == 10
    again = make_space(reference.name, reference.arguments)
    assert reference_of(again) == reference
    assert list(again.simplify()) == list(space.simplify())


def test_a_choice_of_data_sets_is_cifar_unless_asked():
    assert reference_of(make_space("darts")).arguments["dataset"] == "cifar"
    large = make_space("darts", {"dataset": "imagenet", "num_cells": 4})
    assert example_inputs_of(large, 2).shape == (2, 3, 224, 224)


def test_another_input_size_can_be_asked_for():
    assert example_inputs_of(make_space("nasbench201"), 4, input_size=16).shape == (4, 3, 16, 16)


def test_an_argument_that_the_space_does_not_take_is_named():
    with pytest.raises(InvalidValueError, match=r"'shufflenet' cannot be made .*'depth'.* It takes: num_labels"):
        make_space("shufflenet", {"depth": 2})


def test_arguments_that_a_constructor_refuses_are_named():
    with pytest.raises(InvalidValueError, match=r"'mobilenetv3' cannot be made with .*AssertionError"):
        make_space("mobilenetv3", {"base_widths": [16, 16]})


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UnknownNameError, match="mobilenetv3"):
        make_space("mobilenet")
    with pytest.raises(UnknownNameError, match="proxylessnas"):
        hub_space("mobilenet")
