# SPDX-License-Identifier: Apache-2.0
"""Predictors: trees without scikit-learn, staircases, scores, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from staircase import time_of

from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.kernels import Kernel, KernelPredictor, KernelScores, Prior, Sampler, kernel_types

TYPES = kernel_types()
QUICK = ("forest", "process")


def _kernels(count, name="conv_relu", seed=0):
    return Sampler(Prior(), seed).random(TYPES[name], count)


def _seconds(kernels):
    return np.array([time_of(TYPES[kernel.kind], kernel) for kernel in kernels])


@pytest.fixture(scope="module")
def fitted():
    kernels = _kernels(120) + _kernels(40, "conv_bn_relu")
    return KernelPredictor(candidates=QUICK, n_folds=2).fit(kernels, _seconds(kernels))


def test_kernels_never_seen_are_predicted(fitted):
    unseen = _kernels(60, seed=1)
    scores = KernelScores.of(fitted.predict(unseen), _seconds(unseen))
    assert scores.within10 > 0.7
    assert scores.rmse > 0
    assert fitted.chosen_ == "process"
    assert set(fitted.scores_) == set(QUICK)
    assert fitted.cross_validation.within10 > fitted.scores_["forest"].within10


def test_a_staircase_is_learned(fitted):
    """A channel more costs as much as sixteen more, at every step."""
    kernel = Kernel.of("conv_relu", HW=28, CIN=64, COUT=64, KERNEL_SIZE=3, STRIDES=1)
    steps = [kernel.replace(COUT=count) for count in (64, 65, 80, 81, 96)]
    predicted = fitted.predict(steps)
    assert predicted == pytest.approx(_seconds(steps), rel=0.1)
    assert predicted[1] / predicted[0] > 1.1
    assert predicted[2] / predicted[1] < 1.1


def test_a_kind_that_was_not_measured_is_predicted_by_its_relatives(fitted):
    kernel = Kernel.of("conv_relu6", HW=28, CIN=64, COUT=64, KERNEL_SIZE=3, STRIDES=1)
    assert fitted.kinds_ == ("conv_bn_relu", "conv_relu")
    assert fitted.predict([kernel])[0] == pytest.approx(time_of(TYPES["conv_relu6"], kernel), rel=0.2)


def test_intervals_hold_what_is_measured(fitted):
    unseen = _kernels(60, seed=2)
    costs = [fitted.estimate_kernel(kernel) for kernel in unseen]
    held = [cost.encloses(seconds) for cost, seconds in zip(costs, _seconds(unseen), strict=True)]
    assert np.mean(held) > 0.8


def test_the_better_of_trees_and_process_is_their_blend():
    kernels = _kernels(60)
    predictor = KernelPredictor(candidates=("boosting", "process", "blend"), n_folds=2).fit(kernels, _seconds(kernels))
    errors = {name: scores.mape for name, scores in predictor.scores_.items()}
    assert set(errors) == {"boosting", "process", "blend"}
    assert errors["blend"] <= max(errors["boosting"], errors["process"])


def test_what_is_not_fitted_says_so():
    with pytest.raises(NotFittedError):
        KernelPredictor().predict([])


def test_parameters_are_those_of_scikit_learn():
    predictor = KernelPredictor(n_folds=3)
    assert predictor.get_params()["n_folds"] == 3
    assert predictor.set_params(random_state=4).random_state == 4


@pytest.mark.parametrize(
    ("kernels", "seconds", "message"),
    [
        (_kernels(9), np.ones(9), "needs 10 kernels or more"),
        (_kernels(12), np.ones(11), "needs 10 kernels or more"),
        (_kernels(12), np.zeros(12), "must be positive and finite"),
        (_kernels(8) + _kernels(8, "add_block"), np.ones(16), "of one group. Got add, conv"),
    ],
)
def test_what_cannot_be_learned_is_refused(kernels, seconds, message):
    with pytest.raises(InvalidValueError, match=message):
        KernelPredictor(candidates=("process",)).fit(kernels, seconds)


def test_unknown_names_are_refused():
    kernels = [Kernel.of("mystery", HW=size) for size in range(1, 13)]
    with pytest.raises(UnknownNameError, match="Unknown kernel 'mystery'"):
        KernelPredictor().fit(kernels, np.ones(12))
    with pytest.raises(InvalidValueError, match="'candidates' of a KernelPredictor must be among forest, boosting"):
        KernelPredictor(candidates=("oracle",)).fit(_kernels(12), np.ones(12))


def test_what_it_does_not_know_is_not_predicted(fitted):
    with pytest.raises(InvalidValueError, match=r"group 'conv'\. Got one of the kind 'add_block'"):
        fitted.predict([Kernel.of("add_block", HW=7, CIN=8)])
    with pytest.raises(InvalidValueError, match=r"'HW' of 'conv_relu' must be from 1 to 512\. Got 900"):
        fitted.predict([Kernel.of("conv_relu", HW=900, CIN=8, COUT=8, KERNEL_SIZE=3, STRIDES=1)])
