# SPDX-License-Identifier: Apache-2.0
"""Gaussian processes of points and of sums, held to scikit-learn and to linear algebra by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, Matern, WhiteKernel

from nni_latency.regression import CORRELATIONS, Posterior, Spectrum, ordinary_weights, squared_distances

NOISE = 0.04


@pytest.fixture(scope="module")
def points():
    return np.random.default_rng(0).normal(size=(30, 2))


@pytest.fixture(scope="module")
def targets(points):
    return np.sin(points[:, 0]) + 0.2 * np.random.default_rng(1).normal(size=len(points))


def _correlation(name, one, other, scale=1.0):
    return CORRELATIONS[name](np.sqrt(squared_distances(one, other)) / scale)


@pytest.fixture(scope="module")
def seen(points, targets):
    return Posterior(_correlation("matern32", points, points) + NOISE * np.eye(len(points)), targets)


@pytest.mark.parametrize(
    ("name", "kernel"), [("matern12", Matern(1.5, nu=0.5)), ("matern32", Matern(1.5, nu=1.5)), ("gaussian", RBF(1.5))]
)
def test_a_process_of_points_is_that_of_scikit_learn(points, targets, name, kernel):
    asked = np.random.default_rng(2).normal(size=(7, 2))
    theirs = GaussianProcessRegressor(kernel, alpha=NOISE, optimizer=None).fit(points, targets)
    mean, deviations = theirs.predict(asked, return_std=True)
    ours = Posterior(_correlation(name, points, points, 1.5) + NOISE * np.eye(len(points)), targets)
    cross = _correlation(name, asked, points, 1.5)
    assert ours.mean(cross) == pytest.approx(mean, abs=1e-7)
    assert ours.variances(cross, np.ones(7)) == pytest.approx(deviations**2, abs=1e-7)
    constant = 0.5 * len(points) * np.log(2 * np.pi)
    assert ours.log_likelihood - constant == pytest.approx(theirs.log_marginal_likelihood_value_)
    full = ours.covariance(cross, _correlation(name, asked, asked, 1.5))
    assert full == pytest.approx(theirs.predict(asked, return_cov=True)[1], abs=1e-7)


def test_the_likeliest_height_is_that_of_scikit_learn(points, targets):
    spectrum, ratio = Spectrum(_correlation("matern32", points, points), targets), 0.1
    height = float(targets @ Posterior(_correlation("matern32", points, points) + ratio * np.eye(30), targets).weights)
    kernel = height / 30 * (Matern(1.0, nu=1.5) + WhiteKernel(ratio))
    theirs = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(points, targets)
    # Without the constants 2 pi and e.
    constant = 0.5 * len(points) * (np.log(2 * np.pi) + 1)
    assert spectrum.log_likelihood(ratio) - constant == pytest.approx(theirs.log_marginal_likelihood_value_, rel=1e-6)


def test_what_is_left_out_is_predicted_by_the_others(seen, points, targets):
    errors, variances = seen.left_out()
    for place in (0, 11, 29):
        rest = np.delete(np.arange(len(points)), place)
        others = Posterior(_correlation("matern32", points[rest], points[rest]) + NOISE * np.eye(29), targets[rest])
        cross = _correlation("matern32", points[[place]], points[rest])
        assert errors[place] == pytest.approx(targets[place] - others.mean(cross)[0])
        assert variances[place] == pytest.approx(others.variances(cross, np.ones(1))[0] + NOISE)


def test_one_decomposition_serves_every_noise(points, targets):
    correlation = _correlation("gaussian", points, points)
    for noise in (0.01, 0.3):
        expected = Posterior(correlation + noise * np.eye(len(points)), targets).left_out()
        found = Spectrum(correlation, targets).left_out(noise)
        assert [*found[0], *found[1]] == pytest.approx([*expected[0], *expected[1]], rel=1e-6)


def test_the_slope_of_a_likelihood_is_that_of_differences(points, targets):
    covariance = _correlation("matern32", points, points) + NOISE * np.eye(len(points))
    change = np.diag(np.arange(30.0)) * 1e-6
    difference = (
        Posterior(covariance + change, targets).log_likelihood - Posterior(covariance - change, targets).log_likelihood
    )
    assert (Posterior(covariance, targets).slope * change).sum() == pytest.approx(difference, rel=1e-5)


def test_parts_are_found_from_their_sums():
    """Forty sums of three of eight values, with little noise, determine each of the values."""
    generator = np.random.default_rng(3)
    values = generator.normal(size=8)
    design = np.array([np.isin(np.arange(8), generator.choice(8, 3, replace=False)) for _ in range(40)], dtype=float)
    noisy = design @ values + 1e-3 * generator.normal(size=40)
    seen = Posterior(design @ design.T + 1e-6 * np.eye(40), noisy)
    assert seen.mean(design.T) == pytest.approx(values, abs=0.01)
    left = seen.covariance(design.T, np.eye(8))
    assert seen.variances(design.T, np.ones(8)) == pytest.approx(np.diag(left), abs=1e-9)
    assert 0 < np.sqrt(np.diag(left)).max() < 0.01


def test_ordinary_weights_solve_the_system_with_a_constraint(points):
    covariance = _correlation("matern12", points, points)
    cross = _correlation("matern12", np.zeros((1, 2)), points)[0]
    system = np.ones((31, 31))
    system[:30, :30], system[30, 30] = covariance, 0.0
    found = ordinary_weights(covariance, cross)
    assert found.sum() == pytest.approx(1.0)
    assert found == pytest.approx(np.linalg.solve(system, np.append(cross, 1.0))[:30], abs=1e-9)


def test_a_covariance_that_cannot_be_is_refused():
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        Posterior(np.array([[1.0, 2.0], [2.0, 1.0]]), np.ones(2))
