# SPDX-License-Identifier: Apache-2.0
"""DARTS, GumbelDARTS and Proxyless: the penalty moves the search, and the network found keeps the limit."""

from __future__ import annotations

import pytest
import torch
from toys import FASTEST, Listed, Toy, expected_latency, latency_of, penalty_of, profiler_of, search, seeded, table_of

from nni_latency.errors import MismatchError, UnreachableTargetError
from nni_latency.imports import quiet_nni
from nni_latency.nas import LatencyPenalty, LatencyProfiler, likeliest_sample

# Private: the distribution is compared with the one that NNI computes.
from nni_latency.nas._penalty import depth_logits, proxyless_depths
from nni_latency.tables import LookupTable

with quiet_nni():
    import nni
    from nni.nas.nn.pytorch import LayerChoice, ModelSpace, MutableConv2d, Repeat
    from nni.nas.strategy import DARTS, GumbelDARTS, Proxyless

STRATEGIES = [DARTS, GumbelDARTS, Proxyless]


@pytest.mark.parametrize("kind", STRATEGIES)
def test_penalty_moves_the_expected_cost(kind):
    expected = {}
    for scale in (0.0, 20.0):
        space = seeded(Toy)
        strategy = kind(penalty=penalty_of(space, scale=scale), arc_learning_rate=0.1)
        search(space, strategy, epochs=4)
        torch.manual_seed(0)
        expected[scale] = expected_latency(strategy.oneshot_module.export_probs())
    assert expected[20.0] < expected[0.0] - 5e-4


@pytest.mark.parametrize("kind", STRATEGIES)
def test_likeliest_network_keeps_the_limit_without_a_penalty(kind):
    space = seeded(Toy)
    profiler = profiler_of(space)
    search(space, kind(arc_learning_rate=0.1), epochs=2)
    for limit in (3.1e-3, 4e-3, 6e-3):
        sample = likeliest_sample(profiler, max=limit)
        assert latency_of(sample) <= limit
        assert Toy().freeze(sample)(torch.zeros(1, 8)).shape == (1, 2)
    assert likeliest_sample(profiler, max=3.1e-3) == FASTEST


def test_likeliest_network_is_the_argmax_where_everything_is_allowed():
    space = seeded(Toy)
    profiler = profiler_of(space)
    found = search(space, DARTS(arc_learning_rate=0.1))
    assert likeliest_sample(profiler, max=1.0) == found


def test_likeliest_network_takes_the_indices_of_listed_candidates():
    space = seeded(Listed)
    profiler = profiler_of(space, {"first": {0: 1e-3, 1: 2e-3, 2: 4e-3}, "second": {0: 3e-4, 1: 1e-4}})
    search(space, GumbelDARTS(), epochs=1)
    assert likeliest_sample(profiler, max=1.1e-3) == {"first": 0, "second": 1}


def test_likeliest_network_needs_the_supernet():
    with pytest.raises(MismatchError, match=r"no architecture parameters for a, b, c: it is not the one"):
        likeliest_sample(profiler_of(Toy()), max=5e-3)


def test_likeliest_network_refuses_a_limit_that_none_keeps():
    space = seeded(Toy)
    profiler = profiler_of(space)
    DARTS().mutate_model(space)
    with pytest.raises(UnreachableTargetError, match=r"Reachable is 3\.00 ms to 9\.00 ms"):
        likeliest_sample(profiler, max=1e-3)


#: Of `Deep`: the middle depth is the cheapest, so neither "always run" nor "always skip" can be learned by accident.
DEPTHS = {"layer": {"wide": 2e-3, "skip": 1e-3}, "depth": {1: 3e-3, 2: 1e-3, 3: 4e-3}}


class Deep(ModelSpace):
    """A choice of layers and a depth."""

    def __init__(self):
        super().__init__()
        self.layer = LayerChoice({"wide": torch.nn.Linear(8, 8), "skip": torch.nn.Identity()}, label="layer")
        self.repeat = Repeat(lambda index: torch.nn.Linear(8, 8), (1, 3), label="depth")
        self.head = torch.nn.Linear(8, 2)

    def forward(self, inputs):
        return self.head(self.repeat(self.layer(inputs)))


def _deep_profiler(space):
    return LatencyProfiler(space, latency_estimator=table_of(space, DEPTHS))


@pytest.mark.parametrize("kind", STRATEGIES)
def test_penalty_steers_the_depth_of_a_repeat(kind):
    expected = {}
    for scale in (0.0, 1e3):
        space = seeded(Deep)
        profiler = _deep_profiler(space)
        penalty = LatencyPenalty(profiler, baseline=2e-3, scale=scale)
        strategy = kind(penalty=penalty, arc_learning_rate=0.3)
        found = search(space, strategy, epochs=6)
        expected[scale] = float(penalty.profile({}).detach())
    assert expected[1e3] < expected[0.0]
    assert likeliest_sample(profiler, max=2.1e-3) == {"layer": "skip", "depth": 2}
    if kind is not Proxyless:
        assert found == {"layer": "skip", "depth": 2}


def test_depths_of_proxyless_are_those_that_it_draws():
    """Against the distribution that NNI itself computes, and against a hand-made one."""
    space = seeded(Deep)
    Proxyless().mutate_model(space)
    (repeat,) = proxyless_depths(space).values()
    with torch.no_grad():
        repeat.blocks[1]._arch_alpha.copy_(torch.tensor([0.2, 1.0]))
        repeat.blocks[2]._arch_alpha.copy_(torch.tensor([0.5, -0.7]))
    shares = torch.softmax(depth_logits(repeat), -1)
    by_nni = repeat.export_probs({})["depth"]
    assert shares.tolist() == pytest.approx([float(by_nni[depth].detach()) for depth in (1, 2, 3)])
    first, second = (float(torch.softmax(repeat.blocks[n]._arch_alpha.detach(), -1)[1]) for n in (1, 2))
    assert float(shares.detach()[2]) == pytest.approx(first * second)
    shares[0].backward()
    assert float(repeat.blocks[1]._arch_alpha.grad[0]) > 0


class Valued(ModelSpace):
    """Value choices of a convolution."""

    def __init__(self):
        super().__init__()
        width = nni.choice("width", [4, 8])
        kernel = nni.choice("kernel", [1, 3])
        self.first = MutableConv2d(1, width, kernel, padding=kernel // 2)
        self.second = MutableConv2d(width, 2, 1)

    def forward(self, inputs):
        return self.second(self.first(inputs[:, None, None]).relu()).mean((2, 3))


@pytest.mark.parametrize("kind", [DARTS, GumbelDARTS])
@pytest.mark.parametrize("cheap", [{"width": 4, "kernel": 3}, {"width": 8, "kernel": 1}], ids=str)
def test_penalty_steers_the_values_of_a_convolution(kind, cheap):
    space = seeded(Valued)
    costs = {
        label: {value: 1e-3 if value == cheap[label] else 2e-3 for value in values}
        for label, values in {"width": [4, 8], "kernel": [1, 3]}.items()
    }
    profiler = LatencyProfiler(space, latency_estimator=LookupTable.from_latencies(space, costs))
    penalty = LatencyPenalty(profiler, baseline=2e-3, scale=1e3)
    assert search(space, kind(penalty=penalty, arc_learning_rate=0.3)) == cheap
    assert likeliest_sample(profiler, max=2.1e-3) == cheap
