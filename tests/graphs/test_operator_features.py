# SPDX-License-Identifier: Apache-2.0
"""What an operator does to memory is among its features."""

from __future__ import annotations

import pytest

from nni_latency.graphs._operator_features import KINDS, N_OWN, describe_operator
from nni_latency.operators import OpSpec

MAP = (1, 64, 16, 16)


def _layout(kind: str, *shapes: tuple[int, ...], **attributes: object) -> tuple[float, ...]:
    found = describe_operator(OpSpec.of(kind, shapes or (MAP,), **attributes)).features
    assert len(found) == N_OWN
    return found[-13:-3]


def test_elements_next_to_each_other() -> None:
    kept = [_layout("copy", dims=order)[0] for order in ((0, 2, 3, 1), (0, 1, 3, 2), (0, 2, 1, 3), (1, 0, 2, 3))]
    assert kept == sorted(kept)
    assert kept[0] == kept[1] < kept[2] < kept[3]
    assert _layout("cat", MAP, MAP, dim=1)[0] > _layout("cat", MAP, MAP, dim=3)[0]


def test_dimensions_that_a_transposition_moves() -> None:
    def moved(*order: int) -> tuple[float, ...]:
        return _layout("copy", (1, 16, 4, 8), dims=order)[-2:]

    assert moved(0, 1, 2, 3) == moved(1, 0, 2, 3)
    assert [moved(*order)[0] for order in ((0, 1, 2, 3), (0, 2, 3, 1), (0, 2, 1, 3), (0, 3, 2, 1))] == [1, 2, 3, 3]
    assert moved(0, 2, 3, 1)[1] == moved(0, 3, 2, 1)[1] > moved(0, 1, 3, 2)[1]


def test_elements_that_are_reduced() -> None:
    inner, outer = _layout("mean", dim=(2, 3)), _layout("mean", dim=(1,))
    assert inner[1] > outer[1]
    assert inner[0] < outer[0]
    assert _layout("softmax", dim=-1) == _layout("softmax", dim=3)


def test_steps_of_a_recurrent_layer_are_calls_after_its_set_up() -> None:
    weights = "64x8+64x16+64+64"
    one = describe_operator(OpSpec.of("lstm", [(20, 1, 8)], weights=weights, out=(20, 1, 16)))
    two = describe_operator(OpSpec.of("lstm", [(20, 1, 8)], weights=f"{weights}+{weights}", out=(20, 1, 32)))
    assert (one.amounts[6], two.amounts[6]) == (35, 70)
    assert describe_operator(OpSpec.of("relu", [MAP])).amounts[6] == 1


