# SPDX-License-Identifier: Apache-2.0
"""The picture of a search."""

from __future__ import annotations

import dataclasses

import pytest
from matplotlib.image import imread

from nni_latency.errors import OutputError
from nni_latency.plots import SearchPicture, draw_search

PICTURE = SearchPicture(
    layers=[("layer0", "k3_e1", 1e-3), ("layer1", "skip", 1e-5), ("rest", "2 fixed layers", 4e-4)],
    path=[(3e-3, 0.2), (2e-3, 0.5), (1.5e-3, 0.8)],
    predicted=1.41e-3,
    accuracy=0.9,
    target=1.5e-3,
    measured=1.45e-3,
    raw=1.6e-3,
    title="fbnet on digits",
)


def _pixels(picture, folder):
    return imread(draw_search(picture, folder / "search.png"))


def test_picture_is_a_png_of_readable_size(tmp_path):
    path = draw_search(PICTURE, tmp_path / "search.png")
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    height, width, _ = imread(path).shape
    assert width == 2 * 736
    assert height > 1000


@pytest.mark.parametrize(
    "change",
    [
        {"target": None},
        {"measured": None},
        {"raw": None},
        {"path": [(3e-3, 0.2)]},
        {"layers": [("layer0", "k3_e1", 2e-3)]},
        {"title": "another"},
        {"trials": True},
        {"choices": [("depth", "3"), ("act", "0 (ReLU)")]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_picture_shows_every_field(change, tmp_path):
    """A picture with a field changed is another picture."""
    changed = _pixels(dataclasses.replace(PICTURE, **change), tmp_path)
    whole = _pixels(PICTURE, tmp_path)
    assert changed.shape == whole.shape
    assert (changed != whole).any()


def test_title_says_how_well_it_was_predicted(tmp_path):
    shown = draw_search(PICTURE, tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "The network found takes 1.45 ms, its prediction is -2.8 % off; target 1.50 ms" in shown
    shown = draw_search(dataclasses.replace(PICTURE, measured=None), tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "The network found takes 1.41 ms as predicted; target 1.50 ms; accuracy 90.0 %" in shown


def test_picture_is_the_same_every_time(tmp_path):
    first = draw_search(PICTURE, tmp_path / "a.png").read_bytes()
    assert draw_search(PICTURE, tmp_path / "b.png").read_bytes() == first


def test_picture_of_a_search_without_epochs_is_drawn(tmp_path):
    assert _pixels(dataclasses.replace(PICTURE, path=[]), tmp_path).std() > 0.02


def test_picture_that_can_not_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match=r"Cannot write .*search\.png"):
        draw_search(PICTURE, tmp_path / "file" / "search.png")
