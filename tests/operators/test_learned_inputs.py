# SPDX-License-Identifier: Apache-2.0
"""Parameters that functions outside of layers take: they count as parameters, and not as inputs."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - everybody calls it so
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.operators import (
    OpSpec,
    build_operator,
    capture_operators,
    count_operators,
    features_of,
    given_shapes,
    parse_op_keys,
    parts_of,
    trace,
)

FEATURES, ROWS = torch.zeros(2, 8, 6, 4), torch.zeros(2, 7, 16)


class _Learning(nn.Module):
    """Calls a function with parameters of its own, and its inputs behind them."""

    def __init__(self, function, *shapes):
        super().__init__()
        self.function = function
        self.own = nn.ParameterList([nn.Parameter(torch.ones(shape)) for shape in shapes])

    def forward(self, *inputs):
        return self.function(*self.own, *inputs)


#: Name to (function, shapes of parameters, input, what says so in the key, input elements, whether it can be built).
CASES = {
    "scale": (lambda gamma, x: gamma * x, [(8, 1, 1)], FEATURES, "8x1x1+", 384, True),
    "scale of one number": (lambda gamma, x: x / gamma, [()], FEATURES, "+1", 384, True),
    "scale in place": (lambda gamma, x: x.mul_(gamma), [(4,)], FEATURES, "+4", 384, True),
    "class token": (
        lambda token, x: torch.cat([token.expand(len(x), -1, -1), x], 1),
        [(1, 1, 16)],
        ROWS,
        "1x1x16+",
        224,
        True,
    ),
    "position embedding": (lambda table, x: x + table, [(1, 7, 16)], ROWS, "+1x7x16", 224, True),
    "product": (lambda weight, x: weight @ x, [(5, 6)], FEATURES, "5x6+", 384, True),
    "product with a view": (lambda weight, x: x @ weight.t(), [(5, 16)], ROWS, "+16x5", 224, True),
    "sum of products": (
        lambda weight, x: torch.einsum("oc,bchw->bohw", weight, x),
        [(5, 8)],
        FEATURES,
        "5x8+",
        384,
        False,
    ),
    "queries": (
        lambda query, x: F.scaled_dot_product_attention(query.expand(2, -1, -1), x, x),
        [(1, 3, 16)],
        ROWS,
        "1x3x16++",
        448,
        True,
    ),
    "constant in front of a layer": (
        lambda constant, x: F.conv2d(constant.expand(2, -1, -1, -1), x),
        [(1, 8, 6, 4)],
        torch.zeros(4, 8, 1, 1),
        "1x8x6x4",
        0,
        True,
    ),
    "look-up": (
        lambda table, index: table[index.view(-1)],
        [(9, 3)],
        torch.zeros(4, 5, dtype=torch.int64),
        "9x3",
        0,
        False,
    ),
}


def _trace(name, by="graph"):
    function, shapes, inputs, *_ = CASES[name]
    ((_, op),) = capture_operators(_Learning(function, *shapes), inputs, by)
    return op


@pytest.mark.parametrize("name", CASES)
def test_parameters_outside_of_layers_count_as_such(name):
    op, features = _trace(name), features_of(_trace(name))
    _, shapes, _, learned, inputs, _ = CASES[name]
    assert op["learned"] == learned
    layer = 4 * 8 if op.kind == "conv2d" else 0
    assert features.params == sum(map(math.prod, shapes)) + layer
    assert features.inputs == inputs
    assert features.memory == 4 * (features.inputs + features.outputs + features.params)


@pytest.mark.parametrize("name", CASES)
def test_module_and_graph_tell_the_same_parameters(name):
    assert _trace(name, "module") == _trace(name)


@pytest.mark.parametrize("name", CASES)
def test_key_of_an_operator_with_parameters_says_all(name):
    op = _trace(name)
    assert [parsed.op_key for parsed in parse_op_keys(op.op_key)] == [op.op_key]
    assert features_of(parse_op_keys(op.op_key)[0]) == features_of(op)


@pytest.mark.parametrize("text", ["48xa", "9" * 5000, "48x16+-1"])
def test_parameters_that_are_no_shapes_are_refused(text):
    op = OpSpec.of("lstm", [(5, 1, 8)], weights=text)
    with pytest.raises(InvalidValueError, match=r"'weights' of .* must be shapes such as '48x16\+48'"):
        features_of(op)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[-1]])
def test_operator_with_parameters_is_built_from_its_key(name):
    op = _trace(name)
    built = build_operator(op)
    assert sum(parameter.numel() for parameter in built.parameters()) == features_of(op).params
    inputs = tuple(torch.ones(shape) for shape in given_shapes(op))
    if inputs:
        ((_, again),) = capture_operators(built, inputs, by="graph")
        assert again == op
    assert built(*inputs).dtype == torch.float32


@settings(max_examples=20)
@given(st.integers(1, 6), st.integers(1, 9))
def test_a_token_counts_once_whatever_the_batch(batch, tokens):
    module = _Learning(CASES["class token"][0], (1, 1, 16))
    counted = count_operators(op for _, op in capture_operators(module, torch.zeros(batch, tokens, 16)))
    assert (counted.features.params, counted.features.inputs) == (16, batch * tokens * 16)


def test_sums_of_inputs_keep_their_key():
    ((_, op),) = capture_operators(_Learning(lambda x: x + x), FEATURES)
    assert op.op_key == "add()@2x8x6x4+2x8x6x4:float32"
    assert given_shapes(op) == op.input_shapes


def test_what_is_computed_of_a_parameter_is_an_input():
    module = _Learning(lambda gate, x: torch.sigmoid(gate) * x, (8, 1, 1))
    gate, scale = (op for _, op in capture_operators(module, FEATURES))
    assert (gate.op_key, scale.op_key) == (
        'sigmoid(learned="8x1x1")@8x1x1:float32',
        "mul()@8x1x1+2x8x6x4:float32",
    )


class _Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.zeros(4))

    def forward(self, x):
        return x + self.table


def test_buffers_are_inputs():
    ((_, op),) = capture_operators(_Shifted(), FEATURES)
    assert op.op_key == "add()@2x8x6x4+4:float32"


def test_parameters_are_told_on_data_too():
    def forward(gamma, x):
        return gamma * x if x.sum() >= 0 else x

    with pytest.warns(UserWarning, match="without data"):
        ops = [item.op for item in trace(_Learning(forward, (4,)), FEATURES).operators]
    assert 'mul(learned="4+")@4+2x8x6x4:float32' in [op.op_key for op in ops]


def test_learned_queries_of_an_attention_layer_count():
    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            self.query = nn.Parameter(torch.zeros(1, 3, 16))
            self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

        def forward(self, x):
            return self.attention(self.query.expand(len(x), -1, -1), x, x, need_weights=False)[0]

    model = Pool()
    ((_, op),) = capture_operators(model, ROWS)
    assert features_of(op).params == sum(parameter.numel() for parameter in model.parameters())
    # three queries and seven tokens of two pictures: four projections, scores and weighted sum
    assert features_of(op).macs == 2 * (2 * 3 + 2 * 7) * 256 + 2 * 2 * 3 * 7 * 16
    assert [part.get("learned") for part in parts_of(op)] == ["3x1x16", *[None] * 4]


@pytest.mark.parametrize("text", ["8", "8x+", "+x", "4+4+4", "-1+"])
def test_a_key_that_says_it_wrongly_is_refused(text):
    op = OpSpec.of("mul", [(2, 4), (4,)], learned=text)
    with pytest.raises(InvalidValueError, match=r"must have the shape of a parameter, or nothing, for each of its 2"):
        features_of(op)
    with pytest.raises(UnknownNameError, match=r"cannot be built from its key"):
        build_operator(op)


@pytest.mark.parametrize(
    ("layer", "key", "params"),
    [
        (nn.BatchNorm2d(8), "batch_norm()", 16),
        (nn.BatchNorm2d(8, affine=False), "batch_norm(affine=0)", 0),
        (nn.GroupNorm(2, 8), 'group_norm(num_groups=2,weights="8+8")', 16),
        (nn.GroupNorm(2, 8, affine=False), "group_norm(num_groups=2)", 0),
        (nn.InstanceNorm2d(8), "instance_norm()", 0),
        (nn.InstanceNorm2d(8, affine=True), 'instance_norm(weights="8+8")', 16),
        (nn.LayerNorm(4, bias=False), 'layer_norm(normalized_shape=4,weights="4")', 4),
        (nn.LayerNorm(4, elementwise_affine=False), "layer_norm(normalized_shape=4)", 0),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("by", ["module", "graph"])
def test_normalisation_without_parameters_is_told_apart(layer, key, params, by):
    ((_, op),) = capture_operators(layer, FEATURES, by)
    assert op.op_key == f"{key}@2x8x6x4:float32"
    assert features_of(op).params == params


@pytest.mark.parametrize(
    ("weights", "key", "params"),
    [((None, None), "affine=0", 0), (((8,), None), "bias=0", 8), (((8,), (8,)), "", 16)],
)
def test_batch_norm_called_as_a_function_says_what_it_has(weights, key, params):
    def forward(*given):
        *own, x = given
        scale, shift = (own.pop(0) if shape else None for shape in weights)
        mean, variance = x.new_zeros(8), x.new_ones(8)
        by_torch = torch.batch_norm(x, scale, shift, mean, variance, False, 0.1, 1e-5, False)
        return by_torch, F.batch_norm(x, mean, variance, scale, shift)

    module = _Learning(forward, *(shape for shape in weights if shape))
    ops = [op for _, op in capture_operators(module, FEATURES) if op.kind == "batch_norm"]
    assert [op.op_key for op in ops] == [f"batch_norm({key})@2x8x6x4:float32"] * 2
    assert features_of(ops[0]).params == params
    assert features_of(ops[0]).memory == 4 * (2 * 384 + params + 16)
