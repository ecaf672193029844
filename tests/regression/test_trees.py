# SPDX-License-Identifier: Apache-2.0
"""Trees as arrays, held to those of scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import TypeAdapter
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor

from nni_latency.documents import line
from nni_latency.errors import InvalidValueError
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


def test_a_tree_that_never_ends_is_refused():
    with pytest.raises(InvalidValueError, match="must have children behind it"):
        Tree((0, -1), (0.5, 1.0), (0, 0), (1, 0))


def test_features_that_do_not_exist_are_refused():
    with pytest.raises(InvalidValueError, match="Got -200"):
        Tree((0, -200, -1), (0.0, 1.0, 2.0), (1, 0, 0), (2, 0, 0))
