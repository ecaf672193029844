# SPDX-License-Identifier: Apache-2.0
"""Tables that others published: in, estimated, out, and in again with the same numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nni_latency.documents import load
from nni_latency.errors import InvalidValueError
from nni_latency.estimators import TableEstimator, estimate_selection
from nni_latency.operators import OpSpec
from nni_latency.spaces import FBNetSpace
from nni_latency.tables.formats import export_table, import_table

FOLDER = Path(__file__).parents[4] / "shared" / "data" / "lookup-tables"

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the published tables are not beside this checkout")

#: File, format, unit, whether it belongs to the FBNet space, entries.
_FILES = [
    ("fbnet-cpu.txt", "text", "us", True, 198),
    ("fbnet-raspberry-pi-4.json", "lists", "us", True, 192),
    ("ofa-jetson-gpu-224.json", "ofa", "ms", False, 96),
]


@pytest.fixture(scope="module")
def plan():
    return FBNetSpace().measure_plan()


@pytest.mark.parametrize(("name", "kind", "unit", "fbnet", "count"), _FILES)
def test_a_published_table_goes_in_and_out_and_in_again(tmp_path, plan, name, kind, unit, fbnet, count):
    space = plan if fbnet else None
    done = import_table(FOLDER / name, space, unit=unit)
    assert (done.format, done.unmatched, done.left_out) == (kind, (), ())
    assert sum(len(entry.names or "1") for entry in done.table.entries) == count
    loaded = load(done.table.save(tmp_path / "table.json"))
    assert loaded == done.table
    assert export_table(loaded, kind, unit=unit, out=tmp_path / "out") == ()
    again = import_table(tmp_path / "out", space, unit=unit).table
    costs = [{place: entry.value for place, entry in table.places()} for table in (done.table, again)]
    assert costs[0] == costs[1]


@pytest.mark.parametrize(("name", "kind", "unit", "fbnet", "count"), _FILES)
def test_a_published_table_in_a_wrong_unit_is_said_to_be_so(plan, name, kind, unit, fbnet, count):
    for wrong in {"us": ("ms", "s"), "ms": ("us", "s")}[unit]:
        with pytest.raises(InvalidValueError, match=f"cannot be in {wrong}.*would be plausible in {unit}, 1,000"):
            import_table(FOLDER / name, plan if fbnet else None, unit=wrong)


@pytest.mark.parametrize("name", ["fbnet-cpu.txt", "fbnet-raspberry-pi-4.json"])
def test_a_network_costs_what_its_row_entries_add_up_to(plan, name):
    text = (FOLDER / name).read_text()
    if name.endswith("txt"):
        rows = [[float(word) for word in line.split()] for line in text.splitlines()[1:]]
    else:
        rows = [row for row in json.loads(text) if row is not None]
    estimator = TableEstimator(import_table(FOLDER / name, plan, unit="us").table)
    expected = sum(row[2] for row in rows) * 1e-6
    estimate = estimator.estimate_sample([2] * 22)
    assert estimate.value == pytest.approx(expected, rel=1e-12)
    assert estimate.missing == ("stem", "head")


def test_a_table_of_operators_costs_a_network_of_another_space(plan):
    table = import_table(FOLDER / "ofa-jetson-gpu-224.json", unit="ms").table
    block = OpSpec.of(
        "inverted_residual",
        [(1, 24, 112, 112)],
        out_channels=32,
        kernel_size=3,
        stride=2,
        expansion=6,
        groups=1,
    )
    assert TableEstimator(table).estimate_op(block).value == 0.7218508905403606e-3
    answer = estimate_selection(TableEstimator(table), plan, plan.published["fbnet-c"])
    assert 0.002 < answer.value < 0.2
    assert any(name.startswith("predicted: inverted_residual") for name in answer.missing)
    assert "guessed by its size: identity()@1x24x56x56:float32" in answer.missing
