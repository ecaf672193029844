# SPDX-License-Identifier: Apache-2.0
"""Trees as arrays, held to those of scikit-learn."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from pydantic import TypeAdapter
from sklearn.ensemble import GradientBoostingRegressor, HistGradientBoostingRegressor, RandomForestRegressor

from nni_latency.documents import line
from nni_latency.errors import InvalidValueError, MissingDependencyError
from nni_latency.regression import Tree, Trees


@pytest.mark.parametrize("kind", [RandomForestRegressor, GradientBoostingRegressor])
def test_trees_say_what_scikit_learn_says(kind):
    generator = np.random.default_rng(0)
    features, targets = generator.normal(size=(80, 4)), generator.normal(size=80)
    learned = kind(n_estimators=7, random_state=0).fit(features, targets)
    trees = (Trees.of_forest if kind is RandomForestRegressor else Trees.of_boosting)(learned)
    asked = generator.normal(size=(30, 4))
    assert trees.predict(asked) == pytest.approx(learned.predict(asked), rel=1e-4, abs=1e-5)
    many = np.tile(asked, (200, 1))
    np.testing.assert_allclose(trees.predict(many), np.tile(trees.predict(asked), 200), rtol=1e-12)
    assert trees.predict(asked[:0]).shape == (0,)
    assert TypeAdapter(Trees).validate_json(line(trees)) == trees


def test_trees_of_histograms_say_what_scikit_learn_says():
    generator = np.random.default_rng(0)
    features = generator.normal(size=(500, 4)).astype(np.float32).astype(np.float64)
    targets = 3.0 + np.sin(features[:, 0]) + generator.normal(size=500)
    learned = HistGradientBoostingRegressor(max_iter=20, max_depth=4).fit(features, targets)
    trees = Trees.of_histograms(learned, features)
    assert trees.predict(features) == pytest.approx(learned.predict(features), rel=1e-4)
    assert TypeAdapter(Trees).validate_json(line(trees)) == trees


def test_trees_that_scikit_learn_keeps_in_another_way_are_refused():
    features = np.random.default_rng(0).normal(size=(50, 2))
    learned = HistGradientBoostingRegressor(max_iter=3).fit(features, features[:, 0])
    known = {name: getattr(learned, name) for name in ("_predictors", "_baseline_prediction", "predict")}
    assert len(Trees.of_histograms(SimpleNamespace(**known), features).trees) == 3
    for other in (
        {"predict": learned.predict},
        {**known, "_predictors": learned._predictors[:1]},
        {**known, "_baseline_prediction": np.array([[9.0]])},
    ):
        with pytest.raises(MissingDependencyError, match="scikit-learn keeps the trees"):
            Trees.of_histograms(SimpleNamespace(**other), features)


def test_trees_are_added_up():
    one, two = Trees((Tree((-1,), (2.0,), (0,), (0,)),), 0.5), Trees((Tree((-1,), (3.0,), (0,), (0,)),), 1.0)
    assert (one + two).predict([[0.0]]) == one.predict([[0.0]]) + two.predict([[0.0]])
    with pytest.raises(InvalidValueError, match=r"scales 1 and 0\.5 cannot be added up"):
        one + Trees(two.trees, scale=0.5)


def test_a_tree_that_never_ends_is_refused():
    with pytest.raises(InvalidValueError, match="must have children behind it"):
        Tree((0, -1), (0.5, 1.0), (0, 0), (1, 0))


@pytest.mark.parametrize("count", [1, 127, 129, 32769])
def test_arrays_of_trees_of_any_size_are_read_again(count):
    is_leaf = [node % 2 == 1 or node == count - 1 for node in range(count)]
    children = [[0 if leaf else node + side for node, leaf in enumerate(is_leaf)] for side in (1, 2)]
    features = tuple(-1 if leaf else 0 for leaf in is_leaf)
    trees = Trees((Tree(features, tuple(map(float, range(count))), *map(tuple, children)),))
    arrays = trees.arrays()
    assert arrays["right"].dtype == (np.int8 if count < 128 else np.int16 if count < 32768 else np.int32)
    assert Trees.of_arrays(arrays) == trees


def test_features_that_do_not_exist_are_refused():
    with pytest.raises(InvalidValueError, match="Got -200"):
        Tree((0, -200, -1), (0.0, 1.0, 2.0), (1, 0, 0), (2, 0, 0))
