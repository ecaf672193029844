# SPDX-License-Identifier: Apache-2.0
"""The tables that ship of devices that others measured: whole, named, sourced, and as good as their validations say."""

from __future__ import annotations

import csv
import itertools
import json
import runpy
from pathlib import Path

import numpy as np
import pytest

from nni_latency import FBNetSpace, LookupTable, TableEstimator
from nni_latency.estimators import score
from nni_latency.tables import shipped_tables, validation_path
from nni_latency.validation import read_validation

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"

_EXAMPLE = runpy.run_path(str(ROOT / "examples" / "published_tables.py"))
_DEVICES = _EXAMPLE["DEVICES"]
_HELD_OUT = slice(_EXAMPLE["SOLVED"], None)

PI = "fbnet-cifar10-32-b1.raspberry-pi-4.tensorflow.fp32.t4"

#: Name of the table of every column of the data.
NAMES = {
    column: f"fbnet-cifar-32-b{device.batch_size}.{device.platform.id}" for column, device in sorted(_DEVICES.items())
}

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the published data are not beside this checkout")


def _load(column):
    path = shipped_tables()[NAMES[column]]
    return LookupTable.load(path), read_validation(validation_path(path))


@pytest.fixture(scope="module")
def networks():
    with (DATA / "help-fbnet" / "architectures.csv").open() as file:
        rows = list(csv.DictReader(file))
    return np.array([[int(row[f"layer{place}"]) for place in range(22)] for row in rows])


@pytest.fixture(scope="module")
def latencies():
    with (DATA / "help-fbnet" / "latency_ms.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name]) for row in rows]) / 1e3 for name in _DEVICES}


def test_every_device_ships_and_all_tables_are_small():
    assert {*NAMES.values(), PI} <= set(shipped_tables())
    assert len(set(NAMES.values())) == len(_DEVICES) == 13
    assert sum(path.stat().st_size for path in (ROOT / "lut").iterdir() if path.is_file()) < 2e6


@pytest.mark.parametrize("column", NAMES)
def test_table_is_of_the_space_of_the_networks(column):
    table, validation = _load(column)
    device = _DEVICES[column]
    plan = FBNetSpace(num_classes=100, input_size=32).measure_plan(device.batch_size)
    assert table.space == plan.space
    assert table.input_shape == plan.input_shape
    assert [layer.name for layer in table.layers] == [layer.name for layer in plan.layers]
    for layer, planned in zip(table.layers, plan.layers, strict=True):
        assert {name: entry.op for name, entry in layer.entries.items()} == {
            name: candidate.op for name, candidate in planned.candidates.items()
        }
    assert table.platform.facts["licence"].startswith("MIT, copyright (c) ")
    assert {"source", "paper", "repository", "unpublished"} <= set(table.platform.facts)
    assert validation.platform.id == table.platform.id


@pytest.mark.parametrize("column", NAMES)
def test_error_is_small_or_explained(column):
    table, validation = _load(column)
    assert validation.scores.n == 1000
    assert validation.scores.mape < 0.1
    assert validation.coverage > 0.9
    if validation.scores.within10 < 0.98:
        assert any("speed of the device changed" in remark for remark in table.remarks)
    if validation.scores.mape < 0.001:
        assert any("exact sums over the layers" in remark for remark in table.remarks)


@pytest.mark.parametrize("column", NAMES)
def test_validation_holds_scores_and_no_networks(column):
    content = json.loads(validation_path(shipped_tables()[NAMES[column]]).read_text(encoding="utf-8"))
    assert content["networks"] == []
    assert content["repeatability"] is None


def test_layers_of_equal_shape_cost_the_same_where_the_data_are_exact():
    """The published sums know nothing of the space here: its shapes change exactly where their costs do."""
    table, _ = _load("pixel3")
    rises = [[layer[name].value - layer["k3_e1"].value for name in layer.choices] for layer in table.searched]
    same = [bool(np.allclose(one, other, rtol=0.002, atol=2e-7)) for one, other in itertools.pairwise(np.array(rises))]
    shapes = [next(iter(layer.entries.values())).op for layer in table.searched]
    assert same == [one == other for one, other in itertools.pairwise(shapes)]


@needs_data
@pytest.mark.parametrize("column", NAMES)
def test_validation_is_what_the_table_makes_of_the_networks_held_out(column, networks, latencies):
    table, validation = _load(column)
    found = score(TableEstimator(table).predict(networks[_HELD_OUT]), latencies[column][_HELD_OUT])
    for name, value in vars(validation.scores).items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-6, abs=1e-9), name


@needs_data
def test_remark_names_the_scores_at_the_speed_of_the_moment(networks, latencies):
    table, _ = _load("essential_ph_1")
    predicted, measured = TableEstimator(table).predict(networks[_HELD_OUT]), latencies["essential_ph_1"][_HELD_OUT]
    found = score(predicted * _EXAMPLE["local_speed"](measured / predicted), measured)
    assert found.mape < 0.03
    assert any(f"Spearman {found.spearman:.3f}" in remark for remark in table.remarks)


def test_table_of_the_raspberry_pi_lacks_what_was_not_measured():
    table = LookupTable.load(shipped_tables()[PI])
    skips = [(f"layer{place}", "skip") for place in (1, 5, 9, 13, 17, 21)]
    assert list(table.missing) == [("stem", "conv"), *skips, ("head", "1504"), ("head", "1984")]
    assert table.platform.facts["licence"] == "MIT, copyright (c) 2019 Hua"
    assert not validation_path(shipped_tables()[PI]).exists()
    assert any("the error of their sums is not known" in remark for remark in table.remarks)
    estimate = TableEstimator(table, missing="nearest").estimate_sample([8] * 22)
    assert 0 < estimate.value < 0.1
    assert "layer1:skip" in estimate.missing


@needs_data
def test_table_of_the_raspberry_pi_has_the_published_numbers():
    table = LookupTable.load(shipped_tables()[PI])
    rows = [row for row in json.loads((DATA / "lookup-tables" / "fbnet-raspberry-pi-4.json").read_text()) if row]
    for layer, row in zip(table.searched, rows, strict=True):
        assert [entry.value for entry in layer.entries.values()] == pytest.approx(np.array(row) * 1e-6, rel=1e-5)


def test_local_speed_is_that_of_the_neighbours():
    generator = np.random.default_rng(0)
    speed = np.repeat([1.0, 1.3, 0.9], 100)
    ratios = speed * np.exp(generator.normal(0, 0.01, 300))
    ratios[150] = 5.0
    found = _EXAMPLE["local_speed"](ratios)
    assert found[[50, 150, 250]] == pytest.approx([1.0, 1.3, 0.9], rel=0.01)
    assert len(found) == 300


@needs_data
@pytest.mark.slow
def test_tables_are_made_again(tmp_path):
    _EXAMPLE["main"]([str(DATA), "--out", str(tmp_path), "--only", "titanx_1", "--only", "raspberry-pi-4"])
    for name in (NAMES["titanx_1"], PI):
        again, shipped = (LookupTable.load(path) for path in (tmp_path / f"{name}.json", shipped_tables()[name]))
        assert again.platform == shipped.platform
        assert again.remarks == shipped.remarks
        values = [[entry.value for entry in table.entries] for table in (again, shipped)]
        assert values[0] == pytest.approx(values[1], rel=1e-3)
