# SPDX-License-Identifier: Apache-2.0
"""Which kernels are drawn: all of them valid, none twice, the same ones every time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nni_latency.errors import FileFormatError, InvalidValueError
from nni_latency.kernels import Kernel, Prior, Sampler, Sampling, kernel_types, shipped_prior
from nni_latency.kernels._sampling import divide, draw_near
from nni_latency.operators import trace

TYPES = kernel_types()
CONVOLUTION = Kernel.of("conv_bn_relu", HW=28, CIN=100, COUT=200, KERNEL_SIZE=3, STRIDES=1)


@settings(max_examples=25)
@given(name=st.sampled_from(sorted(TYPES)), seed=st.integers(0, 10**6))
def test_every_draw_is_valid_and_new(name, seed):
    kind, sampler = TYPES[name], Sampler(shipped_prior(), seed)
    drawn = sampler.random(kind, 3) + sampler.from_prior(kind, 3)
    drawn += sampler.near(kind, drawn[:1], 2)
    drawn += sampler.where([kind], 1, lambda kernels: np.arange(len(kernels), dtype=float))
    assert len(drawn) >= 6
    assert len(set(drawn)) == len(drawn)
    for kernel in drawn:
        kind.check(kernel)


@pytest.mark.parametrize("name", sorted(TYPES))
def test_without_a_prior_every_draw_is_valid(name):
    """Small ones that must be a multiple of many groups cannot be made smaller for ever."""
    for kernel in Sampler(Prior(), 0).from_prior(TYPES[name], 20):
        TYPES[name].check(kernel)


@given(seed=st.integers(0, 10**6))
def test_near_is_as_near_as_in_nn_meter(seed):
    kernel = draw_near(TYPES["conv_bn_relu"], CONVOLUTION, np.random.default_rng(seed))
    assert 40 <= kernel["CIN"] <= 120
    assert 80 <= kernel["COUT"] <= 240
    assert {name: kernel[name] for name in ("HW", "KERNEL_SIZE", "STRIDES")} == {
        "HW": 28,
        "KERNEL_SIZE": 3,
        "STRIDES": 1,
    }


def test_draws_are_the_same_for_one_seed():
    def draw(seed):
        return Sampler(shipped_prior(), seed).from_prior(TYPES["conv_relu"], 20)

    assert draw(1) == draw(1) != draw(2)


def test_what_is_worth_more_is_drawn_more_often():
    kind = TYPES["conv_relu"]
    drawn = Sampler(shipped_prior(), 0).where(
        [kind], 30, lambda kernels: np.array([1.0 if kernel["COUT"] > 64 else 1e-9 for kernel in kernels])
    )
    assert sum(kernel["COUT"] > 64 for kernel in drawn) >= 25


def test_where_nothing_is_known_draws_are_random():
    assert len(Sampler(Prior(), 0).from_prior(TYPES["conv1d_block"], 5)) == 5


class _Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.act = nn.ReLU6()

    def forward(self, inputs):
        return torch.relu(inputs + self.act(self.bn(self.conv(inputs))))


def test_a_network_is_divided_into_kernels():
    network = nn.Sequential(_Block(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10))
    found = divide(trace(network, torch.zeros(1, 8, 8, 8), by="graph"))
    assert [kernel.kind for kernel in found] == ["conv_bn_relu6", "add_relu", "maxpool_block", "fc_block"]


def test_what_two_operators_need_is_not_fused():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, inputs):
            found = self.conv(inputs)
            return torch.relu(found) + found

    found = divide(trace(Twice(), torch.zeros(1, 8, 8, 8), by="graph"))
    assert [kernel.kind for kernel in found] == ["conv_block", "relu_block", "add_block"]


def test_a_prior_is_read_back(tmp_path):
    network = nn.Sequential(_Block(), _Block())
    prior = Prior.of([trace(network, torch.zeros(1, 8, 8, 8), by="graph")])
    assert prior.counts["conv"] == {Kernel.of("conv_bn_relu6", HW=8, CIN=8, COUT=8, KERNEL_SIZE=3, STRIDES=1): 2}
    read = Prior.load(prior.save(tmp_path / "prior.json"))
    assert read == prior
    assert read.digest == prior.digest != Prior().digest


def test_kinds_of_a_group_share_its_prior():
    known, weights = shipped_prior().known(TYPES["conv_bn_silu"])
    assert len(known) == len(weights) > 50
    assert {kernel.kind for kernel in known} == {"conv_bn_silu"}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": "nni_latency.kernel_prior", "groups": {"conv": {"x": 1}}}']
)
def test_what_is_no_prior_is_refused(tmp_path, text):
    (tmp_path / "prior.json").write_text(text)
    with pytest.raises(FileFormatError, match=r"prior.*(whole JSON|its format must be|not valid)"):
        Prior.load(tmp_path / "prior.json")


@pytest.mark.parametrize(
    "options",
    [{"init_sample_num": 5}, {"iteration": -1}, {"error_threshold": 0}, {"refinement": "best"}, {"seed": 1.5}],
)
def test_sampling_checks_its_values(options):
    (name,) = options
    with pytest.raises(InvalidValueError, match=f"'{name}' of a Sampling"):
        Sampling(**options)