@pytest.mark.parametrize(
    ("op", "loops"),
    [
        (OpSpec.of("matmul", [(2, 4, 8, 3), (2, 4, 3, 8)], out=(2, 4, 8, 8)), 8),
        (OpSpec.of("linear", [(2, 4, 8)], out_features=3), 1),
        (OpSpec.of("einsum", [(32, 2, 5, 40), (80, 2, 5, 40)], equation="ibnd, jbnd -> ijbn", out=(32, 80, 2, 5)), 10),
        (OpSpec.of("einsum", [(2, 3, 8, 4, 6), (3, 6, 6)], equation="nkctv,kvw->nctw", out=(2, 8, 4, 6)), 1),
        (OpSpec.of("einsum", [(2, 3, 8, 4), (2, 3, 4, 8)], equation="...ij,...jk->...ik", out=(2, 3, 8, 8)), 6),
        (OpSpec.of("softmax", [(2, 4, 8)], dim=-1), 8),
        (OpSpec.of("mean", [MAP], dim=(2, 3), out=(1, 64, 1, 1)), 64),
        (OpSpec.of("sum", [(1, 2, *MAP[1:])], dim=(1,), out=MAP), 2),
        (OpSpec.of("interpolate", [MAP], mode="bilinear", out=(1, 64, 32, 32)), 32 * 32),
        (OpSpec.of("layer_norm", [(2, 4, 8)], weights="8+8"), 8),
        (OpSpec.of("layer_norm", [(2, 4, 8)], weights="4x8+4x8"), 2),
        (OpSpec.of("prelu", [MAP], weights="64x1x1"), 64),
        (OpSpec.of("conv1d", [(2, 16, 50)], out_channels=16, groups=16, kernel_size=3), 32),
        (OpSpec.of("conv2d", [MAP], out_channels=128, groups=64, kernel_size=3, stride=1), 64),
        (OpSpec.of("conv2d", [MAP], out_channels=64, groups=64, kernel_size=3, stride=1), 1),
        (OpSpec.of("max_pool2d", [MAP], kernel_size=2, stride=2, out=(1, 64, 8, 8)), 1),
        (OpSpec.of("pad", [MAP], mode="reflect", out=(1, 64, 18, 18)), 64 * 18),
        (OpSpec.of("copy", [(1, 8, 4, 16)], dims=(0, 2, 1, 3), out=(1, 4, 8, 16)), 32),
        (OpSpec.of("copy", [(1, 8, 4, 16)], dims=(0, 1, 3, 2), out=(1, 8, 16, 4)), 1),
        (OpSpec.of("copy", [(1, 8, 1, 16)], dims=(0, 2, 1, 3), out=(1, 1, 8, 16)), 1),
        (OpSpec.of("repeat", [(1, 8, 1)], out=(1, 8, 16)), 8),
        (OpSpec.of("cat", [(2, 4, 8), (2, 4, 8)], dim=2), 16),
        (OpSpec.of("index", [(1, 12)], dim=0, out=(1, 12, 64)), 12),
        (OpSpec.of("embedding", [(1, 12)], weights="100x64", out=(1, 12, 64)), 12),
        (OpSpec.of("index", [(1, 12, 64)], dim=1, out=(1, 3, 64)), 3),
        (OpSpec.of("add", [MAP, MAP]), 1),
        (OpSpec.of("add", [MAP, (1, 64, 1, 1)]), 64),
        (OpSpec.of("add", [MAP, (16,)]), 1024),
        (OpSpec.of("add", [MAP, (1,)]), 1),
        (OpSpec.of("relu", [MAP]), 1),
    ],
    ids=lambda value: value.kind if isinstance(value, OpSpec) else "",
)
def test_inner_loops(op: OpSpec, loops: int) -> None:
    """Matrices, rows that are reduced, places of a picture, pieces that are moved, and stretches of a broadcast."""
    assert describe_operator(op).amounts[7] == loops - 1


def _convolution(groups: int) -> OpSpec:
    return OpSpec.of("conv2d", [MAP], out_channels=64, groups=groups, kernel_size=3, stride=1, bias=False)


def test_channels_of_a_group_are_padded() -> None:
    def padded(groups: int) -> float:
        amounts = describe_operator(_convolution(groups)).amounts
        return amounts[1] / amounts[0]

    assert [padded(groups) / padded(1) for groups in (1, 2, 16, 64)] == pytest.approx([1, 1, 4, 1])


@pytest.mark.parametrize("other", [{"dilation": 2}, {"kernel_size": (1, 9)}, {"dtype": "float16"}])
def test_attributes_of_a_convolution_count(other: dict[str, object]) -> None:
    usual = {"out_channels": 8, "kernel_size": 3, "stride": 1, "groups": 1}
    assert _layout("conv2d", **usual) != _layout("conv2d", **{**usual, **other})


def test_kinds_have_a_code_each() -> None:
    assert len(set(KINDS)) == len(KINDS)
    codes = [describe_operator(OpSpec.of("pow", [MAP], exponent=value)).kind for value in (2.0, 0.5, 1.7)]
    assert len(set(codes)) == 3
    assert describe_operator(OpSpec.of("unheard of", [MAP])).kind == 0
    modes = [describe_operator(OpSpec.of("interpolate", [MAP], mode=mode)).kind for mode in ("nearest", "bilinear")]
    assert len({0, *modes}) == 3


def test_a_broadcast_input_is_small() -> None:
    same, scale = _layout("mul", MAP, MAP)[4], _layout("mul", MAP, (1, 64, 1, 1))[4]
    assert (same, scale) == (0, -8)
