# SPDX-License-Identifier: Apache-2.0
"""Networks taken apart into blocks, and what is suggested about them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from whole_network import WholeNetwork

from nni_latency.analysis import ModelAnalysis
from nni_latency.analysis._suggestions import _batched
from nni_latency.errors import InvalidValueError
from nni_latency.estimators import Estimate, LayerEstimator
from nni_latency.operators import capture_operators, count_operators, features_of
from nni_latency.platforms import Platform


class _Block(nn.Module):
    def __init__(self, channels, act=nn.ReLU):
        super().__init__()
        self.conv, self.act = nn.Conv2d(channels, channels, 3, padding=1), act()

    def forward(self, inputs):
        return inputs + self.act(self.conv(inputs))


class _Net(nn.Module):
    """A stem, two stages of blocks, and a head with a function in front."""

    def __init__(self, act=nn.ReLU):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 2)
        self.stages = nn.Sequential(nn.Sequential(_Block(16, act), _Block(16, act)), nn.Sequential(_Block(16, act)))
        self.head = nn.Linear(16, 10)

    def forward(self, inputs):
        return self.head(self.stages(self.stem(inputs)).mean((2, 3)))


class _PerOperator(LayerEstimator):
    """Costs operators by a function."""

    metric, platform = "latency", Platform("pi")

    def __init__(self, cost):
        self.cost = cost

    def estimate_op(self, op):
        return Estimate(*[self.cost(op)] * 3)


def _by_flops(op):
    return 1e-6 + 1e-10 * features_of(op).flops


def test_blocks_are_those_that_a_person_would_name():
    analysis = ModelAnalysis(_Net(), (3, 33, 33), 1)
    names = [(block.name, block.kind) for block in analysis.blocks]
    assert names == [
        ("stem", "Conv2d"),
        ("stages.0.0", "_Block"),
        ("stages.0.1", "_Block"),
        ("stages.1.0", "_Block"),
        ("(between blocks)", "functions"),
        ("head", "Linear"),
    ]


def test_counts_of_blocks_add_up_to_those_of_the_network():
    network = _Net()
    analysis = ModelAnalysis(network, (3, 33, 33), 2)
    ops = [op for _, op in capture_operators(network, torch.empty(2, 3, 33, 33), by="graph")]
    assert analysis.features == count_operators(ops).features
    for name in ("acts", "inp", "flops", "macs", "memory"):
        assert sum(getattr(block.features, name) for block in analysis.blocks) == getattr(analysis.features, name)
    assert sum(block.params for block in analysis.blocks) == analysis.params
    assert sum(block.share for block in analysis.blocks) == pytest.approx(1)


def test_depth_says_how_deep_blocks_are():
    names = {
        depth: [block.name for block in ModelAnalysis(_Net(), (3, 33, 33), depth=depth).blocks] for depth in (1, 2)
    }
    assert names[1] == ["stem", "stages", "(between blocks)", "head"]
    assert names[2] == ["stem", "stages.0", "stages.1", "(between blocks)", "head"]


def test_a_block_that_is_most_of_the_network_is_opened():
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = _Net()

        def forward(self, inputs):
            return self.net(inputs)

    names = [block.name for block in ModelAnalysis(Wrapper(), (3, 33, 33)).blocks]
    assert "net.stages.0.0" in names
    assert "net.head" in names


def test_latency_of_blocks_is_that_of_their_operators():
    analysis = ModelAnalysis(_Net(), (3, 33, 33), estimator=_PerOperator(_by_flops))
    for block in analysis.blocks:
        assert block.latency.value == pytest.approx(sum(map(_by_flops, block.ops)))
    assert [block.share for block in analysis.bottlenecks] == sorted((b.share for b in analysis.blocks), reverse=True)
    assert analysis.bottlenecks[0].name.startswith("stages")


def test_an_estimator_of_whole_networks_leaves_shares_to_flops():
    analysis = ModelAnalysis(_Net(), (3, 33, 33), estimator=WholeNetwork(0.01))
    assert analysis.latency.value == 0.01
    assert all(block.latency is None for block in analysis.blocks)
    assert analysis.blocks[1].share == pytest.approx(analysis.blocks[1].features.flops / analysis.features.flops)


def test_nothing_is_suggested_where_no_number_supports_it():
    assert ModelAnalysis(_Net(), (3, 33, 33)).suggestions == []
    # Every operator takes as long as any other: a split convolution would be slower.
    assert not ModelAnalysis(
        _Net(), (3, 33, 33), estimator=_PerOperator(lambda op: features_of(op).outputs + 1.0)
    ).suggestions


def test_split_convolutions_are_suggested_where_they_save():
    (sentence, *_) = ModelAnalysis(_Net(), (3, 33, 33), estimator=_PerOperator(_by_flops)).suggestions
    assert sentence.startswith("stages.0.0, stages.0.1, stages.1.0 would take")
    assert "depthwise and pointwise" in sentence


def test_cheaper_activations_are_suggested_where_they_save():
    def cost(op):
        return 10.0 if op.kind == "silu" else 1.0

    (sentence,) = [text for text in _suggestions(_Net(nn.SiLU), cost) if "ReLU" in text]
    assert "3 s in place of 12 s each" in sentence


def test_blocks_that_wait_for_memory_are_named():
    def cost(op):
        return 100.0 if op.input_shapes[0][1] == 3 else 1.0

    assert any(text.startswith("stem takes") and "FLOPs a byte" in text for text in _suggestions(_Net(), cost))


def test_larger_batches_are_suggested_where_calls_take_the_time():
    assert any("batches of eight times" in text for text in _suggestions(_Net(), lambda op: 1.0))


class _Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.positions = nn.Parameter(torch.zeros(1, 1, 8)), nn.Parameter(torch.zeros(1, 5, 8))

    def forward(self, inputs):
        return torch.cat([self.token.expand(len(inputs), -1, -1), inputs], 1) + self.positions


def test_parameters_are_as_large_in_a_larger_batch():
    ops = [op for _, op in capture_operators(_Positions(), torch.zeros(2, 4, 8), by="graph")]
    larger = [op for _, op in capture_operators(_Positions(), torch.zeros(16, 4, 8), by="graph")]
    assert [_batched(op, 8) for op in ops] == larger


def test_heavy_blocks_are_named_without_an_estimator():
    network = nn.Sequential(nn.Conv2d(3, 64, 3), nn.Conv2d(64, 64, 3), nn.Flatten(), nn.Linear(64 * 144, 10))
    (sentence,) = ModelAnalysis(network, (3, 16, 16)).suggestions
    assert sentence.startswith("3 holds 70")


def _suggestions(network, cost):
    return ModelAnalysis(network, (3, 33, 33), estimator=_PerOperator(cost)).suggestions


def test_what_is_not_counted_is_listed():
    class Odd(nn.Module):
        def forward(self, inputs):
            return torch.linalg.det(inputs)

    analysis = ModelAnalysis(nn.Sequential(nn.Conv2d(3, 3, 3), Odd()), (3, 8, 8))
    assert analysis.uncounted == ("linalg_det",)
    assert analysis.blocks[-1].uncounted == ("linalg_det",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((4, 33, 33),), r"do not fit _Net"),
        (((3, 0, 3),), r"'input_shape' must be whole numbers > 0 .* Got \(3, 0, 3\)"),
        (("3,33,33",), r"'input_shape' must be whole numbers"),
        (((3, 33, 33), 0), r"'batch_size' of a ModelAnalysis must be an int >= 1. Got 0"),
    ],
)
def test_input_that_makes_no_sense_is_refused(arguments, message):
    with pytest.raises(InvalidValueError, match=message):
        ModelAnalysis(_Net(), *arguments)


def test_a_depth_below_one_is_refused():
    with pytest.raises(InvalidValueError, match=r"'depth' of blocks must be an int >= 1. Got 0"):
        ModelAnalysis(_Net(), (3, 33, 33), depth=0)


def test_the_model_is_left_as_it_was():
    network = _Net().train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    ModelAnalysis(network, (3, 33, 33))
    assert network.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


class _Recurrent(nn.Module):
    """A recurrent layer and a product."""

    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(4, 3)
        self.head = nn.Linear(3, 2)

    def forward(self, inputs):
        return self.head(self.layer(inputs)[0])


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore:.*(quantized tensor|reduce_range).*:UserWarning",
    "ignore:.* cannot be traced without data",
)
@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2, bias=False)), (4,)),
        (_Recurrent, (5, 4)),
    ],
    ids=["products", "recurrent"],
)
def test_packed_parameters_of_quantised_layers_count(network, shape):
    plain = network()
    packed = torch.ao.quantization.quantize_dynamic(plain, {nn.Linear, nn.LSTM})
    found = ModelAnalysis(packed, shape)
    assert found.params == sum(parameter.numel() for parameter in plain.parameters())
    assert sum(block.params for block in found.blocks) == found.params
