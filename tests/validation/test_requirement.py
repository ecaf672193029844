# SPDX-License-Identifier: Apache-2.0
"""What a validation must reach."""

from __future__ import annotations

import dataclasses
import math

import pytest

from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.estimators import Scores
from nni_latency.validation import Requirement

_SCORES = Scores(n=9, mape=0.04, rmspe=0.06, bias=-0.03, within5=0.7, within10=0.9, spearman=0.98, worst=0.2)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("within10=0.95", "within10 >= 0.95"),
        ("within5=0.5", "within5 >= 0.5"),
        ("spearman=0.9", "spearman >= 0.9"),
        ("mape=0.05", "mape <= 0.05"),
        ("rmspe=0.1", "rmspe <= 0.1"),
        ("worst=.2", "worst <= 0.2"),
        (" bias = 1e-2", "bias <= 0.01"),
    ],
)
def test_requirement_says_in_which_direction_it_goes(text, shown):
    assert str(Requirement.parse(text)) == shown


@pytest.mark.parametrize("text", ["mape", "within10", "mape=", "mape=5%", "mape=a=b", "mape=nan", "nonsense", ""])
def test_requirement_of_another_form_is_refused(text):
    with pytest.raises(InvalidValueError, match=r"must be a score and its limit, such as within10=0\.95\. Got '"):
        Requirement.parse(text)


@pytest.mark.parametrize("text", ["within10=95", "within5=1.01", "within10=-1", "spearman=2", "mape=-0.1", "worst=-1"])
def test_requirement_that_no_score_reaches_is_refused(text):
    name = text.partition("=")[0]
    with pytest.raises(InvalidValueError, match=rf"The limit of {name} must be from .*95 % is written 0\.95\. Got"):
        Requirement.parse(text)


@pytest.mark.parametrize("text", ["within20=0.9", "=0.9", "n=3", "MAPE=0.1"])
def test_requirement_of_an_unknown_score_is_refused(text):
    with pytest.raises(UnknownNameError, match=r"Unknown score '.*'\. Available: within5, within10, spearman, mape"):
        Requirement.parse(text)


@pytest.mark.parametrize(
    ("name", "enough", "too_much"),
    [
        ("within5", 0.7, 0.71),
        ("within10", 0.9, 0.91),
        ("spearman", 0.98, 0.99),
        ("mape", 0.04, 0.039),
        ("rmspe", 0.06, 0.05),
        ("worst", 0.2, 0.19),
        ("bias", 0.03, 0.02),
    ],
)
def test_requirement_is_met_at_its_limit_and_not_beyond(name, enough, too_much):
    assert Requirement(name, enough).is_met(_SCORES)
    assert not Requirement(name, too_much).is_met(_SCORES)


def test_bias_to_either_side_is_a_bias():
    requirement = Requirement.parse("bias=0.02")
    assert [requirement.is_met(dataclasses.replace(_SCORES, bias=bias)) for bias in (-0.03, 0.03, 0.01)] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize("limit", [-1.0, 0.0, 1.0])
def test_rank_correlation_that_could_not_be_computed_meets_nothing(limit):
    assert not Requirement("spearman", limit).is_met(dataclasses.replace(_SCORES, spearman=math.nan))
