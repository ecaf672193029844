"""What all pictures share."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from nni_latency.errors import OutputError

# Private: what every picture is made of, tested once.
from nni_latency.plots._canvas import draw_drift, draw_ideal, plain, save_png
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
    path = save_png(Figure(figsize=(2, 1)), str(tmp_path / "folder" / "a.png"))
    assert path == tmp_path / "folder" / "a.png"
    assert imread(path).shape[:2] == (130, 260)


def test_figure_that_can_not_be_saved_is_an_error(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match=r"Cannot write .*a\.png"):
        save_png(Figure(), tmp_path / "file" / "a.png")
