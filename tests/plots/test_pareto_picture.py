# SPDX-License-Identifier: Apache-2.0
"""Pareto fronts: what is on them, and their picture."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread

from nni_latency.errors import InvalidValueError
from nni_latency.plots import ParetoPoint, draw_pareto, pareto_front

_points = st.lists(
    st.builds(ParetoPoint, st.integers(0, 9).map(float), st.integers(0, 9).map(float)), min_size=1, max_size=30
)


def _beats(one, other, signs):
    ones, others = ((signs[0] * point.x, signs[1] * point.y) for point in (one, other))
    return ones != others and ones[0] <= others[0] and ones[1] <= others[1]


@given(_points, st.sampled_from([("latency", "energy", (1, 1)), ("latency", "accuracy", (1, -1))]))
def test_front_is_what_no_other_network_beats(points, quantities):
    x, y, signs = quantities
    front = pareto_front(points, x, y)
    assert front
    for point in points:
        beaten = any(_beats(other, point, signs) for other in points)
        assert beaten != any((point.x, point.y) == (item.x, item.y) for item in front)


def test_more_throughput_is_better():
    points = [ParetoPoint(1.0, 0.5), ParetoPoint(2.0, 0.4), ParetoPoint(2.0, 0.9)]
    assert pareto_front(points, "throughput", "accuracy") == [points[2]]


def test_picture_shows_the_front_and_what_was_found(tmp_path):
    points = [ParetoPoint(0.001 * n, 0.5 / n, f"network {n}") for n in range(1, 9)]
    plain = imread(draw_pareto(points, tmp_path / "a.png", title="a space"))
    assert plain.shape[1:] == (2 * 736, 4)
    found = imread(draw_pareto([*points, ParetoPoint(0.004, 0.3, found=True)], tmp_path / "b.png", title="a space"))
    assert (found != plain).any()


def test_what_cannot_be_drawn_is_refused(tmp_path):
    with pytest.raises(InvalidValueError, match=r"at least one network\. Got none"):
        draw_pareto([], tmp_path / "a.png")
    with pytest.raises(InvalidValueError, match="'metric' must be one of"):
        draw_pareto([ParetoPoint(1.0, 1.0)], tmp_path / "a.png", x="colour")
    assert not (tmp_path / "a.png").exists()


def test_limit_is_a_line(tmp_path):
    points = [ParetoPoint(0.001 * n, 0.5 / n) for n in range(1, 9)]
    plain = imread(draw_pareto(points, tmp_path / "a.png", y="accuracy"))
    lined = imread(draw_pareto(points, tmp_path / "b.png", y="accuracy", limit=0.005))
    assert plain.shape == lined.shape
    assert not (plain == lined).all()


def _written(points, tmp_path, **how):
    """Return the picture as SVG, which holds its texts as comments."""
    return draw_pareto(points, tmp_path / "a.svg", **how).read_text(encoding="utf-8")


def test_title_compares_searched_networks_with_random_ones(tmp_path):
    points = [ParetoPoint(0.001 * n, 0.1 * n, searched=True) for n in range(1, 9)]
    points += [ParetoPoint(0.001 * n, 0.05 * n) for n in range(1, 9)]
    said = _written(points, tmp_path, y="accuracy", limit=0.0045)
    assert "Within the target, the best of 8 searched networks reaches 40.0 %, of 8 random ones 20.0 %" in said
    said = _written(points, tmp_path, y="accuracy")
    assert "8 of the 8 networks on the front were searched: 8 searched against 8 random ones" in said
    said = _written(points, tmp_path, y="accuracy", limit=0.0005)
    assert "were searched" in said


def test_network_found_is_no_random_one(tmp_path):
    points = [ParetoPoint(0.001, 0.5, searched=True), ParetoPoint(0.002, 0.6, found=True)]
    assert "against" not in _written(points, tmp_path, y="accuracy")
