# SPDX-License-Identifier: Apache-2.0
"""Encoding of networks: groups of operators that runtimes may fuse, and the weights that recurrent layers read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nni_latency.graphs._encoding import GROUPS, TERMS, encode_graph
from nni_latency.operators import OpSpec, chained, trace


class Gated(nn.Module):
    """A hard swish that an exporter has written as its parts, and a shortcut from a tensor that a convolution reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
        self.second = nn.Conv2d(8, 8, 1)

    def forward(self, images: Tensor) -> Tensor:
        made = self.first(images)
        made = made * torch.clamp(made + 3, 0, 6) / 6
        return torch.sigmoid(self.second(made)) + made


def _groups(module: nn.Module, inputs: Tensor) -> list[tuple[str, str]]:
    graph = trace(module.eval(), inputs)
    groups = [GROUPS[number] for number in encode_graph(graph).groups]
    return [(item.op.kind, group) for item, group in zip(graph.operators, groups, strict=True)]


def test_operators_behind_a_product_have_groups_of_their_own():
    assert _groups(Gated(), torch.zeros(1, 3, 8, 8)) == [
        ("conv2d", "convolution of few channels"),
        ("batch_norm", "normalisation of a product"),
        # The normalised tensor has two readers, and both can be fused with it.
        ("add", "activation of a product"),
        ("clamp", "chain behind a product"),
        ("mul", "sum with a product"),
        ("div", "chain behind a product"),
        ("conv2d", "convolution of few channels"),
        ("sigmoid", "transcendental of a product"),
        ("add", "chain behind a product"),
    ]


@pytest.mark.parametrize(
    ("module", "alone", "behind"),
    [
        (nn.Sigmoid(), "transcendental", "transcendental of a product"),
        (nn.Softplus(), "scalar function", "scalar function of a product"),
        (nn.ELU(), "scalar function", "scalar function of a product"),
        (nn.ReLU(), "elementwise", "activation of a product"),
        (nn.MaxPool2d(2), "max pooling", "max pooling"),
        (nn.LPPool2d(2, 2), "other pooling", "other pooling"),
        (nn.AdaptiveAvgPool2d(1), "global pooling", "global pooling"),
        (nn.Upsample(scale_factor=2), "nearest interpolation", "nearest interpolation"),
        (nn.Upsample(scale_factor=2, mode="bilinear"), "linear interpolation", "linear interpolation"),
        (nn.Upsample(scale_factor=2, mode="bicubic"), "cubic interpolation", "cubic interpolation"),
        (nn.InstanceNorm2d(8, affine=True), "instance normalisation", "instance normalisation"),
    ],
)
def test_operators_of_unlike_speed_have_groups_of_their_own(module: nn.Module, alone: str, behind: str):
    assert _groups(nn.Sequential(nn.MaxPool2d(2), module), torch.zeros(1, 8, 16, 16))[-1][1] == alone
    assert _groups(nn.Sequential(nn.Conv2d(8, 8, 3), module), torch.zeros(1, 8, 16, 16))[-1][1] == behind


def _convolution(kind: str, channels: int, groups: int = 1, out: int | None = None) -> OpSpec:
    shape = (1, channels, *(int(kind[-2]) * (16,)))
    return OpSpec.of(kind, [shape], out_channels=out or channels, groups=groups, kernel_size=3, stride=1)


