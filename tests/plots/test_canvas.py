# SPDX-License-Identifier: Apache-2.0
"""What all pictures share."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from nni_latency.errors import OutputError
from nni_latency.plots import picture

# Private: what every picture is made of, tested once.
from nni_latency.plots._canvas import draw_drift, draw_ideal, name_columns, plain, save, wrapped
from nni_latency.units import METRICS


@pytest.fixture
def axes():
    return Figure().subplots()


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_can_be_shown(metric):
    factor, unit = METRICS[metric].shown
    assert factor > 0
    assert unit


def test_latency_is_shown_in_milliseconds():
    assert METRICS["latency"].shown == (1e3, "ms")


def test_plain_axes_have_two_sides_and_a_grid_behind(axes):
    plain(axes)
    assert [side for side, spine in axes.spines.items() if spine.get_visible()] == ["left", "bottom"]
    assert axes.get_axisbelow() is True
    assert axes.xaxis.get_gridlines()[0].get_visible()


def test_plain_axes_may_have_a_grid_of_one_direction(axes):
    plain(axes, "y")
    assert not axes.xaxis.get_gridlines()[0].get_visible()
    assert axes.yaxis.get_gridlines()[0].get_visible()


@pytest.mark.parametrize("length", range(60, 100))
def test_a_title_breaks_neither_behind_a_number_nor_before_a_percentage(length):
    lines = wrapped(f"{'x' * (length - 20)} of a fit to 167 points: FLOPs 43.7 %, constant 15.2 %").splitlines()
    assert " ".join(lines).endswith("167 points: FLOPs 43.7 %, constant 15.2 %")
    assert not any(line.endswith(("167", "43.7", "15.2", "FLOPs", "constant")) for line in lines)


def test_drift_is_drawn_from_the_first_round_on_in_milliseconds(axes):
    draw_drift(axes, [1e-3, 2e-3])
    (line,) = axes.get_lines()
    assert line.get_xdata().tolist() == [1, 2]
    assert list(line.get_ydata()) == [1.0, 2.0]


def test_ideal_reaches_over_all_values_with_a_band_for_each_error(axes):
    draw_ideal(axes, [1.0, 4.0, 2.0], [0.1, 0.05])
    (line,) = axes.get_lines()
    low, high = line.get_xdata()
    assert low < 1.0 < 4.0 < high
    assert line.get_xdata().tolist() == line.get_ydata().tolist()
    assert len(axes.collections) == 2


def test_figure_is_saved_as_png_and_its_path_returned(tmp_path):
    path = save(Figure(figsize=(2, 1)), str(tmp_path / "folder" / "a.png"))
    assert path == tmp_path / "folder" / "a.png"
    assert imread(path).shape[:2] == (192, 384)


def test_figure_of_a_name_that_ends_in_svg_is_one_and_the_same_every_time(tmp_path):
    first, second = (save(Figure(figsize=(2, 1)), tmp_path / name) for name in ("a.svg", "b.SVG"))
    assert b"<svg" in first.read_bytes()
    assert first.read_bytes() == second.read_bytes()


def test_figure_that_can_not_be_saved_is_an_error(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match=r"Cannot write .*a\.png"):
        save(Figure(), tmp_path / "file" / "a.png")


def test_picture_is_as_wide_as_it_is_shown_and_has_a_title_in_the_style_of_all(tmp_path):
    long = "A title that is too long for a line of a picture, " * 4
    with picture(tmp_path / "a.png", long, height=2) as figure:
        axes = figure.subplots()
    assert imread(tmp_path / "a.png").shape[:2] == (384, 2 * 736)
    assert "\n" in figure.get_suptitle()
    assert not axes.spines["top"].get_visible()
    assert min(label.get_fontsize() for label in axes.get_xticklabels()) * 96 / 72 >= 9


def test_picture_that_failed_is_not_saved(tmp_path):
    with pytest.raises(ZeroDivisionError), picture(tmp_path / "a.png", "never", height=2):
        1 / 0  # noqa: B018
    assert not (tmp_path / "a.png").exists()


@pytest.mark.parametrize(("count", "shown"), [(5, 5), (56, 56), (200, 50)])
def test_names_side_by_side_have_room(axes, count, shown):
    name_columns(axes, [f"candidate {n}" for n in range(count)])
    assert len(axes.get_xticklabels()) == shown
