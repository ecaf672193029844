# SPDX-License-Identifier: Apache-2.0
"""What is to be measured."""

from __future__ import annotations

import pytest

from nni_latency.errors import InvalidValueError
from nni_latency.tables import MeasurePlan, PlanLayer, SpaceReference
from nni_latency.testing import fake_plan

_PLAN, _ = fake_plan({"stem": {"conv": 1.0}, "a": {"x": 1.0, "y": 2.0}, "b": {"x": 1.0}}, fixed=["stem"], width=2)


def test_plan_counts_candidates_of_every_layer():
    assert _PLAN.sizes == (1, 2, 1)


def test_plan_lists_what_the_space_chooses():
    assert [layer.name for layer in _PLAN.searched] == ["a", "b"]


def test_plan_without_choices_is_refused():
    fixed = PlanLayer("stem", _PLAN.layers[0].candidates, searched=False, default="conv")
    with pytest.raises(
        InvalidValueError, match=r"The space fake\(width=2\) has no choices: there is nothing to search"
    ):
        MeasurePlan(_PLAN.space, (1, 4), (fixed,))


def test_layer_without_candidates_is_refused():
    with pytest.raises(InvalidValueError, match=r"Layer 'a' has no candidates"):
        PlanLayer("a", {})


@pytest.mark.parametrize("default", [None, "z"])
def test_fixed_layer_must_name_its_candidate(default):
    with pytest.raises(InvalidValueError, match=rf"The fixed layer 'a' must name one of x, y\. Got {default!r}"):
        PlanLayer("a", _PLAN.layers[1].candidates, searched=False, default=default)


def test_reference_reads_like_a_call():
    assert str(SpaceReference("fbnet", {"width": 0.5, "preset": "cifar"})) == "fbnet(width=0.5, preset=cifar)"


def test_reference_differences_name_both_sides():
    one, other = SpaceReference("a", {"x": 1, "y": 2}), SpaceReference("b", {"x": 1, "y": 3, "z": 4})
    assert one.differences(other) == ["a against b", "y=2 against y=3", "z=None against z=4"]


def test_reference_differences_pass_over_what_is_ignored():
    assert SpaceReference("a", {"x": 1}).differences(SpaceReference("a", {"x": 2}), ignore=("x",)) == []


def test_reference_keeps_its_arguments_from_changes():
    given = {"x": 1}
    reference = SpaceReference("a", given)
    given["x"] = 2
    assert reference == SpaceReference("a", {"x": 1})
