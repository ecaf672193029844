# SPDX-License-Identifier: Apache-2.0
"""Folds keep together what is alike, and nothing is predicted by what has seen it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import cross_val_predict

from nni_latency.regression import draw_folds, held_out


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), min_size=2, max_size=40), st.integers(2, 6))
def test_folds_are_a_partition_that_keeps_groups_together(blocks, n_folds):
    groups = [(number, kind) for number, (kind, count) in enumerate(blocks) for _ in range(count)]
    kinds = [kind for _, kind in groups]
    folds = draw_folds(groups, n_folds, 0, kinds)
    assert sorted(np.concatenate(folds)) == list(range(len(groups)))
    where = [{groups[row] for row in fold} for fold in folds]
    assert sum(map(len, where)) == len(blocks)
    for kind in set(kinds):
        held = [sum(1 for _, other in fold if other == kind) for fold in where]
        assert max(held) - min(held) <= 1


def test_predictions_are_those_of_scikit_learn_on_the_same_folds():
    generator = np.random.default_rng(0)
    features, targets = generator.normal(size=(20, 3)), generator.normal(size=20)
    folds = draw_folds(range(20), 4, seed=1)
    splits = [(np.setdiff1d(np.arange(20), fold), fold) for fold in folds]
    expected = cross_val_predict(LinearRegression(), features, targets, cv=splits)

    def fit(rows):
        model = LinearRegression().fit(features[rows], targets[rows])
        return lambda others: model.predict(features[others])

    assert held_out(20, folds, fit) == pytest.approx(expected)


def test_rows_of_no_fold_are_learned_from_and_not_predicted():
    seen = []
    found = held_out(4, [np.array([1]), np.array([2])], lambda rows: seen.append(rows.tolist()) or np.zeros_like)
    assert seen == [[0, 2, 3], [0, 1, 3]]
    assert np.isnan(found).tolist() == [True, False, False, True]
