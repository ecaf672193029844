# SPDX-License-Identifier: Apache-2.0
"""Energy and power on the command line: build a table, validate it, estimate, and search with a budget in joules."""

from __future__ import annotations

import json

import pytest
from tiny import TINY_OPTIONS

from nni_latency.cli._measuring import Measuring, StoreOptions
from nni_latency.database import open_store
from nni_latency.errors import MeasurementError
from nni_latency.measurement import CoarseMeterError
from nni_latency.measurement.meters import ConstantMeter, RaplMeter
from nni_latency.tables import LookupTable
from nni_latency.testing import FakeRuntime


@pytest.fixture(scope="module")
def built(run, tmp_path_factory):
    """Build tables of latency, energy and power of the tiny space, with one campaign for the last two."""
    folder = tmp_path_factory.mktemp("energy")
    how = [
        *TINY_OPTIONS,
        "--protocol",
        "rounds=4",
        "--protocol",
        "processes=1",
        "--protocol",
        "half_width=0",
        "--database",
        folder / "records.sqlite",
    ]
    for metric in ("energy", "power"):
        meter = ["--meter", "constant:20", "--protocol", "max_measure_execution_time=5"]
        result = run("build-lut", *how, "--metric", metric, *meter, "--out", folder / f"{metric}.json")
    return folder, result


@pytest.mark.slow
def test_tables_of_energy_and_power_follow_from_one_campaign(built):
    folder, result = built
    assert "nothing was measured" in result.stderr
    assert "they follow from a constant power of 20 W, which is an assumption" in result.stderr
    energy, power = LookupTable.load(folder / "energy.json"), LookupTable.load(folder / "power.json")
    assert energy.campaign == power.campaign
    assert (energy.metric, power.metric) == ("energy", "power")
    assert any("a constant power of 20 W" in remark for remark in energy.remarks)
    # Nothing was read, so nothing is said of gross and net.
    assert not any("gross" in remark for remark in energy.remarks)
    assert energy.conditions["before"]["meter_assumption"] == "a constant power of 20 W"
    drawn = sum(layer.entries[next(iter(layer.entries))].value for layer in power.layers)
    (campaign,) = open_store(folder / "records.sqlite").campaigns()
    windows = [watts for record in campaign.records for watts in record.samples.get("power", ())]
    # A window that was interrupted between its clock and the meter has another power.
    assert drawn == pytest.approx(20.0, abs=max(0.4, *(abs(watts - 20.0) for watts in windows)))


@pytest.mark.slow
def test_energy_is_estimated_shown_and_validated(run, built, tmp_path):
    folder, _ = built
    assert " mJ" in run("show", folder / "energy.json").stdout
    table = LookupTable.load(folder / "energy.json")
    names = ",".join(next(iter(layer.entries)) for layer in table.searched)
    command = ["predict", f"fbnet@{names}", "-e", folder / "energy.json", "--format", "json"]
    estimated = json.loads(run(*command).stdout)
    assert "energy" in json.dumps(estimated)
    run(
        "validate", folder / "energy.json", "--networks", 3, "--protocol", "rounds=2", "--meter", "constant:20",
        "--out", tmp_path / "v.json", "--plot", tmp_path / "v.png",
    )  # fmt: skip
    content = json.loads((tmp_path / "v.json").read_text())
    assert (content["metric"], content["unit"]) == ("energy", "J")
    assert len(content["networks"]) >= 3


def test_energy_without_a_meter_says_what_to_do(fails, tmp_path, monkeypatch):
    monkeypatch.setattr(RaplMeter, "folder", tmp_path / "absent")
    complaint = fails("build-lut", *TINY_OPTIONS, "--metric", "energy", "--out", "t.json")
    assert "assume a power: constant:WATTS" in complaint


def test_a_meter_that_is_too_coarse_is_told_the_option():
    coarse = CoarseMeterError.of(ConstantMeter(15), 9.3, 5.0)
    with (
        pytest.raises(
            MeasurementError,
            match=r"needs a window of 9\.30? s.* Here that is --protocol max_measure_execution_time=10$",
        ),
        Measuring("networks", FakeRuntime({}), StoreOptions(fresh=False, database=None)),
    ):
        raise coarse
