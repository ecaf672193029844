"""``fit energy``: a portable model from measured operators, and estimates by it."""

from __future__ import annotations

import json

import pytest

from nni_latency.energy import PortableModel

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
    return run("fit", "energy", "slow.csv", "quick=fast.csv", "--trees", 10)


def test_every_device_is_scored_beside_a_constant_power(fitted, tmp_path):
    assert fitted.stdout.count("the same time, times a constant power") == 4
    assert "slow: " in fitted.stdout
    assert "Wrote energy.json" in fitted.stdout
    model = PortableModel.load(tmp_path / "energy.json")
    assert list(model.devices_) == ["slow", "quick"]
    assert model.bounds_["energy"] > 0


def test_scores_are_rows(run, fitted):
    content = json.loads(run("fit", "energy", "slow.csv", "--trees", 5, "--out", "one.json", "--json").stdout)
    assert {row["what"] for row in content["scores"]} == {
        "time", "power", "energy, as power times time", "the same time, times a constant power",
    }  # fmt: skip
    assert {row["held_out"] for row in content["scores"]} == {"operators"}
    assert content["devices"]["slow"]["launch"] == pytest.approx(3.0 * (1e-6 + 256e-9))


def test_networks_are_estimated(run, fails, fitted, tmp_path):
    (tmp_path / "net.py").write_text(_NET)
    words = ["estimate", "net.py:Net", "--input", "3,8,8", "--json", "--latency-estimator"]
    energy = json.loads(run(*words, "energy:energy.json,quick").stdout)
    latency = json.loads(run(*words, "energy:energy.json,quick,metric=latency").stdout)
    assert energy["low"] < energy["energy"] < energy["high"]
    assert 10 < energy["energy"] / latency["latency_s"] < 70
    assert len(energy["layers"]) == 2
    assert "It knows: slow, quick." in fails(*words[:-2], "--latency-estimator", "energy.json")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none.csv"], "none.csv cannot be read"),
        (["slow.csv", "slow.csv"], "Two files are of the device 'slow'. Name them apart: NAME=slow.csv."),
        (["few.csv"], "'few.csv' has 1 operators with time and energy; 6 are needed"),
        (["slow.csv", "--out", "slow.csv", "--overwrite"], "is an input of this command, too"),
        (["mine=slow.csv", "--out", "slow.csv", "--overwrite"], "is an input of this command, too"),
        (["slow.csv", "--folds", "1"], "1 is not in the range x>=2"),
    ],
)
def test_what_cannot_be_fitted_is_said(fails, tmp_path, words, said):
    _write(tmp_path / "slow.csv")
    (tmp_path / "few.csv").write_text('operator,input_shape,latency_s,energy_mj\nReLU(),"(1, 2)",0.1,5\n')
    assert said in fails("fit", "energy", *words)
    assert not (tmp_path / "energy.json").exists()
