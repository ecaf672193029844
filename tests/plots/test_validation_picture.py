# SPDX-License-Identifier: Apache-2.0
"""The picture of a validation."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest
from matplotlib.image import imread

from nni_latency.errors import OutputError
from nni_latency.estimators import Estimate
from nni_latency.platforms import Platform
from nni_latency.plots import draw_validation
from nni_latency.spaces import FBNetSpace
from nni_latency.units import format_percent
from nni_latency.validation import NetworkResult, Validation, draw_networks


def _made_up(count=24):
    """Make up a validation of the full space, with networks of its own names."""
    draw, results = random.Random(0), []
    for name, selection in draw_networks(FBNetSpace().measure_plan(), count).items():
        base = {"all skip": 4e-3, "all k5_e6": 32e-3}.get(name, draw.uniform(13e-3, 25e-3))
        measured, wide = base * draw.gauss(1.0, 0.03), base * draw.uniform(0.005, 0.03)
        results.append(
            NetworkResult(
                name,
                selection,
                Estimate(base, base * 0.99, base * 1.01),
                measured,
                measured - wide,
                measured + wide,
                (measured * 1.01, measured * 0.99),
                60,
            )
        )
    drift = tuple(1.1e-3 * (1 + 0.05 * math.sin(n / 7)) for n in range(60))
    title = "TableEstimator(fbnet(preset=imagenet, input_size=224, num_classes=1000, width=1.0, depth=1.0, "
    title += "head_channels=1504), latency on xeon-6-167-1.torch.fp32.t1)"
    return Validation(title, "latency", Platform("pi"), tuple(results), 0.97, drift, 60.0, {})


@pytest.fixture(scope="module")
def validation():
    return _made_up()


@pytest.fixture(scope="module")
def png(validation, tmp_path_factory):
    return draw_validation(validation, tmp_path_factory.mktemp("whole") / "validation.png")


def _pixels(validation, folder):
    return imread(draw_validation(validation, folder / "validation.png"))


def test_picture_of_a_validation_is_a_png_of_readable_size(png):
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    height, width, _ = imread(png).shape
    assert 1000 <= width <= 2400
    assert 500 <= height <= 1500


def test_title_says_how_far_off_and_shows_no_repr(validation, tmp_path):
    shown = draw_validation(validation, tmp_path / "a.svg").read_text(encoding="utf-8")
    count, error = len(validation.results), format_percent(validation.scores.mape)
    assert f"{count} networks never measured before: {error} off on average" in shown
    assert "predicted by a table of fbnet" in shown
    assert "TableEstimator" not in shown


@pytest.mark.parametrize(
    "change",
    [
        lambda whole: {"estimator": "another"},
        lambda whole: {"results": whole.results[:-1]},
        lambda whole: {"results": (*whole.results[:-1], dataclasses.replace(whole.results[-1], high=40e-3))},
        lambda whole: {"results": (dataclasses.replace(whole.results[0], name="another"), *whole.results[1:])},
        lambda whole: {"drift": whole.drift[::-1]},
    ],
    ids=["title", "networks", "interval", "name", "drift"],
)
def test_picture_of_a_validation_shows_what_it_holds(validation, png, change, tmp_path):
    """A picture with a field changed is another picture."""
    changed = _pixels(dataclasses.replace(validation, **change(validation)), tmp_path)
    whole = imread(png)
    assert changed.shape == whole.shape
    assert (changed != whole).any()


@pytest.mark.slow
def test_picture_of_a_validation_marks_the_uniform_networks(validation, tmp_path):
    """By their name: a random network of few choices is not one of them."""
    uniform = [item for item in validation.results if item.name.startswith("all ")]
    renamed = [dataclasses.replace(item, name=item.name.replace("all ", "ali ")) for item in uniform]
    shown = _pixels(dataclasses.replace(validation, results=tuple(uniform)), tmp_path)
    plain = _pixels(dataclasses.replace(validation, results=tuple(renamed)), tmp_path)
    orange = [0xD5 / 255, 0x5E / 255, 0.0]
    assert (abs(shown[..., :3] - orange).max(-1) < 0.01).sum() > 1000
    assert not (abs(plain[..., :3] - orange).max(-1) < 0.01).any()


@pytest.mark.slow
def test_picture_of_many_networks_is_drawn(tmp_path):
    assert _pixels(_made_up(150), tmp_path).std() > 0.02


def test_picture_of_a_validation_is_the_same_every_time(validation, png, tmp_path):
    assert draw_validation(validation, tmp_path / "b.png").read_bytes() == png.read_bytes()


def test_picture_of_one_network_is_drawn(validation, tmp_path):
    """There is no rank correlation then, and no range to draw a line over."""
    one = dataclasses.replace(validation, results=validation.results[:1], drift=(1e-3,))
    assert _pixels(one, tmp_path).std() > 0.02


def test_picture_of_a_validation_that_can_not_be_written_is_an_error(validation, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match=r"Cannot write .*validation\.png"):
        draw_validation(validation, tmp_path / "file" / "validation.png")
