# SPDX-License-Identifier: Apache-2.0
"""Pictures of predictors: a graph predictor, and a portable model of time and power."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from measured_graphs import FAST, fitted

from nni_latency.energy import DeviceFacts, HeldOutOperator, MeasuredOperator, PortableModel
from nni_latency.errors import InvalidValueError
from nni_latency.operators import OpSpec
from nni_latency.plots import draw_graph_predictor, draw_portable

# Private: what several pictures are made of, tested once.
from nni_latency.plots._canvas import HeldOut, draw_held_out, draw_ratios


@pytest.fixture(scope="module")
def predictor():
    return fitted(5)


def test_graph_predictor_is_drawn_with_what_was_measured(predictor, tmp_path):
    height, width = imread(draw_graph_predictor(predictor, tmp_path / "a.png")).shape[:2]
    assert width == 2 * 736
    assert height > 1000


def test_platform_without_networks_that_were_held_out_is_left_out(predictor, tmp_path):
    other = copy.copy(predictor)
    other.held_out_ = predictor.held_out_.copy()
    other.held_out_[:, 0] = np.nan
    assert draw_graph_predictor(other, tmp_path / "a.png").is_file()
    other.held_out_[:] = np.nan
    with pytest.raises(InvalidValueError, match="has no held-out networks"):
        draw_graph_predictor(other, tmp_path / "b.png")
    assert FAST.id in {platform.id for platform in predictor.platforms_}


def _held_out(count, device="mine", **fields):
    random = np.random.default_rng(0)
    made = []
    for place in range(count):
        seconds = float(10 ** random.uniform(-5, -2))
        item = HeldOutOperator(
            device, ("convolution", "elementwise")[place % 2], seconds, 80.0, seconds * random.uniform(0.9, 1.1),
            80.0 * random.uniform(0.95, 1.05), 60.0,
        )  # fmt: skip
        made.append(dataclasses.replace(item, **fields))
    return made


@pytest.fixture
def model():
    ops = [MeasuredOperator(OpSpec.of("relu", [(1, 2**power)]), 1e-6 + 2**power * 1e-9, 1e-4) for power in range(8, 20)]
    return PortableModel(n_trees=3).fit({"mine": ops}, {"mine": DeviceFacts(1e12, 8e9, 100.0, 20.0, 1e-6)})


def test_portable_model_is_drawn_with_a_row_for_whole_devices(model, tmp_path):
    model.held_out_ = tuple(_held_out(40))
    one = imread(draw_portable(model, tmp_path / "a.png"))
    model.held_out_ += tuple(_held_out(40, "other", whole_device=True))
    two = imread(draw_portable(model, tmp_path / "b.png"))
    assert two.shape[0] == pytest.approx(2 * one.shape[0], abs=2)


def test_portable_model_with_a_few_operators_is_drawn(model, tmp_path):
    model.held_out_ = tuple(_held_out(2))
    assert imread(draw_portable(model, tmp_path / "a.png")).std() > 0.02


def test_portable_model_that_does_not_know_is_told(model, tmp_path):
    with pytest.raises(InvalidValueError, match=r"does not say what was predicted.*Fit it again"):
        draw_portable(model, tmp_path / "a.png")


def test_held_out_points_have_the_error_bars_of_their_measurements():
    axes = Figure().subplots()
    values = np.array([1.0, 2.0, 4.0])
    draw_held_out(axes, {"a": HeldOut(values, 1.1 * values, 0.9 * values, 1.2 * values)}, "latency [ms]")
    (bars,) = axes.containers
    (lines,) = bars.lines[2]
    assert [segment[:, 0].tolist() for segment in lines.get_segments()][1] == pytest.approx([1.8, 2.4])
    assert axes.get_xlabel() == "measured latency [ms]"


def test_ratios_stand_beside_the_interval_of_a_prediction():
    axes = Figure().subplots()
    ones = np.ones(3)
    draw_ratios(axes, {"a": HeldOut(ones, 1.1 * ones, factor=1.25), "b": HeldOut(ones, 0.9 * ones)})
    (bars,) = axes.containers
    (lines,) = bars.lines[2]
    assert [segment[:, 0].tolist() for segment in lines.get_segments()] == [pytest.approx([0.8, 1.25])]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
