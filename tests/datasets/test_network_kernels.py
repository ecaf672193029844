# SPDX-License-Identifier: Apache-2.0
"""Predictors of kernels that learn from the kernels inside of networks."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nni_latency.datasets import NetworkEntry, learn_network_kernels
from nni_latency.errors import InvalidValueError
from nni_latency.kernels import Kernel, KernelPredictors
from nni_latency.operators import Graph, OpSpec, TracedOperator, work_of
from nni_latency.platforms import Platform

PLATFORM = Platform("toy", "onnxruntime")

_EXAMPLE = Path(__file__).parents[2] / "examples" / "kernels_never_sampled.py"


def _seconds(op):
    return 2e-6 + work_of(op)[0].flops / 2e10


def _entry(number, platform=PLATFORM, timed=True):
    """Make a network of four convolutions with their activations, a softmax and something unknown."""
    random = np.random.default_rng(number)
    operators, parts, taken = [], [], 3
    for place in range(4):
        width, side = int(random.integers(4, 65)), 16
        conv = OpSpec.of(
            "conv2d",
            [(1, taken, side, side)],
            out_channels=width,
            kernel_size=3,
            stride=1,
            padding=1,
            groups=1,
            bias=True,
        )
        operators.append(TracedOperator(f"conv{place}", conv, (2 * place - 1,) if place else ()))
        operators.append(TracedOperator(f"act{place}", OpSpec.of("relu", [(1, width, side, side)]), (2 * place,)))
        parts.append(((2 * place, 2 * place + 1), _seconds(conv)))
        taken = width
    operators.append(TracedOperator("odd", OpSpec.of("strange", [(1, taken, 16, 16)]), (7,)))
    parts.append(((8,), 1e-3))
    value = sum(seconds for _, seconds in parts) + 1e-4
    graph = Graph(tuple(operators), len(operators))
    return NetworkEntry(
        value, value, value, name=f"n{number}", family="toy", batch_size=1, platform=platform, graph_key=str(number),
        _load_graph=lambda _key: graph, _load_parts=lambda: tuple(parts) if timed else (),
    )  # fmt: skip


def test_kernels_of_other_networks_are_predicted(tmp_path):
    found = learn_network_kernels([_entry(number) for number in range(30)])
    assert list(found.predictors) == ["conv"]
    assert found.platform == PLATFORM
    assert found.constant == pytest.approx(1e-4)
    assert {item.kernel.kind for item in found.kernels} == {"conv_relu"}
    assert found.sampling == {"networks": 30, "held_out": 3}
    # What is held out is not learned from.
    assert found.tested
    assert not {item.kernel for item in found.tested} & {item.kernel for item in found.kernels}
    assert found.test_scores().within10 > 0.9
    kernel = Kernel.of("conv_relu", HW=16, CIN=21, COUT=37, KERNEL_SIZE=3, STRIDES=1)
    expected = _seconds(OpSpec.of("conv2d", [(1, 21, 16, 16)], out_channels=37, kernel_size=3, stride=1, padding=1))
    assert found.estimate_kernel(kernel).value == pytest.approx(expected, rel=0.1)
    again = KernelPredictors.load(found.save(tmp_path / "k.json"))
    assert again.estimate_kernel(kernel) == found.estimate_kernel(kernel)


def test_a_kernel_in_several_places_counts_once_with_its_median():
    entries = [_entry(number % 12) for number in range(36)]
    found = learn_network_kernels(entries, held_out=0)
    assert found.tested == ()
    assert {item.n_samples % 3 for item in found.kernels} == {0}
    assert sum(item.n_samples for item in found.kernels) == 36 * 4


def test_the_example_prints_how_far_the_same_kernels_are_apart(capsys):
    slow = tuple((numbers, 1.2 * seconds) for numbers, seconds in _entry(0).parts)
    copies = [replace(_entry(0), name=f"copy{place}") for place in range(3)]
    say_limit = runpy.run_path(str(_EXAMPLE))["say_limit"]
    say_limit("toy", [*copies, replace(_entry(0), name="slow", _load_parts=lambda: slow), _entry(1)])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    # A kernel, and a network, is within 10 % of the median of the three others unless it is the slow one; no kernel
    # occurs four times in one network, and none of the last network elsewhere.
    assert lines[0][1:5] == ["same", "network", "0", "-"]
    assert lines[1][1:3] == ["other", "networks"]
    assert int(lines[1][3]) > 0
    assert lines[1][4] == "75.0%"
    assert lines[2][1:4] == ["sums", "4", "75.0%"]


def test_progress_is_told_by_group():
    told = []
    learn_network_kernels([_entry(number) for number in range(12)], watch=lambda *how: told.append(how))
    assert told == [(0, 1), (1, 1)]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], "Got no network"),
        ([_entry(0), _entry(1, Platform("other", "onnxruntime"))], "networks of one platform.*other"),
        ([_entry(0, timed=False)], "no times of kernels"),
        ([_entry(0)], "needs 10 kernels of a group"),
    ],
)
def test_networks_that_say_nothing_are_refused(entries, message):
    with pytest.raises(InvalidValueError, match=message):
        learn_network_kernels(entries)
