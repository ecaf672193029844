# SPDX-License-Identifier: Apache-2.0
"""How much of the windows of a convolution lies inside is what torch sums over ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from nni_latency.graphs._operator_features import describe_operator
from nni_latency.graphs._windows import coverage_of
from nni_latency.operators import OpSpec, trace

SIDES = st.tuples(st.integers(1, 9), st.integers(1, 9))
SMALL = st.tuples(st.integers(1, 5), st.integers(1, 5))
STEPS = st.tuples(st.integers(1, 3), st.integers(1, 3))
EDGES = st.tuples(st.integers(0, 2), st.integers(0, 2))


def _inside(module: nn.Module, size: tuple[int, int]) -> tuple[float, OpSpec]:
    """Return the share of products with an element of the picture, and the traced operator."""
    with torch.no_grad():
        module.weight.fill_(1)
        found = module(torch.ones(1, 1, *size))
    return float(found.sum()), trace(module, torch.ones(1, 1, *size)).operators[0].op


@settings(deadline=None, max_examples=60)
@given(size=SIDES, kernel=SMALL, stride=STEPS, padding=EDGES, dilation=STEPS)
def test_windows_of_a_convolution(size, kernel, stride, padding, dilation):
    reach = [(side - 1) * gap + 1 for side, gap in zip(kernel, dilation, strict=True)]
    assume(all(n + 2 * p >= r for n, p, r in zip(size, padding, reach, strict=True)))
    layer = nn.Conv2d(1, 1, kernel, stride, padding, dilation, bias=False)
    total, op = _inside(layer, size)
    positions = layer(torch.ones(1, 1, *size)).numel()
    found = coverage_of(op)
    assert found.across * found.along == pytest.approx(max(total, 1) / (positions * kernel[0] * kernel[1]), rel=0.01)
    assert (found.whole == 1) == (found.along == 1)


@settings(deadline=None, max_examples=60)
@given(size=SIDES, kernel=SMALL, stride=STEPS, padding=EDGES, extra=EDGES)
def test_windows_of_a_transposed_convolution(size, kernel, stride, padding, extra):
    extra = tuple(min(one, step - 1) for one, step in zip(extra, stride, strict=True))
    rows = zip(size, stride, kernel, padding, extra, strict=True)
    assume(all((n - 1) * s + k - 2 * p + e > 0 for n, s, k, p, e in rows))
    total, op = _inside(nn.ConvTranspose2d(1, 1, kernel, stride, padding, extra, bias=False), size)
    assume(total > 0)
    found = coverage_of(op)
    assert found.across * found.along == pytest.approx(total / (size[0] * size[1] * kernel[0] * kernel[1]))


@pytest.mark.parametrize(("height", "share"), [(1, 1 / 3), (2, 2 / 3), (64, 1)])
def test_operations_beyond_the_edges_are_not_counted(height, share):
    op = OpSpec.of("conv2d", [(1, 16, height, 512)], out_channels=16, kernel_size=3, stride=1, groups=1, bias=False)
    inside, padded = describe_operator(op).amounts[:2]
    assert inside / padded == pytest.approx(share, rel=0.02)


def test_other_operators_have_no_windows():
    assert coverage_of(OpSpec.of("relu", [(1, 8, 4, 4)])) == coverage_of(OpSpec.of("linear", [(1, 8)], out_features=2))
