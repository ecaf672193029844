# SPDX-License-Identifier: Apache-2.0
"""Pictures of kernel predictors."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from nni_latency.errors import InvalidValueError
from nni_latency.kernels import Kernel, KernelPredictor, KernelPredictors, MeasuredKernel
from nni_latency.platforms import Platform
from nni_latency.plots import draw_kernels, draw_sizes

KERNEL = Kernel.of("add_relu", HW=8, CIN=16)


@pytest.fixture(scope="module")
def predictors():
    kernels = [KERNEL.replace(CIN=count) for count in range(4, 64, 3)]
    seconds = [1e-8 * kernel["CIN"] for kernel in kernels]
    predictor = KernelPredictor(candidates=("process",)).fit(kernels, seconds)
    measured = tuple(MeasuredKernel(s, 0.9 * s, 1.1 * s, kernel) for kernel, s in zip(kernels, seconds, strict=True))
    return KernelPredictors(predictors={"add": predictor}, kernels=measured, platform=Platform("pi", "torch"))


def test_pictures_are_drawn(predictors, tmp_path):
    first = draw_kernels(predictors, tmp_path / "all.png")
    second = draw_sizes(
        predictors, KERNEL, "CIN", predictors.kernels, tmp_path / "cin.png", baseline=predictors.predictors["add"]
    )
    for path in (first, second):
        with Image.open(path) as picture:
            assert picture.size[0] > 500


def test_predictors_of_a_file_are_drawn_as_they_were(predictors, tmp_path):
    read = KernelPredictors.load(predictors.save(tmp_path / "k.json"))
    assert read.held_out("add") == predictors.held_out("add")
    first, second = draw_kernels(predictors, tmp_path / "a.png"), draw_kernels(read, tmp_path / "b.png")
    assert first.read_bytes() == second.read_bytes()


def test_what_is_not_known_is_not_drawn(predictors, tmp_path):
    path = predictors.save(tmp_path / "k.json")
    content = json.loads(path.read_text())
    del content["kernels"][0]["held_out"]
    path.write_text(json.dumps(content))
    with pytest.raises(InvalidValueError, match="These predictors do not say what was predicted"):
        draw_kernels(KernelPredictors.load(path), tmp_path / "all.png")
    with pytest.raises(InvalidValueError, match="no kernel could be measured"):
        draw_kernels(KernelPredictors(predictors={}, platform=predictors.platform), tmp_path / "all.png")
    with pytest.raises(InvalidValueError, match="no measured kernel"):
        draw_sizes(predictors, KERNEL, "CIN", [], tmp_path / "cin.png")
