# SPDX-License-Identifier: Apache-2.0
"""``show`` reads every kind of file that the package writes; a new kind fails here until it does."""

from __future__ import annotations

import importlib
import json
import pkgutil
from dataclasses import replace
from pathlib import Path

import pytest
from narrow import WIDTHS, check_lines
from PIL import Image
from written_files import DATA, KEPT, WRITTEN, write_files

import nni_latency
from nni_latency.cli._show import SAVED_FILES
from nni_latency.datasets import load_networks
from nni_latency.documents import KINDS, DocumentFormat, SavedFile
from nni_latency.errors import LatencyError
from nni_latency.loading import load_estimator
from nni_latency.tables import LayerPair, LookupTable, as_throughput


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a file of every kind, by its format."""
    folder = tmp_path_factory.mktemp("files")
    return write_files(folder)


def _formats():
    """Return the name of every format that a module of the package defines."""
    names = (item.name for item in pkgutil.walk_packages(nni_latency.__path__, "nni_latency."))
    modules = [importlib.import_module(name) for name in names if not name.endswith("__main__")]
    return {value.name for module in modules for value in vars(module).values() if isinstance(value, DocumentFormat)}


def test_every_kind_of_file_is_known():
    assert _formats() == set(KINDS) == set(SAVED_FILES) == {*KEPT, *WRITTEN}


@pytest.mark.parametrize("name", [*KEPT, *WRITTEN])
def test_every_kind_of_file_is_shown(run, files, name, monkeypatch):
    expected = {**KEPT, **WRITTEN}[name][1]
    assert SavedFile(files[name]).kind == name
    assert expected in run("show", files[name]).stdout
    for width in WIDTHS:
        monkeypatch.setenv("COLUMNS", str(width))
        check_lines(run("show", files[name], "--verbose").stdout, width)
    assert json.loads(run("show", files[name], "--format", "json").stdout)
    assert run("show", files[name], "--format", "csv").stdout.strip()


@pytest.mark.parametrize(
    ("name", "title", "part"),
    [
        ("lookup_table_1.json", "latency [us]", "layer"),
        ("operators_1.json", "The costliest operators", "Families of operators"),
    ],
)
def test_a_table_begins_with_its_latencies(run, name, title, part):
    shown, everything = (run("show", DATA / name, *more).stdout for more in ((), ("--verbose",)))
    assert shown.startswith(title)
    assert shown.index("Table") > shown.index(part)
    assert "Protocol" not in shown
    assert "device_kind" not in shown
    assert everything.startswith(title)
    assert everything.index("Platform") < everything.index("Protocol")


def test_a_table_tells_of_costs_beside_neighbours(run):
    table = LookupTable.load(DATA / "operators_1.json")
    assert "neighbours" not in run("show", DATA / "operators_1.json", "--verbose").stdout
    first, *others = table.operators
    replace(table, operators=(replace(first, beside={"< conv2d": 1e-6}), *others)).save("beside.json")
    assert "the costs of 1 operator depend on them" in " ".join(run("show", "beside.json").stdout.split())
    found = json.loads(run("show", "beside.json", "--format", "json").stdout)
    assert {"< conv2d": 1e-6} in found["beside"].values()


@pytest.mark.parametrize("name", [*KEPT, *WRITTEN])
def test_every_kind_of_file_is_drawn_or_says_where_a_picture_is(run, fails, files, name):
    if SAVED_FILES[name].draw is None:
        assert SAVED_FILES[name].undrawn in fails("show", files[name], "--plot", "picture.png")
        return
    run("show", files[name], "--plot", "picture.png")
    with Image.open("picture.png") as picture:
        assert min(picture.size) > 300


@pytest.mark.parametrize("name", [*KEPT, *WRITTEN])
def test_a_file_that_is_damaged_is_named(fails, files, name, tmp_path):
    content = Path(files[name]).read_bytes()
    damaged = tmp_path / "damaged"
    damaged.write_bytes(content[: len(content) // 2] if name != "nni_latency.networks" else content[:2000])
    assert "damaged" in fails("show", damaged)


def test_a_network_needs_rules(fails, files):
    message = fails("show", files["nni_latency.energy"], "--network", "net.py:Net")
    assert "is no file of fusion rules" in message


def test_a_predictor_is_an_estimator_by_its_file_where_it_needs_no_argument(fails, files):
    assert load_estimator(files["nni_latency.energy"]).metric == "energy"
    with pytest.raises(LatencyError, match="device-fast"):
        load_estimator(files["nni_latency.graph_predictor"])


def test_a_data_set_that_is_shown_says_what_it_holds(run, files):
    found = load_networks(files["nni_latency.networks"])
    content = json.loads(run("show", files["nni_latency.networks"], "--format", "json").stdout)
    assert sum(row["networks"] for row in content["platforms"]) == len(found)
    assert content["families"] == list(found.families)


def test_costs_of_pairs_are_shown(run, tmp_path):
    costs = {"a": {"x": 0.001, "y": 0.002}, "b": {"u": 0.003, "v": 0.004}}
    table = LookupTable.from_latencies({label: list(choices) for label, choices in costs.items()}, costs)
    pair = LayerPair(("a", "b"), ((0, 1), (0, 1)), ((0.0, 2e-4), (-1e-4, 0.0)))
    path = replace(table, pairs=(pair,)).save(tmp_path / "table.json")
    shown = " ".join(run("show", path).stdout.split())
    assert (
        "1 pair of neighbouring layers: what two choices cost beyond the sum of their entries, -100 us to 200 us"
        in shown
    )
    assert json.loads(run("show", path, "--format", "json").stdout)["pairs"][0]["costs"] == [[0.0, 2e-4], [-1e-4, 0.0]]
    inverse = as_throughput(replace(table, pairs=(pair,))).save(tmp_path / "inverse.json")
    assert "-100 us to 200 us" in " ".join(run("show", inverse).stdout.split())
