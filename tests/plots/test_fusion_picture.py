# SPDX-License-Identifier: Apache-2.0
"""The picture of a network before and after fusion."""

from __future__ import annotations

import pytest
from PIL import Image

from nni_latency.errors import InvalidValueError
from nni_latency.operators import FusionRule, FusionRules, OpSpec, chained
from nni_latency.platforms import Platform
from nni_latency.plots import draw_fusion

_RULES = FusionRules(Platform("cpu"), (FusionRule(("sigmoid", "neg"), True),))


@pytest.mark.parametrize("pairs", [1, 60])
def test_networks_of_any_length_are_drawn(pairs, tmp_path):
    network = chained([OpSpec.of(kind, [(1, 4)]) for kind in ("sigmoid", "neg")] * pairs)
    with Image.open(draw_fusion(network, _RULES, tmp_path / "before_after.png")) as picture:
        width, height = picture.size
    assert width == 2 * 736
    assert height < 2400


def test_title_counts_operators_and_kernels(tmp_path):
    network = chained([OpSpec.of(kind, [(1, 4)]) for kind in ("sigmoid", "neg")] * 3)
    shown = draw_fusion(network, _RULES, tmp_path / "a.svg", title="three").read_text(encoding="utf-8")
    assert "6 operators run as 3 kernels" in shown
    assert "three" in shown


def test_what_nobody_could_read_is_not_drawn(tmp_path):
    for length in (0, 501):
        with pytest.raises(InvalidValueError, match=f"A network of {length} operators cannot be drawn"):
            draw_fusion(chained([OpSpec.of("neg", [(1, 4)])] * length), _RULES, tmp_path / "before_after.png")