@pytest.mark.parametrize(
    ("op", "group"),
    [
        (_convolution("conv2d", 3), "convolution of few channels"),
        (_convolution("conv2d", 32), "dense convolution"),
        (_convolution("conv2d", 58), "unblocked convolution"),
        (_convolution("conv2d", 60, 60), "depthwise convolution"),
        (_convolution("conv2d", 58, 58), "unblocked depthwise convolution"),
        (_convolution("conv2d", 32, 4), "grouped convolution"),
        (_convolution("conv2d", 32, 16), "unblocked grouped convolution"),
        (_convolution("conv2d", 32, 32, 64), "multiplied depthwise convolution"),
        (_convolution("conv1d", 32), "unblocked convolution"),
        (_convolution("conv1d", 32, 32), "unblocked depthwise convolution"),
        (_convolution("conv3d", 32), "unblocked convolution"),
        (OpSpec.of("softmax", [(1, 4, 9)], dim=-1), "softmax"),
        (OpSpec.of("softmax", [(1, 4, 9)], dim=1), "softmax across rows"),
        (OpSpec.of("sum", [(1, 4, 9)], dim=(2,), out=(1, 4)), "reduction"),
        (OpSpec.of("sum", [(1, 4, 9)], dim=(1,), out=(1, 9)), "reduction across rows"),
        (OpSpec.of("index", [(1, 4, 9)], dim=1, out=(1, 2, 9)), "lookup"),
        (OpSpec.of("index", [(1, 4)], dim=0, out=(1, 4, 9)), "table"),
        (OpSpec.of("topk", [(1, 4, 9)], k=2, out=(1, 4, 2)), "sorting"),
        (OpSpec.of("argmax", [(1, 4, 9)], dim=2, out=(1, 4)), "selection"),
        (OpSpec.of("repeat", [(1, 4, 1)], out=(1, 4, 9)), "repetition in rows"),
        (OpSpec.of("repeat", [(1, 1, 9)], out=(1, 4, 9)), "repetition"),
        (OpSpec.of("scatter", [(8, 9), (8, 9)], dim=0, out=(4, 9)), "scatter"),
        (OpSpec.of("copy", [(2, 3, 4, 5)], dims=(0, 2, 3, 1), out=(2, 4, 5, 3)), "copy"),
        (OpSpec.of("copy", [(2, 3, 4, 5)], dims=(2, 1, 0, 3), out=(4, 3, 2, 5)), "copy"),
        (OpSpec.of("copy", [(2, 3, 4, 5)], dims=(0, 3, 2, 1), out=(2, 5, 4, 3)), "permutation"),
        # Nothing moves.
        (OpSpec.of("copy", [(1, 3, 1, 5)], dims=(2, 1, 0, 3), out=(1, 3, 1, 5)), "copy"),
        (OpSpec.of("softmax", [(1, 4, 8, 9)], dim=1), "permuted softmax"),
        (OpSpec.of("softmax", [(1, 4, 8, 9)], dim=2), "softmax across rows"),
        (OpSpec.of("softmax", [(1, 4, 8, 9)], dim=(1, 2)), "softmax across rows"),
        (OpSpec.of("log_softmax", [(4,)], dim=0), "softmax"),
        (OpSpec.of("grid_sample", [(1, 4, 8, 9), (1, 6, 6, 2)], out=(1, 4, 6, 6)), "sampling"),
    ],
)
def test_layouts_and_directions_of_unlike_speed_have_groups_of_their_own(op: OpSpec, group: str):
    assert GROUPS[encode_graph(chained([op])).groups[0]] == group


def test_maxima_with_indices_have_a_group_of_their_own():
    images = torch.zeros(1, 4, 8, 8)
    assert _groups(nn.MaxPool2d(2, return_indices=True), images) == [("max_pool2d", "max pooling with indices")]
    assert _groups(nn.MaxPool2d(2), images) == [("max_pool2d", "max pooling")]


def test_what_reads_a_picture_that_a_convolution_has_written():
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.LocalResponseNorm(5)
            self.rows = nn.Linear(8, 8)

        def forward(self, images: Tensor) -> Tensor:
            before = self.norm(images)
            made = self.norm(torch.relu(self.first(before)))
            return torch.relu(self.rows(made)) + made

    graph = trace(Mixed().eval(), torch.zeros(1, 8, 8, 8))
    found = encode_graph(graph).features[:, -3].tolist()
    kinds = [item.op.kind for item in graph.operators]
    assert [(kind, value) for kind, value in zip(kinds, found, strict=True) if kind != "add"] == [
        ("local_response_norm", 0),
        ("conv2d", 0),
        ("relu", 1),
        ("local_response_norm", 1),
        ("linear", 0),
        ("relu", 0),
    ]


def _laid_out(*operators: OpSpec) -> list[tuple[float, float]]:
    """Return the elements of every result that are laid out anew, and the crowded ones, of a chain of operators."""
    encoded = encode_graph(chained(operators))
    return [tuple(np.round(2.0**row - 1).tolist()) for row in encoded.features[:, -2:]]


def _convolution(channels: int, *sides: int) -> OpSpec:
    return OpSpec.of("conv2d", [(1, 8, *sides)], out_channels=channels, kernel_size=3, stride=1, padding=1)


