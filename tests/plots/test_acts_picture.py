# SPDX-License-Identifier: Apache-2.0
"""Pictures of ACTS fits."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from PIL import Image

from nni_latency.errors import OutputError
from nni_latency.estimators import ActsEstimator
from nni_latency.micro_benchmarks import BenchmarkPoint, BenchmarkPoints
from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform
from nni_latency.plots import draw_fit, draw_predictions


def _points(count, seed):
    generator = np.random.default_rng(seed)
    points = []
    for index in range(count):
        side, channels = (int(generator.integers(4, 40)) for _ in range(2))
        op = OpSpec.of("conv2d", [(1, channels, side, side)], out_channels=16, kernel_size=3, stride=1, groups=1)
        seconds = (1e-4 + 1e-8 * side * side * channels) * float(generator.uniform(0.9, 1.1))
        kind = ("conv", "stem")[index % 2]
        points.append(
            BenchmarkPoint(seconds, seconds, seconds, f"{kind}-{index}", kind, (1, channels, side, side), (op,))
        )
    return BenchmarkPoints(points=tuple(points), platform=Platform("pi", "torch"))


@pytest.fixture(scope="module")
def known():
    return _points(24, 0)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["refined", "published"])
def test_pictures_are_drawn(known, variant, tmp_path):
    estimator = ActsEstimator(variant=variant).fit(known.workloads, known.latencies, platform=known.platform)
    for path in (
        draw_fit(estimator, known, tmp_path / "fit.png"),
        draw_predictions(estimator, _points(12, 1), tmp_path / "test.png"),
    ):
        with Image.open(path) as picture:
            assert min(picture.size) > 500


def test_fit_shows_every_kind_also_those_without_convolutions(tmp_path):
    whole = _points(24, 0)
    pooled = OpSpec.of("relu", [(1, 16, 8, 8)])
    points = [*whole.points]
    points[:4] = [dataclasses.replace(point, kind="pooling", ops=(pooled,)) for point in points[:4]]
    known = dataclasses.replace(whole, points=tuple(points))
    estimator = ActsEstimator().fit(known.workloads, known.latencies, platform=known.platform)
    shown = draw_fit(estimator, known, tmp_path / "fit.svg").read_text(encoding="utf-8")
    # Once in the legend, and once below the residuals.
    assert all(shown.count(f"<!-- {kind} -->") == 2 for kind in ("conv", "stem", "pooling"))
    assert "hollow: no convolution" in shown


def test_a_folder_that_can_not_be_written_is_told(known, tmp_path):
    estimator = ActsEstimator().fit(known.workloads, known.latencies)
    with pytest.raises(OutputError, match="Cannot write"):
        draw_fit(estimator, known, tmp_path)
