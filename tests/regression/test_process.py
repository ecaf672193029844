# SPDX-License-Identifier: Apache-2.0
"""A Gaussian process over features that learns which of them matter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nni_latency.regression import Process, left_out, negative_log_likelihood


def test_a_process_says_how_far_each_is_from_the_others():
    generator = np.random.default_rng(0)
    features = generator.normal(size=(40, 2))
    targets = 0.3 * np.sin(features[:, 0])
    targets[7] += 0.5
    assert int(np.argmax(np.abs(left_out(features, targets)))) == 7
    process = Process.fit(features, 0.3 * np.sin(features[:, 0]))
    assert process.predict(features) == pytest.approx(0.3 * np.sin(features[:, 0]), abs=0.02)


def test_a_process_learns_which_features_matter():
    generator = np.random.default_rng(0)
    features = generator.normal(size=(120, 8))
    process = Process.fit(features[:80], 0.3 * np.sin(2 * features[:80, 3]))
    assert int(np.argmin(process.width)) == 3
    assert process.predict(features[80:]) == pytest.approx(0.3 * np.sin(2 * features[80:, 3]), abs=0.1)
    assert Process.fit(features[:20], np.zeros(20)).predict(features) == pytest.approx(0.0)


@given(st.integers(0, 2**16))
@settings(max_examples=20, deadline=None)
def test_the_gradient_of_a_likelihood_is_that_of_differences(seed):
    generator = np.random.default_rng(seed)
    points, targets = generator.normal(size=(15, 3)), generator.normal(size=15)
    logs = np.append(0.55 + generator.normal(size=3), generator.uniform(-3.0, 0.5))
    steps = 1e-5 * np.eye(4)
    differences = [
        (
            negative_log_likelihood(logs + step, points, targets)[0]
            - negative_log_likelihood(logs - step, points, targets)[0]
        )
        / 2e-5
        for step in steps
    ]
    assert negative_log_likelihood(logs, points, targets)[1] == pytest.approx(differences, rel=1e-4, abs=1e-4)