@pytest.mark.parametrize(
    ("reader", "elements"),
    [
        (OpSpec.of("relu", [(1, 16, 10, 10)]), [0, 1600]),
        (OpSpec.of("linear", [(1, 1600)], out_features=4), [1600, 0]),
        (OpSpec.of("softmax", [(1, 16, 10, 10)], dim=1), [1600, 0]),
        (OpSpec.of("copy", [(1, 100, 16)], dims=(0, 2, 1), out=(1, 16, 100)), [1600, 0]),
        # OpenVINO computes it on the picture as the network has it.
        (OpSpec.of("hardsigmoid", [(1, 16, 10, 10)]), [1600, 0]),
        # What is transposed as it is has its channels where they are needed, also as one row for each place.
        (OpSpec.of("copy", [(1, 16, 100)], dims=(0, 2, 1), out=(1, 100, 16)), [0, 0]),
        (OpSpec.of("copy", [(1, 16, 10, 10)], dims=(0, 2, 3, 1), out=(1, 10, 10, 16)), [0, 0]),
        # Half of the channels, after a split.
        (OpSpec.of("mean", [(1, 8, 10, 10)], dim=(2, 3), out=(1, 8, 1, 1)), [0, 0]),
    ],
)
def test_pictures_that_are_needed_in_another_layout_than_convolutions_write(reader, elements):
    assert [anew for anew, _ in _laid_out(_convolution(16, 10, 10), reader)] == elements


def test_a_picture_that_is_normalised_by_channels_is_laid_out_anew():
    """Its rows count as the channels: OpenVINO takes any four dimensions for a picture."""
    turned = OpSpec.of("copy", [(1, 16, 48, 64)], dims=(0, 2, 3, 1), out=(1, 48, 64, 16))
    norm = OpSpec.of("layer_norm", [(1, 48, 64, 16)], weights="16+16")
    rows = OpSpec.of("linear", [(1, 48, 64, 16)], out_features=4)
    none = (0, 0)
    assert _laid_out(_convolution(16, 48, 64), turned, norm, rows) == [none, none, (49152, 4 * 49152), none]
    assert _laid_out(_convolution(16, 48, 64), turned, rows) == [none, none, none]
    assert _laid_out(rows, norm) == [none, none]


def test_pictures_of_one_place_and_those_of_no_convolution_are_not_laid_out_anew():
    rows = OpSpec.of("linear", [(1, 1600)], out_features=4)
    assert _laid_out(OpSpec.of("relu", [(1, 16, 10, 10)]), rows) == [(0, 0), (0, 0)]
    assert _laid_out(_convolution(16, 1, 1), OpSpec.of("linear", [(1, 16)], out_features=4)) == [(0, 0), (0, 0)]


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("other", [(), (16, 1, 1), (1, 16, 10, 10)])
def test_it_does_not_matter_which_operand_is_the_picture(other, order):
    """A scalar that the network computes may come first, as in ``x.mean() * conv(x)``."""
    product = OpSpec.of("mul", [(1, 16, 10, 10), other][::order])
    rows = OpSpec.of("linear", [(1, 1600)], out_features=4)
    assert [anew for anew, _ in _laid_out(_convolution(16, 10, 10), product, rows)] == [0, 1600, 0]


def test_channels_that_share_a_set_of_the_cache_are_crowded():
    """The lines that a transposition of channels and places writes in turn are as far apart as the places are many."""
    shuffled = OpSpec.of("copy", [(1, 2, 16, 32, 32)], dims=(0, 2, 1, 3, 4), out=(1, 16, 2, 32, 32))
    assert _laid_out(_convolution(8, 32, 32)) == [(8 * 1024, 0)]
    assert _laid_out(_convolution(32, 32, 32)) == [(32 * 1024, 3 * 32 * 1024)]
    assert _laid_out(_convolution(32, 31, 32)) == [(32 * 992, 0)]
    # Many channels are laid out block by block.
    assert _laid_out(_convolution(64, 32, 32)) == [(64 * 1024, 4 * 64 * 1024)]
    assert _laid_out(_convolution(65, 32, 32)) == [(65 * 1024, 0)]
    assert _laid_out(_convolution(32, 32, 32), shuffled) == [(0, 0), (32 * 1024, 3 * 32 * 1024)]


def test_products_of_several_factors_count_the_order_of_both_ends():
    """OpenVINO multiplies the first factor with the last, even if they have no index in common."""
    op = OpSpec.of("einsum", [(1, 8), (8, 4), (64, 4)], equation="bi,ij,nj->bn", out=(1, 64))
    encoded = encode_graph(chained([op]))
    assert GROUPS[encoded.groups[0]] == "sum of products"
    flops, outer = (round(encoded.terms[0, TERMS.index(name)] * 50e9) for name in ("flops", "outer"))
    assert (flops, outer) == (2 * (8 * 4 + 4 * 64), 2 * (8 * 64 * 4 + 8 * 64 * 4))


@pytest.mark.parametrize("attributes", [{}, {"equation": ""}, {"equation": "ij,ij->i"}])
def test_products_whose_factors_are_not_known_are_encoded(attributes):
    encoded = encode_graph(chained([OpSpec.of("einsum", [(2, 3)] * 3, **attributes)]))
    assert GROUPS[encoded.groups[0]] != "sum of products"
    assert np.isfinite(encoded.features).all()


