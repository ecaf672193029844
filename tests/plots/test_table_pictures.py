# SPDX-License-Identifier: Apache-2.0
"""Pictures of tables, and of two of them side by side."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from nni_latency.plots import draw_comparison, draw_table, plot
from nni_latency.tables import LookupTable, compare_tables


def _table(*latencies):
    names = [f"c{place}" for place in range(len(latencies))]
    return LookupTable.from_latencies({"a": names}, {"a": dict(zip(names, latencies, strict=True))})


def _written(draw, what, tmp_path):
    """Return the picture as SVG, which holds its texts as comments."""
    return draw(what, tmp_path / "a.svg").read_text(encoding="utf-8")


def test_cells_below_the_colour_bar_are_shown_as_such():
    axes = Figure().subplots()
    plot(_table(1e-6, 1e-3, 2e-3), axes)
    (image,) = axes.get_images()
    assert image.colorbar.extend == "min"
    assert to_rgba(image.cmap(image.norm(1e-3))) == to_rgba("#DDDDDD")
    assert "grey: less than 0.04" in axes.get_title(loc="left") + axes.get_title()
    assert "0.00100" in {text.get_text() for text in axes.texts}


def test_colour_bar_without_smaller_cells_has_no_arrow():
    axes = Figure().subplots()
    plot(_table(1e-3, 2e-3), axes)
    (image,) = axes.get_images()
    assert image.colorbar.extend == "neither"
    assert "grey" not in axes.get_title(loc="left") + axes.get_title()


def test_title_of_a_table_says_what_it_holds(tmp_path):
    shown = _written(draw_table, _table(1e-3, 4e-3), tmp_path)
    assert "2 candidates in 1 layer cost from 1 to 4 ms" in shown
    assert "latency of" in shown


def test_title_of_a_comparison_says_the_median_ratio_and_its_quartiles(tmp_path):
    shown = _written(draw_comparison, compare_tables(_table(1e-3, 2e-3, 4e-3), _table(2e-3, 3e-3, 4e-3)), tmp_path)
    assert "3 candidates: the median ratio of latency is 1.5, half of them are from 1.25 to 1.75" in shown
    assert "Every candidate; rank" in shown


def test_title_of_a_comparison_of_two_candidates_says_why_there_is_no_rank_correlation(tmp_path):
    shown = _written(draw_comparison, compare_tables(_table(1e-3, 2e-3), _table(2e-3, 3e-3)), tmp_path)
    assert "Every candidate; rank correlation (Spearman) none (fewer than three values, or all equal)" in shown


def test_candidates_that_cost_next_to_nothing_are_left_out_of_the_costs_of_a_comparison(tmp_path):
    shown = _written(draw_comparison, compare_tables(_table(1e-9, 2e-3, 4e-3), _table(2e-3, 3e-3, 4e-3)), tmp_path)
    assert "Every candidate, without those below 1/500 of the costliest; rank" in shown


@pytest.mark.parametrize("count", [12, 80])
def test_columns_of_any_number_are_drawn(count, tmp_path):
    table = _table(*(1e-3 * (place + 1) for place in range(count)))
    shown = _written(draw_table, table, tmp_path)
    # Numbers that have no room are left out, and so are names.
    assert ("<!-- c1 -->" in shown) is (count == 12)
    assert shown.count("<!-- c") <= 60
