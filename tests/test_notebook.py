# SPDX-License-Identifier: Apache-2.0
"""What objects look like where a person explores them."""

from __future__ import annotations

import sys

import pytest
from matplotlib import pyplot
from torch import nn

from nni_latency.analysis import ModelAnalysis
from nni_latency.errors import MissingDependencyError
from nni_latency.loading import load_estimator
from nni_latency.notebook import bar_chart, heat_map
from nni_latency.platforms import Platform
from nni_latency.tables import LookupTable

TABLE = LookupTable.from_latencies(
    {"a": ["x", "<y>"], "b": ["x"]}, {"a": {"x": 0.001, "<y>": 0.002}}, platform=Platform("pi", facts={"memory": 1})
)
ANALYSIS = ModelAnalysis(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), (3, 8, 8))


@pytest.mark.parametrize("thing", [TABLE, ANALYSIS, TABLE.platform, load_estimator(TABLE)])
def test_repr_is_one_short_line(thing):
    assert type(thing).__name__ in repr(thing)
    assert len(repr(thing)) < 120
    assert "\n" not in repr(thing)


@pytest.mark.parametrize("thing", [TABLE, ANALYSIS])
def test_html_is_escaped_and_has_no_script(thing):
    shown = thing._repr_html_()
    assert shown.startswith("<div>")
    assert "<y>" not in shown
    assert "script" not in shown


def test_html_of_numbers():
    shown = heat_map("<t>", {"a": {"x": 1.0, "y": None}, "b": {"z": 0.0}}, "ms")
    assert "&lt;t&gt;" in shown
    assert ">missing<" in shown
    assert shown.count("<tr>") == 3
    assert "width: 50.0%" in bar_chart("t", [("a", 1.0, "1"), ("b", 2.0, "2")])
    assert "0.0%" in bar_chart("t", [("a", 0.0, "0")])


def test_frame_has_a_row_a_candidate():
    pytest.importorskip("pandas", reason="the package pandas is not installed")
    frame = TABLE.to_frame()
    assert list(frame["choice"]) == ["x", "<y>", "x"]
    assert list(frame["latency_s"][:2]) == [0.001, 0.002]
    assert frame["latency_s"].isna().sum() == 1


def test_frame_without_pandas_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match=r"LookupTable\.to_frame needs .* pip install 'pandas'"):
        TABLE.to_frame()


@pytest.mark.parametrize("thing", [TABLE, ANALYSIS])
def test_plot_returns_axes(thing):
    _, axes = pyplot.subplots()
    assert thing.plot(axes) is axes
    assert thing.plot().get_title()
    pyplot.close("all")