def test_what_another_operator_reads_is_not_fused():
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, data: Tensor) -> Tensor:
            made = self.first(data)
            return self.second(made) + nn.functional.relu(made)

    assert ("relu", "elementwise") in _groups(Shared(), torch.zeros(1, 8))
    alone = nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Hardtanh(), nn.Sigmoid())
    assert [group for _, group in _groups(alone, torch.zeros(1, 8))] == [
        "elementwise",
        "chain of elementwise",
        "transcendental",
    ]


class _Block(nn.Module):
    """A normalised sum, to which the result is added or not."""

    def __init__(self, *, keeps_sum: bool) -> None:
        super().__init__()
        self.product, self.norm, self.keeps_sum = nn.Linear(8, 8), nn.LayerNorm(8), keeps_sum

    def forward(self, data: Tensor) -> Tensor:
        total = data + self.product(data)
        return total + self.norm(total) if self.keeps_sum else self.norm(total)


@pytest.mark.parametrize(("keeps_sum", "group"), [(False, "normalisation of a sum"), (True, "normalisation")])
def test_a_sum_that_is_only_normalised_is_part_of_the_normalisation(keeps_sum: bool, group: str):
    assert ("layer_norm", group) in _groups(_Block(keeps_sum=keeps_sum), torch.zeros(1, 4, 8))


@pytest.mark.parametrize(
    ("kinds", "group"),
    [
        ("relu", "activated matrix product"),
        ("silu", "activated matrix product"),
        ("add relu", "activated matrix product"),
        ("add", "matrix product"),
        ("mul relu", "matrix product"),
        ("softmax", "matrix product"),
    ],
)
def test_products_with_an_activation_have_a_group_of_their_own(kinds: str, group: str):
    behind = [OpSpec.of(kind, [(1, 8)]) for kind in kinds.split()]
    graph = chained([OpSpec.of("linear", [(1, 8)], out_features=8, bias=False), *behind])
    assert GROUPS[encode_graph(graph).groups[0]] == group


def test_a_recurrent_layer_reads_its_weights_at_every_step():
    def terms(**attributes: str) -> dict[str, float]:
        op = OpSpec.of("lstm", [(7, 1, 4)], **attributes)
        return dict(zip(TERMS, encode_graph(chained([op])).terms[0].tolist(), strict=True))

    one = terms(weights="20x4+20x5+20+20")
    both = terms(weights="20x4+20x5+20+20+20x4+20x5+20+20")
    assert both["calls"] == 2 * one["calls"] == pytest.approx(44e-6)
    assert both["weights"] == 2 * one["weights"]
    assert one["weights"] > 7 * one["far_weights"]


def test_weights_that_do_not_fit_in_a_near_cache_are_read_from_a_far_one_at_every_step():
    def far(states: int) -> float:
        weights = f"{4 * states}x8+{4 * states}x{states}+{4 * states}+{4 * states}"
        terms = encode_graph(chained([OpSpec.of("lstm", [(50, 1, 8)], weights=weights)])).terms[0]
        return float(terms[TERMS.index("far_weights")] / terms[TERMS.index("weights")])

    assert far(16) < 0.02
    assert 0.05 < far(64) < 0.1
    assert far(512) > 0.9


def test_what_a_network_moves_displaces_weights_and_code():
    def terms(count: int) -> dict[str, float]:
        large = OpSpec.of("relu", [(1, 64, 128, 128)])
        product = OpSpec.of("linear", [(1, 256)], out_features=256)
        return dict(zip(TERMS, encode_graph(chained([product, *(count * [large])])).terms[0].tolist(), strict=True))

    alone, some, many = map(terms, (0, 2, 20))
    assert alone["weights"] == some["weights"] == many["weights"]
    assert alone["far_weights"] < 0.3 * some["far_weights"] == pytest.approx(0.3 * many["far_weights"])
    assert alone["distant_weights"] == 0 < some["distant_weights"] < many["distant_weights"]
    assert alone["cold_calls"] == 0 < some["cold_calls"] < many["cold_calls"]


@pytest.mark.parametrize(("side", "share"), [(128, 0.0), (192, 0.0), (224, 0.23), (512, 1.0)])
def test_activations_beyond_the_last_cache_are_distant(side: int, share: float):
    graph = chained([OpSpec.of("conv2d", [(1, 64, side, side)], out_channels=64, groups=64, kernel_size=3, stride=1)])
    terms = dict(zip(TERMS, encode_graph(graph).terms[0].tolist(), strict=True))
    assert terms["distant_inputs"] == pytest.approx(share * terms["inputs"], rel=0.05)
