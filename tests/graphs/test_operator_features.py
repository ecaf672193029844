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
    return found[-8:]


def test_elements_next_to_each_other() -> None:
    kept = [_layout("copy", dims=order)[0] for order in ((0, 2, 3, 1), (0, 1, 3, 2), (0, 2, 1, 3), (1, 0, 2, 3))]
    assert kept == sorted(kept)
    assert kept[0] == kept[1] < kept[2] < kept[3]
    assert _layout("cat", MAP, MAP, dim=1)[0] > _layout("cat", MAP, MAP, dim=3)[0]


def test_elements_that_are_reduced() -> None:
    inner, outer = _layout("mean", dim=(2, 3)), _layout("mean", dim=(1,))
    assert inner[1] > outer[1]
    assert inner[0] < outer[0]
    assert _layout("softmax", dim=-1) == _layout("softmax", dim=3)


def test_steps_of_a_recurrent_layer_are_calls() -> None:
    weights = "64x8+64x16+64+64"
    one = describe_operator(OpSpec.of("lstm", [(20, 1, 8)], weights=weights, out=(20, 1, 16)))
    two = describe_operator(OpSpec.of("lstm", [(20, 1, 8)], weights=f"{weights}+{weights}", out=(20, 1, 32)))
    assert (one.amounts[-1], two.amounts[-1]) == (20, 40)
    assert describe_operator(OpSpec.of("relu", [MAP])).amounts[-1] == 1


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
