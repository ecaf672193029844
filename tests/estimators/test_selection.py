# SPDX-License-Identifier: Apache-2.0
"""Any estimator, asked about a network of a plan by its choices."""

from __future__ import annotations

import pytest
from whole_network import WholeNetwork

from nni_latency.errors import InvalidValueError, MismatchError, MissingEntryError
from nni_latency.estimators import (
    TableEstimator,
    estimate_layers,
    estimate_selection,
)
from nni_latency.platforms import Platform
from nni_latency.tables import Entry, LookupTable, TableLayer
from nni_latency.testing import fake_plan

_TIMES = {"stem": {"conv": 4.0, "other": 5.0}, "a": {"x": 1.0, "y": 3.0}, "b": {"x": 2.0, "y": 6.0}}
_SELECTION = {"stem": "conv", "a": "y", "b": "x"}
_WHOLE = WholeNetwork(lambda op: _TIMES[op["layer"]][op["choice"]])


@pytest.fixture
def plan():
    return fake_plan(_TIMES, fixed=["stem"])[0]


def _table(plan, calibration=1.0, leave_out=()):
    layers = tuple(
        TableLayer(
            layer.name,
            tuple(layer.candidates),
            {
                choice: Entry(*[_TIMES[layer.name][choice]] * 3, op=candidate.op)
                for choice, candidate in layer.candidates.items()
                if (layer.name, choice) not in leave_out
            },
            layer.searched,
            layer.default,
        )
        for layer in plan.layers
    )
    return LookupTable(
        space=plan.space, platform=Platform("pi"), layers=layers, input_shape=plan.input_shape, calibration=calibration
    )


def test_table_estimates_a_selection_as_it_does_a_sample(plan):
    estimator = TableEstimator(_table(plan, calibration=1.5))
    assert estimate_selection(estimator, plan, _SELECTION) == estimator.estimate_sample({"a": "y", "b": "x"})


def test_layer_estimator_is_asked_for_every_part(plan, by_choice):
    estimator = by_choice({"conv": 4.0, "x": 1.0, "y": 3.0}, calibration=2.0)
    assert estimate_selection(estimator, plan, _SELECTION).value == pytest.approx(2.0 * (4.0 + 3.0 + 1.0))


def test_network_estimator_gets_the_whole_network(plan):
    assert estimate_selection(_WHOLE, plan, _SELECTION).value == 4.0 + 3.0 + 2.0


def test_selection_with_a_missing_candidate_names_it(plan):
    estimator = TableEstimator(_table(plan, leave_out=[("a", "y")]))
    with pytest.raises(MissingEntryError, match=r"no entry for 'a': y"):
        estimate_selection(estimator, plan, _SELECTION)


def test_selection_of_another_space_than_the_tables_is_refused(plan):
    other, _ = fake_plan(_TIMES, fixed=["stem"], width=0.5)
    with pytest.raises(MismatchError, match=r"another space than asked \(width=None against width=0\.5\)"):
        estimate_selection(TableEstimator(_table(plan)), other, _SELECTION)


def test_selection_may_choose_a_fixed_layer(plan):
    estimator = TableEstimator(_table(plan))
    assert estimate_selection(estimator, plan, {**_SELECTION, "stem": "other"}).value == 10.0


def test_selection_that_is_not_in_the_plan_is_refused(plan):
    with pytest.raises(InvalidValueError, match=r"The choice of 'b' must be one of x, y\. Got 'z'"):
        estimate_selection(_WHOLE, plan, {**_SELECTION, "b": "z"})


def test_layers_of_a_table_are_those_of_the_plan_and_add_up(plan):
    estimator = TableEstimator(_table(plan, calibration=1.5))
    parts = estimate_layers(estimator, plan, _SELECTION)
    assert [(part.name, part.choice) for part in parts] == list(_SELECTION.items())
    assert [part.estimate.value for part in parts] == pytest.approx([6.0, 4.5, 3.0])
    assert [part.share for part in parts] == pytest.approx([4 / 9, 3 / 9, 2 / 9])


def test_layers_of_a_layer_estimator_add_up_to_the_whole(plan, by_choice):
    estimator = by_choice({"conv": 4.0, "x": 1.0, "y": 3.0}, calibration=2.0)
    parts = estimate_layers(estimator, plan, _SELECTION)
    whole = estimate_selection(estimator, plan, _SELECTION).value
    assert sum(part.estimate.value for part in parts) == pytest.approx(whole)


def test_layers_of_a_network_estimator_are_refused(plan):
    with pytest.raises(InvalidValueError, match=r"estimates whole networks and cannot be taken apart by layer"):
        estimate_layers(_WHOLE, plan, _SELECTION)
