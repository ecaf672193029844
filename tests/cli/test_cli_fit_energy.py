# SPDX-License-Identifier: Apache-2.0
"""``learn energy``: a portable model from measured operators, and estimates by it."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from nni_latency.energy import PortableModel
from nni_latency.measurement.meters import ConstantMeter
from nni_latency.profiling import PROFILE_PROTOCOL, own_model, profile_operators
from nni_latency.testing import FakeRuntime

_NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.ReLU(), nn.Flatten(), nn.Linear(192, 8))
"""


def _write(path, factor=1.0):
    """Write operators that an invented device runs."""
    rows = ["operator,input_shape,latency_s,energy_mj"]
    for power in range(8, 20):
        size = 2**power
        seconds = factor * (1e-6 + size * 1e-9)
        rows.append(f'ReLU(),"(1, {size})",{seconds},{1e3 * 20 * seconds}')
        linear = f'"Linear(in_features={size}, out_features=8, bias=True)"'
        rows.append(f'{linear},"(1, {size})",{4 * seconds},{1e3 * 60 * 4 * seconds}')
    path.write_text("\n".join(rows) + "\n")


@pytest.fixture
def fitted(run, tmp_path):
    """Fit a model of two devices."""
    _write(tmp_path / "slow.csv", 3.0)
    _write(tmp_path / "fast.csv")
    return run("learn", "energy", "slow.csv", "quick=fast.csv", "--training", "trees=10")


def test_every_device_is_scored_beside_a_constant_power(fitted, tmp_path):
    assert fitted.stdout.count("the same time, times a constant power") == 4
    assert "slow: " in fitted.stdout
    assert "Wrote energy.json" in fitted.stdout
    model = PortableModel.load(tmp_path / "energy.json")
    assert list(model.devices_) == ["slow", "quick"]
    assert model.bounds_["energy"] > 0
    # Twenty-four operators of each device: held out by parts, and with all of their device.
    assert len(model.held_out_) == 2 * 2 * 24


def test_scores_are_rows(run, fitted):
    content = json.loads(
        run("learn", "energy", "slow.csv", "--training", "trees=5", "--out", "one.json", "--format", "json").stdout
    )
    assert {row["what"] for row in content["scores"]} == {
        "time", "power", "energy, as power times time", "the same time, times a constant power",
    }  # fmt: skip
    assert {row["held_out"] for row in content["scores"]} == {"operators"}
    assert content["devices"]["slow"]["launch"] == pytest.approx(3.0 * (1e-6 + 256e-9))


def test_networks_are_estimated(run, fails, fitted, tmp_path):
    (tmp_path / "net.py").write_text(_NET)
    words = ["predict", "net.py:Net", "--input", "3,8,8", "--format", "json", "--latency-estimator"]
    energy = json.loads(run(*words, "energy:energy.json,quick").stdout)
    latency = json.loads(run(*words, "energy:energy.json,quick,metric=latency").stdout)
    assert energy["low"] < energy["energy"] < energy["high"]
    assert 10 < energy["energy"] / latency["latency_s"] < 70
    assert len(energy["layers"]) == 2
    assert "It knows: slow, quick." in fails(*words[:-3], "--latency-estimator", "energy.json")


def test_a_predicted_energy_stands_beside_the_time_at_a_constant_power(run, fitted, tmp_path):
    (tmp_path / "net.py").write_text(_NET)
    words = ["predict", "net.py:Net", "--input", "3,8,8", "--latency-estimator"]
    latency = json.loads(run(*words, "energy:energy.json,quick,metric=latency", "--format", "json").stdout)
    assert "at_constant_power" not in json.dumps(latency)
    found = json.loads(run(*words, "energy:energy.json,quick", "--format", "json").stdout)
    watts = PortableModel.load(tmp_path / "energy.json").constant_power("quick")
    # Half of the operators draw 20 W, and half of them 60 W.
    assert watts == pytest.approx(40.0)
    assert found["at_constant_power"] == pytest.approx(watts * latency["latency_s"])
    assert sum(row["at_constant_power"] for row in found["layers"]) == pytest.approx(found["at_constant_power"])
    lines = run(*words, "energy:energy.json,quick", "--format", "csv").stdout.splitlines()
    assert lines[0] == "name,operator,energy,at_constant_power,share"
    shown = run(*words, "energy:energy.json,quick").stdout
    assert "at constant power" in shown
    assert "At a constant power of 40 W it would be " in shown


def test_an_analysis_is_of_latency(fails, fitted, tmp_path):
    (tmp_path / "net.py").write_text(_NET)
    words = ["profile", "net.py:Net", "--input", "3,8,8", "--latency-estimator", "energy:energy.json,quick"]
    assert "A profile takes an estimator of latency. Got PortableEstimator(energy on " in fails(*words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none.csv"], "none.csv cannot be read"),
        (["slow.csv", "slow.csv"], "Two files are of the device 'slow'. Name them apart: NAME=slow.csv."),
        (["few.csv"], "'few.csv' has 1 operator with time and energy; 6 are needed"),
        (["slow.csv", "--out", "slow.csv", "--overwrite"], "is an input of this command, too"),
        (["mine=slow.csv", "--out", "slow.csv", "--overwrite"], "is an input of this command, too"),
        (["slow.csv", "--training", "folds=1"], "The field 'folds' of --training must be a whole number >= 2. Got 1."),
    ],
)
def test_what_cannot_be_fitted_is_said(fails, tmp_path, words, said):
    _write(tmp_path / "slow.csv")
    (tmp_path / "few.csv").write_text('operator,input_shape,latency_s,energy_mj\nReLU(),"(1, 2)",0.1,5\n')
    assert said in fails("learn", "energy", *words)
    assert not (tmp_path / "energy.json").exists()


def _write_profile(path):
    """Write a profile of linear layers, with an assumed power."""
    runtime = FakeRuntime(lambda op: 1e-6 * op.input_shapes[0][1])
    sizes = (64, 96, 128, 192, 256, 384, 512, 768)
    layers = [nn.Linear(first, second) for first, second in itertools.pairwise(sizes)]
    protocol = replace(PROFILE_PROTOCOL, time_budget=1e6, half_width=0.0)
    meter = ConstantMeter(15, clock=lambda: runtime.clock.now)
    how = {"protocol": protocol, "store": "memory", "timer": lambda: runtime.clock.now, "meters": (meter,)}
    model = own_model("mine", nn.Sequential(*layers), torch.zeros(1, 64))
    return profile_operators([model], runtime, **how).save(path)


def test_a_power_that_was_assumed_teaches_nothing_and_that_is_said(run, tmp_path):
    _write_profile(tmp_path / "profile.json")
    shown = run("learn", "energy", "here=profile.json", "--training", "trees=5").stdout
    assert "here: its energy is time times a constant power of 15 W, which is an assumption." in shown
    content = json.loads(
        run(
            "learn", "energy", "profile.json", "--training", "trees=5", "--out", "again.json", "--format", "json"
        ).stdout
    )
    errors = {row["what"]: row["median"] for row in content["scores"]}
    assert errors["energy, as power times time"] == pytest.approx(errors["the same time, times a constant power"])
