# SPDX-License-Identifier: Apache-2.0
"""Counts of every operator kind, traced from real modules and functions, against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from known_networks import KNOWN
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from nni_latency.errors import InvalidValueError
from nni_latency.operators import OpSpec, capture_operators, count_operators, features_of, parts_of, supported_kinds

# Private: every kind in the tables is tested, also those that are added later.
from nni_latency.operators._feature_kinds import MOVEMENTS, POINTWISE, REDUCTIONS

X1, X2, X3, T = (2, 8, 12), (2, 8, 6, 5), (2, 8, 4, 6, 5), (2, 7, 16)
N2 = 2 * 8 * 6 * 5


class _Called(nn.Module):
    """Calls a function, with a module in front of its inputs if there is one."""

    def __init__(self, function, held=None):
        super().__init__()
        self.function, self.held = function, held

    def forward(self, *inputs):
        return self.function(*inputs) if self.held is None else self.function(self.held, *inputs)


#: Name to (module or function, input shapes, multiply-adds, operations besides, ACTS, parameters).
CASES = {
    # 2 x 4 x 12 outputs of 8 x 3 weights
    "conv1d": (nn.Conv1d(8, 4, 3, padding=1), [X1], 96 * 24, 96, 96, 4 * 24 + 4),
    # 2 x 4 x 3 x 3 outputs of 4 x 9 weights, without a bias
    "conv2d grouped": (nn.Conv2d(8, 4, 3, 2, 1, groups=2, bias=False), [X2], 72 * 36, 0, 72, 4 * 36),
    "conv2d depthwise": (nn.Conv2d(8, 8, (3, 1), padding=(1, 0), groups=8), [X2], N2 * 3, N2, N2, 8 * 3 + 8),
    "conv2d dilated": (nn.Conv2d(8, 4, 3, dilation=2), [X2], 16 * 72, 16, 16, 4 * 72 + 4),
    # 2 x 4 x 1 x 2 x 2 outputs of 8 x 27 weights
    "conv3d": (nn.Conv3d(8, 4, 3, stride=2), [X3], 32 * 8 * 27, 32, 32, 4 * 8 * 27 + 4),
    # every one of 2 x 8 x 12 inputs goes to 4 channels x 4 places; 2 x 4 x 26 outputs
    "conv_transpose1d": (nn.ConvTranspose1d(8, 4, 4, 2), [X1], 192 * 16, 208, 208, 8 * 4 * 4 + 4),
    # 2 x 4 x 12 x 10 outputs
    "conv_transpose2d": (
        nn.ConvTranspose2d(8, 4, 3, 2, 1, output_padding=1, groups=2),
        [X2],
        N2 * 2 * 9,
        960,
        960,
        8 * 2 * 9 + 4,
    ),
    "conv_transpose3d": (nn.ConvTranspose3d(8, 2, 2, bias=False), [X3], 1920 * 16, 0, 2 * 2 * 5 * 7 * 6, 8 * 16),
    "linear": (nn.Linear(16, 3), [T], 14 * 48, 42, 0, 51),
    "bilinear": (nn.Bilinear(4, 5, 3), [(2, 4), (2, 5)], 6 * (20 + 4), 6, 0, 63),
    "matmul": (torch.matmul, [T, (16, 3)], 42 * 16, 0, 0, 0),
    "matmul of batches": (torch.matmul, [(3, 1, 7, 4), (5, 4, 2)], 3 * 5 * 7 * 2 * 4, 0, 0, 0),
    "bmm": (torch.bmm, [T, (2, 16, 3)], 42 * 16, 0, 0, 0),
    "mm": (torch.mm, [(7, 16), (16, 3)], 21 * 16, 0, 0, 0),
    "mv": (torch.mv, [(7, 16), (16,)], 7 * 16, 0, 0, 0),
    "dot": (torch.dot, [(16,), (16,)], 16, 0, 0, 0),
    "addmm": (torch.addmm, [(3,), (7, 16), (16, 3)], 21 * 16, 21, 0, 0),
    "baddbmm": (torch.baddbmm, [(2, 7, 3), T, (2, 16, 3)], 42 * 16, 42, 0, 0),
    "einsum": (lambda a, b: torch.einsum("b i j, b k j -> b i k", a, b), [T, (2, 5, 16)], 2 * 7 * 5 * 16, 0, 0, 0),
    "einsum with an ellipsis": (
        lambda a, b: torch.einsum("...ij,...jk->...ik", a, b),
        [(2, 3, 4, 5), (3, 5, 6)],
        2 * 3 * 4 * 6 * 5,
        0,
        0,
        0,
    ),
    # all of i and j of each b; then all of j, since i was summed up
    "einsum of three": (
        lambda a, b, c: torch.einsum("bi,ij,bj->b", a, b, c),
        [(2, 5), (5, 16), (2, 16)],
        2 * 5 * 16 + 2 * 16,
        0,
        0,
        0,
    ),
    "einsum of three without a result": (
        lambda a, b, c: torch.einsum("...i,ij,jk", a, b, c),
        [(2, 5), (5, 16), (16, 3)],
        2 * 5 * 16 + 2 * 16 * 3,
        0,
        0,
        0,
    ),
    "einsum of one": (lambda a: torch.einsum("bij->bi", a), [T], 0, 224 - 14, 0, 0),
    # scores of 2 heads x 7 x 7: 8 multiply-adds each, scale and softmax; as much again for the weighted sum
    "scaled_dot_product_attention": (
        lambda q: nn.functional.scaled_dot_product_attention(q, q, q),
        [(2, 4, 7, 8)],
        2 * 392 * 8,
        6 * 392,
        0,
        0,
    ),
    "scaled_dot_product_attention with mask": (
        lambda q, k, m: nn.functional.scaled_dot_product_attention(q, k, k, m),
        [(2, 4, 7, 8), (2, 4, 9, 8), (7, 9)],
        2 * 504 * 8,
        7 * 504,
        0,
        0,
    ),
    # three projections, scores of 4 heads, one projection; biases of all, scale and softmax, mean of the heads
    "multi_head_attention_forward": (
        _Called(lambda m, t: m(t, t, t), nn.MultiheadAttention(16, 4, batch_first=True)),
        [T],
        14 * 16 * 64 + 2 * 2 * 49 * 16,
        4 * 224 + 392 * 7,
        0,
        4 * 256 + 64,
    ),
    "multi_head_attention_forward of others": (
        _Called(
            lambda m, q, k: m(q, k, k[..., :10], need_weights=False),
            nn.MultiheadAttention(16, 2, kdim=12, vdim=10, bias=False, batch_first=True),
        ),
        [T, (2, 9, 12)],
        14 * 256 + 18 * 12 * 16 + 18 * 10 * 16 + 14 * 256 + 2 * 2 * 63 * 16,
        2 * 2 * 63 * 6,
        0,
        256 + 192 + 160 + 256,
    ),
    # 4 gates of 8 units in each of two layers
    "lstm": (
        _Called(lambda m, t: m(t)[0], nn.LSTM(16, 8, 2, batch_first=True)),
        [T],
        14 * 32 * (16 + 8 + 8 + 8),
        14 * (4 * 32 + 22 * 16),
        0,
        32 * 40 + 4 * 32,
    ),
    "gru": (
        _Called(lambda m, t: m(t)[0], nn.GRU(16, 8, batch_first=True, bidirectional=True)),
        [T],
        14 * 2 * 24 * 24,
        14 * (2 * 48 + 17 * 16),
        0,
        2 * (24 * 24 + 48),
    ),
    "rnn_tanh": (
        _Called(lambda m, t: m(t)[0], nn.RNN(16, 8, bias=False, batch_first=True)),
        [T],
        14 * 8 * 24,
        14 * 16,
        0,
        8 * 24,
    ),
    "rnn_relu": (
        _Called(lambda m, t: m(t)[0], nn.RNN(16, 8, nonlinearity="relu", batch_first=True)),
        [T],
        14 * 8 * 24,
        14 * (16 + 16),
        0,
        8 * 24 + 16,
    ),
    "batch_norm": (nn.BatchNorm1d(8), [X1], 0, 2 * 192, 0, 16),
    "layer_norm": (nn.LayerNorm(16), [T], 0, 7 * 224, 0, 32),
    "layer_norm without weights": (nn.LayerNorm(16, elementwise_affine=False), [T], 0, 5 * 224, 0, 0),
    "group_norm": (nn.GroupNorm(4, 8), [X2], 0, 7 * N2, 0, 16),
    "instance_norm": (nn.InstanceNorm2d(8), [X2], 0, 5 * N2, 0, 0),
    "rms_norm": (nn.RMSNorm(16), [T], 0, 4 * 224, 0, 16),
    "local_response_norm": (nn.LocalResponseNorm(3), [X2], 0, 8 * N2, 0, 0),
    "normalize": (nn.functional.normalize, [X2], 0, 3 * N2, 0, 0),
    # 2 x 8 x 3 x 3 windows of 9
    "max_pool2d": (nn.MaxPool2d(3, 2, 1), [X2], 0, 144 * 8, 0, 0),
    "max_pool1d": (nn.MaxPool1d(2), [X1], 0, 96, 0, 0),
    "max_pool3d": (nn.MaxPool3d(2), [X3], 0, 2 * 8 * 2 * 3 * 2 * 7, 0, 0),
    "avg_pool1d": (nn.AvgPool1d(3), [X1], 0, 64 * 3, 0, 0),
    "avg_pool2d": (nn.AvgPool2d((3, 2)), [X2], 0, 64 * 6, 0, 0),
    "avg_pool3d": (nn.AvgPool3d(2), [X3], 0, 2 * 8 * 2 * 3 * 2 * 8, 0, 0),
    "lp_pool1d": (nn.LPPool1d(2, 3), [X1], 0, 64 * 6, 0, 0),
    "lp_pool2d": (nn.LPPool2d(2, 2), [X2], 0, 96 * 8, 0, 0),
    "lp_pool3d": (nn.LPPool3d(2, 2), [X3], 0, 2 * 8 * 2 * 3 * 2 * 16, 0, 0),
    "adaptive_avg_pool1d": (nn.AdaptiveAvgPool1d(4), [X1], 0, 192, 0, 0),
    "adaptive_avg_pool2d": (nn.AdaptiveAvgPool2d(1), [X2], 0, N2, 0, 0),
    # 6 rows in 4 windows of 2, 5 columns in 3 windows of 2
    "adaptive_avg_pool2d that overlaps": (nn.AdaptiveAvgPool2d((4, 3)), [X2], 0, 16 * 8 * 7, 0, 0),
    "adaptive_avg_pool3d": (nn.AdaptiveAvgPool3d(1), [X3], 0, 1920, 0, 0),
    "adaptive_max_pool1d": (nn.AdaptiveMaxPool1d(4), [X1], 0, 192 - 64, 0, 0),
    "adaptive_max_pool2d": (nn.AdaptiveMaxPool2d(1), [X2], 0, N2 - 16, 0, 0),
    "adaptive_max_pool3d": (nn.AdaptiveMaxPool3d(1), [X3], 0, 1920 - 16, 0, 0),
    "interpolate": (lambda a: nn.functional.interpolate(a, scale_factor=2), [X2], 0, 0, 0, 0),
    "interpolate bilinear": (
        lambda a: nn.functional.interpolate(a, scale_factor=2, mode="bilinear"),
        [X2],
        0,
        7 * 4 * N2,
        0,
        0,
    ),
    "interpolate area": (lambda a: nn.functional.interpolate(a, size=(3, 5), mode="area"), [X2], 0, N2, 0, 0),
    "grid_sample": (
        lambda a, g: nn.functional.grid_sample(a, g, align_corners=False),
        [X2, (2, 3, 3, 2)],
        0,
        7 * 144,
        0,
        0,
    ),
    "fold": (lambda a: nn.functional.fold(a, (4, 4), 2), [(2, 32, 9)], 0, 576, 0, 0),
    "softmax": (nn.Softmax(-1), [X2], 0, 5 * N2, 0, 0),
    "log_softmax": (nn.LogSoftmax(1), [X2], 0, 5 * N2, 0, 0),
    "glu": (nn.GLU(1), [X2], 0, 5 * N2 // 2, 0, 0),
    "prelu": (nn.PReLU(8), [X2], 0, 2 * N2, 0, 8),
    "add": (lambda a, b: a + b, [X2, (1, 8, 1, 1)], 0, N2, 0, 0),
    "add of a smaller one first": (lambda a, b: a + b, [(8, 1, 1), X2], 0, N2, 0, 0),
    "sub": (lambda a: 1 - a, [X2], 0, N2, 0, 0),
    "mul": (lambda a: a * a.mean((2, 3), keepdim=True), [X2], 0, 2 * N2, 0, 0),
    "div": (lambda a: a / 3, [X2], 0, N2, 0, 0),
    "pow": (lambda a: a**2, [X2], 0, N2, 0, 0),
    "neg": (lambda a: -a, [X2], 0, N2, 0, 0),
    "clamp": (lambda a: a.clamp(0, 1), [X2], 0, 2 * N2, 0, 0),
    "sum": (lambda a: a.sum(-1), [X2], 0, N2 - 96, 0, 0),
    "sum of all": (lambda a: a.sum(), [X2], 0, N2 - 1, 0, 0),
    "mean": (lambda a: a.mean((2, 3)), [X2], 0, N2, 0, 0),
    "amax": (lambda a: a.amax((2, 3), keepdim=True), [X2], 0, N2 - 16, 0, 0),
    "max of two": (torch.maximum, [X2, X2], 0, N2, 0, 0),
    "var": (lambda a: a.var(1), [X2], 0, 4 * N2, 0, 0),
    "cat": (lambda a: torch.cat([a, a], 1), [X2], 0, 0, 0, 0),
    "pad": (nn.ZeroPad2d(1), [X2], 0, 0, 0, 0),
    "where": (lambda a: torch.where(a > 0, a, 0), [X2], 0, N2, 0, 0),
    "pixel_shuffle": (nn.PixelShuffle(2), [X2], 0, 0, 0, 0),
    "channel_shuffle": (nn.ChannelShuffle(2), [X2], 0, 0, 0, 0),
    # 4, 3 and 1 gates of 4 units for 2 rows, and two biases each
    "lstm_cell": (
        _Called(lambda m, a: m(a)[0], nn.LSTMCell(3, 4)),
        [(2, 3)],
        2 * 16 * 7,
        2 * (32 + 22 * 4),
        0,
        16 * 7 + 32,
    ),
    "gru_cell": (_Called(lambda m, a: m(a), nn.GRUCell(3, 4)), [(2, 3)], 2 * 12 * 7, 2 * (24 + 17 * 4), 0, 12 * 7 + 24),
    "rnn_tanh_cell": (
        _Called(lambda m, a: m(a), nn.RNNCell(3, 4)),
        [(2, 3)],
        2 * 4 * 7,
        2 * (8 + 2 * 4),
        0,
        4 * 7 + 8,
    ),
    # 3 frames of 8 numbers: window, and 2.5 n log2 n
    "stft": (
        lambda a: torch.stft(a, 8, 4, window=torch.ones(8, device="meta"), center=False, return_complex=True).real,
        [(16,)],
        0,
        3 * 8 * (1 + 2.5 * 3),
        0,
        0,
    ),
    "topk": (lambda a: a.topk(3)[0], [(2, 16)], 0, 32 * 2, 0, 0),
    "sort": (lambda a: a.sort()[0], [(2, 15)], 0, 30 * 4, 0, 0),
    "argsort": (torch.argsort, [(2, 15)], 0, 30 * 4, 0, 0),
}

#: Operations a number of every activation of torch.
ACTIVATIONS = {
    nn.ReLU: 1, nn.ReLU6: 2, nn.LeakyReLU: 2, nn.RReLU: 2, nn.ELU: 4, nn.SELU: 5, nn.CELU: 5, nn.GELU: 5, nn.SiLU: 5,
    nn.Mish: 5, nn.Sigmoid: 4, nn.Tanh: 1, nn.Hardsigmoid: 4, nn.Hardswish: 5, nn.Hardtanh: 2, nn.Softplus: 3,
    nn.Softsign: 3, nn.LogSigmoid: 4, nn.Tanhshrink: 2, nn.Softshrink: 2, nn.Hardshrink: 1, nn.Softmax2d: 5,
}  # fmt: skip


def _trace(function, shapes, by="graph"):
    """Return the operators, without those that make the inputs."""
    module = function if isinstance(function, nn.Module) else _Called(function)
    inputs = tuple(torch.empty(shape, device="meta") for shape in shapes)
    return [op for _, op in capture_operators(module, inputs, by=by) if op.kind != "zeros"]


@pytest.mark.parametrize("name", CASES)
def test_kind_is_counted_as_by_hand(name):
    function, shapes, macs, others, acts, params = CASES[name]
    counted = count_operators(_trace(function, shapes))
    found = counted.features
    assert (found.macs, found.flops - 2 * found.macs, found.acts, found.params) == (macs, others, acts, params)
    assert not counted.uncounted


@pytest.mark.parametrize("kind", ACTIVATIONS, ids=lambda kind: kind.__name__)
def test_activation_is_counted_as_by_hand(kind):
    counted = count_operators(_trace(kind(), [X2]))
    assert (counted.features.flops, counted.features.macs) == (ACTIVATIONS[kind] * N2, 0)
    assert (counted.features.inputs, counted.features.outputs) == (N2, N2)
    assert not counted.uncounted


@pytest.mark.parametrize("kind", sorted(POINTWISE))
def test_pointwise_kinds_scale_with_the_output(kind):
    one, two = (features_of(OpSpec.of(kind, [(batch, 4, 3)])) for batch in (1, 2))
    assert two.flops == 2 * one.flops == 24 * POINTWISE[kind]


@pytest.mark.parametrize("kind", sorted(REDUCTIONS))
def test_reductions_never_count_less_than_nothing(kind):
    reduced = features_of(OpSpec.of(kind, [(1, 4, 3)], dim=2, out=(1, 4)))
    assert 0 <= reduced.flops <= 5 * 12
    assert reduced.outputs == 4


@pytest.mark.parametrize("kind", MOVEMENTS)
def test_movements_read_and_write_and_compute_nothing(kind):
    moved = features_of(OpSpec.of(kind, [(1, 4, 3)], out=(1, 4, 6)))
    assert (moved.flops, moved.outputs) == (0, 24)


def test_every_kind_of_product_and_window_is_among_the_cases():
    plain = {name.split(" ")[0] for name in CASES}
    by_table = {*POINTWISE, *REDUCTIONS, *MOVEMENTS}
    in_the_zoo = {"index_add", "scatter_add", "index_put", "msort", "weight_norm", "rnn_relu_cell"}
    in_onnx_files = {"dft", "if", "unique"}
    aliases = {"addbmm", "addmv", "embedding", "embedding_bag", "global_average_pool", "identity"}
    blocks = {"conv_block", "inverted_residual", "expanded_conv", "classification_head", "multi_head_attention_forward"}
    traced = {op.kind for function, shapes, *_ in CASES.values() for op in _trace(function, shapes)}
    # Quantised layers are compared with their floating-point forms.
    known = {kind for kind in supported_kinds() if not kind.startswith("quantized_")}
    assert known <= {*plain, *by_table, *in_the_zoo, *in_onnx_files, *aliases, *blocks, *traced}


def test_embeddings_read_the_rows_that_they_return():
    indices = torch.zeros(2, 5, dtype=torch.long)
    (op,) = [op for _, op in capture_operators(nn.Embedding(1000, 6), indices, by="graph")]
    found = features_of(op)
    assert (found.flops, found.params, found.outputs) == (0, 6000, 60)
    assert found.memory == 4 * (60 + 60) + 8 * 10
    (op,) = [op for _, op in capture_operators(nn.EmbeddingBag(1000, 6), indices, by="graph")]
    assert features_of(op).flops == 60 - 12


def test_inputs_without_a_batch_are_a_batch_of_one():
    alone, one = (_trace(nn.Conv2d(8, 4, 3), [shape])[0] for shape in ((8, 6, 5), (1, 8, 6, 5)))
    assert features_of(alone) == features_of(one)


#: Products that torch's own counter gives zero for, or takes apart in another way.
_ZERO_IN_TORCH = ("lstm", "gru", "rnn", "bilinear", "mv", "dot")


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][2] and not name.startswith(_ZERO_IN_TORCH)])
def test_products_agree_with_the_counter_of_torch(name):
    function, shapes, macs, *_ = CASES[name]
    module = (function if isinstance(function, nn.Module) else _Called(function)).to("meta").eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(*(torch.empty(shape, device="meta") for shape in shapes))
    assert counter.get_total_flops() == 2 * macs


@pytest.mark.parametrize("name", KNOWN)
def test_known_networks_have_their_published_counts(name):
    build, params, giga = KNOWN[name]
    with torch.device("meta"):
        network, picture = build().eval(), torch.empty(1, 3, 224, 224)
    counted = count_operators(op for _, op in capture_operators(network, picture, by="graph"))
    assert sum(parameter.numel() for parameter in network.parameters()) == params
    assert counted.features.params == params
    assert round(counted.features.macs / 1e9, 2) == pytest.approx(giga, abs=0.005)
    assert not counted.uncounted
    if name in ("mobilenet_v3_large", "vit_b_16"):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            network(picture)
        assert counter.get_total_flops() == 2 * counted.features.macs


def test_modules_and_calls_count_the_same():
    with torch.device("meta"):
        network, picture = KNOWN["mobilenet_v3_large"][0]().eval(), torch.empty(2, 3, 64, 64)
    by_module, by_call = (
        count_operators(op for _, op in capture_operators(network, picture, by=by)) for by in ("module", "graph")
    )
    assert by_module == by_call


class _Swish(nn.Module):
    def forward(self, inputs):
        return inputs * torch.sigmoid(inputs)


def test_a_module_of_several_calls_is_taken_apart():
    (op,) = _trace(_Swish(), [X2], by="module")
    assert op.kind == "_swish"
    assert [part.kind for part in parts_of(op)] == ["sigmoid", "mul"]
    assert features_of(op).flops == 5 * N2


def test_what_can_not_be_counted_is_listed():
    ops = _trace(lambda a: torch.linalg.qr(a)[0] + torch.fft.fft(a).real, [(4, 4)])
    counted = count_operators(ops)
    assert counted.uncounted == ("linalg_qr", "fft_fft")
    assert counted.features.flops == 16
    assert counted.features.outputs == 3 * 16
    wild = OpSpec.of("einsum", [(2, 3)], arg0="ij,jk->ik")
    assert count_operators([wild]).uncounted == ("einsum",)


@settings(max_examples=40)
@given(
    st.sampled_from(sorted(name for name, case in CASES.items() if len(case[1]) == 1)),
    st.integers(1, 5),
)
def test_counts_scale_with_the_batch(name, batch):
    function, (shape, *_), *_ = CASES[name]
    if name in ("mv", "dot") or name.startswith(("sum of all",)):
        return
    one, many = (count_operators(_trace(function, [(size, *shape[1:])])).features for size in (1, batch))
    assert (many.macs, many.flops, many.acts) == tuple(batch * count for count in (one.macs, one.flops, one.acts))
    assert many.params == one.params


@pytest.mark.parametrize(
    "op",
    [
        OpSpec.of("conv2d", [(1, 3, 8, 8)], out_channels=4, kernel_size=(80, 3), stride=1, padding=0, groups=1),
        OpSpec.of("conv_transpose1d", [(1, 3, 2)], out_channels=4, kernel_size=1, stride=1, padding=3, groups=1),
    ],
    ids=lambda op: op.kind,
)
def test_window_that_is_larger_than_its_input_is_refused(op):
    """A negative number of outputs would make a negative cost."""
    with pytest.raises(InvalidValueError, match="a window that its input does not hold"):
        features_of(op)
