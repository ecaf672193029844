# SPDX-License-Identifier: Apache-2.0
"""Names of arguments that are given by position."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - everybody calls it so
from torch import nn

from nni_latency.operators import capture_operators, describe_call

X = torch.zeros(2, 8, 6, 4)

CALLS = [
    (lambda x: x.clamp(0, 6), {"min": 0, "max": 6}),
    (lambda x: torch.clamp(x, None, 6.0), {"max": 6.0}),
    (lambda x: x.cumsum(1), {"dim": 1}),
    (lambda x: x.flip(0, 2), {"dims": (0, 2)}),
    (lambda x: torch.flip(x, (0, 2)), {"dims": (0, 2)}),
    (lambda x: x.roll(1, 2), {"shifts": 1, "dims": 2}),
    (lambda x: x.repeat(1, 1, 2, 3), {"repeats": (1, 1, 2, 3)}),
    (lambda x: x.repeat_interleave(2, 1), {"repeats": 2, "dim": 1}),
    (lambda x: x.new_zeros(2, 3), {"size": (2, 3)}),
    (lambda x: torch.rot90(x, 1, (2, 3)), {"k": 1, "dims": (2, 3)}),
    (lambda x: x.max(1)[0], {"dim": 1}),
    (lambda x: x.max(1, True)[0], {"dim": 1, "keepdim": True}),
    (lambda x: x.topk(2, 1)[0], {"k": 2, "dim": 1}),
    (lambda x: x > 1, {"other": 1}),
    (lambda x: torch.where(x > 0, x, 2.0), {"other": 2.0}),
    (lambda x: x.masked_fill(x > 0, -1.0), {"value": -1.0}),
    (lambda x: torch.lerp(x, x, 0.5), {"weight": 0.5}),
    (lambda x: torch.einsum("bchw->bc", x), {"equation": "bchw->bc"}),
    (lambda x: torch.fft.fft(x, 5, 1), {"n": 5, "dim": 1}),
    (lambda x: F.lp_pool2d(x, 2, 3), {"norm_type": 2.0, "kernel_size": 3}),
    (lambda x: F.local_response_norm(x, 3), {"size": 3, "alpha": 1e-4, "beta": 0.75, "k": 1.0}),
    (lambda x: x.std(1), {"dim": 1}),
    (lambda x: x.sum((2, 3), True), {"dim": (2, 3), "keepdim": True}),
    (lambda x: F.pixel_shuffle(x, 2), {"upscale_factor": 2}),
]


class _Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, inputs):
        return self.function(inputs)


@pytest.mark.parametrize(("function", "named"), CALLS)
def test_positional_arguments_have_the_names_that_torch_gives_them(function, named):
    *_, (_, op) = capture_operators(_Call(function), X, by="graph")
    assert {name: value for name, value in op.attributes if name != "out"} == named


def test_arguments_by_name_and_by_position_are_one_operator():
    by_place, by_name = (
        capture_operators(_Call(function), X)[0][1]
        for function in (lambda x: x.roll(1, 2), lambda x: x.roll(dims=2, shifts=1))
    )
    assert by_place == by_name


def test_layers_of_several_weights_name_their_arguments():
    tokens = torch.zeros(2, 7, 16)
    ops = [op for _, op in capture_operators(nn.TransformerEncoderLayer(16, 4), tokens, by="graph")]
    attention = next(op for op in ops if op.kind == "multi_head_attention_forward")
    assert (attention["embed_dim_to_check"], attention["num_heads"]) == (16, 4)
    *_, (_, recurrent) = capture_operators(nn.GRU(16, 8, 2), tokens, by="graph")
    assert (recurrent["num_layers"], recurrent["bidirectional"]) == (2, False)


def _described(kind, args, kwargs):
    op = describe_call(kind, args, kwargs, torch.zeros(2))
    return {name: value for name, value in op.attributes if name != "out"}


@pytest.mark.parametrize("kind", ["name", "unheard_of", "", "overloads"])
def test_arguments_that_nothing_is_known_of_are_numbered(kind):
    assert _described(kind, (torch.zeros(2), 3, None, "x"), {"more": 1}) == {"arg0": 3, "arg2": "x", "more": 1}


def test_arguments_that_fit_no_notation_are_numbered():
    named = _described("cumsum", (torch.zeros(2), "one", "more", 3), {})
    assert named == {"arg0": "one", "arg1": "more", "arg2": 3}
