# SPDX-License-Identifier: Apache-2.0
"""``profile --measure``: networks of every origin, campaign files, reports, and what cannot be profiled."""

from __future__ import annotations

import csv
import io
import json
import sys

import pytest

from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform
from nni_latency.profiling import ModelProfile, OperatorProfile, Part, ProfiledOperator, vision_model, vision_names

_NETS = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))

class Moody(nn.Module):
    def forward(self, inputs):
        if not inputs.is_meta and not torch.jit.is_tracing() and inputs.shape[0] == 1:
            raise ValueError("not today")
        return torch.relu(inputs)

def two():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU())
"""


@pytest.fixture(scope="module")
def measured(run, tmp_path_factory):
    """Profile two networks of one's own, with an assumed power; return the folder and what was printed."""
    folder = tmp_path_factory.mktemp("profiles")
    (folder / "nets.py").write_text(_NETS)
    (folder / "models.txt").write_text(f"{folder}/nets.py:two 3,8,8\n[ ] {folder}/nets.py:Moody 3,8,8\n")
    words = [
        "profile", f"{folder}/nets.py:Net", "--measure", "--campaign", folder / "models.txt",
        "--input", "3,8,8", "--budget", "10min", "--protocol", "rounds=20", "--protocol", "processes=1",
        "--database", folder / "records.sqlite", "--meter", "constant:15",
        "--out", folder / "profile.json", "--plot", folder / "profile.png",
    ]  # fmt: skip
    return folder, words, run(*words)


@pytest.mark.slow
def test_networks_of_ones_own_are_profiled(measured):
    folder, _, result = measured
    profile = OperatorProfile.load(folder / "profile.json")
    assert [model.name.rpartition(":")[2] for model in profile.models] == ["Net", "two"]
    assert all(share >= 0.9 for metric in profile.metrics for share in profile.attributed(metric).values())
    assert (profile.meter, profile.assumption) == ("constant:15", "a constant power of 15 W")
    assert "it is time times a constant power of 15 W, which is an assumption" in result.stdout
    assert "Could not be measured: " in result.stderr
    assert "nets.py:Moody: ValueError: not today" in result.stderr
    assert (folder / "profile.png").stat().st_size > 10_000


@pytest.mark.slow
def test_campaign_file_is_marked(measured):
    folder, _, _ = measured
    first, second = (folder / "models.txt").read_text().splitlines()
    assert first == f"[x] {folder}/nets.py:two 3,8,8"
    assert second == f"[!] {folder}/nets.py:Moody 3,8,8  # ValueError: not today"


@pytest.mark.slow
def test_same_command_measures_nothing_again(run, measured):
    folder, words, _ = measured
    before = OperatorProfile.load(folder / "profile.json")
    again = run(*words, "--overwrite")
    assert again.stderr.count("nothing was measured") == 2
    after = OperatorProfile.load(folder / "profile.json")
    assert (after.models, after.operators) == (before.models, before.operators)


@pytest.mark.slow
@pytest.mark.parametrize(("by", "name"), [("kind", "kinds"), ("model", "parts"), ("operator", "operators")])
def test_profile_is_reported_without_measuring(run, measured, by, name):
    folder, _, _ = measured
    words = ["profile", "--from", folder / "profile.json", "--by", by]
    content = json.loads(run(*words, "--format", "json").stdout)
    assert {row["model"].rpartition(":")[2] for row in content["models"]} == {"Net", "two"}
    rows = list(csv.DictReader(io.StringIO(run(*words, "--format", "csv").stdout)))
    assert len(rows) == len(content[name])
    assert rows[0]["platform"] == OperatorProfile.load(folder / "profile.json").platform.id
    assert "linear" in run(*words).stdout
    both = run(*words, "--from", folder / "profile.json", "--plot", "both.png")
    assert "platform" in both.stdout


@pytest.mark.parametrize(("marked", "said"), [(1.05, ""), (1.4, "net to 140.0 %"), (0.6, "net to 60.0 %")])
def test_operators_that_do_not_add_up_to_their_model_are_doubted(run, tmp_path, marked, said):
    op = OpSpec.of("relu", [(1, 8)])
    model = ModelProfile(1.0, 0.9, 1.1, "net", ((1, 8),), marked, {op.op_key: Part(1, 1.0)})
    platform = Platform("cpu", "torch", "fp32", 1)
    profile = OperatorProfile(
        platform=platform, batch_size=1, target=0.9, models=(model,), operators=(ProfiledOperator(op),)
    )
    path = profile.save(tmp_path / "profile.json")
    shown = " ".join(run("profile", "--from", path).stdout.split())
    assert ("do not add up to it" in shown) is bool(said)
    assert said in shown


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["resnot18"], "Unknown network 'resnot18'. Available: resnet18"),
        (["resnet18", "vit", "--input", "3,8,8"], "'resnet18' has a fixed input: omit --input."),
        (["net.py:Net", "--input", "3,8,8"], "There is no file 'net.py'"),
        (["nets.py:Net"], "The network needs the shape of its input"),
        (["nets.py:Net", "--input", "5,8,8"], "do not fit Net"),
        (["--campaign", "none.txt"], "Cannot read the campaign file 'none.txt': No such file or directory."),
        (["vit", "--share", "0"], "0.0 is not in the range 0<x<=1"),
        (["vit", "--runtime", "torchscript"], "cannot time the operators of a network one by one"),
        (["vit", "--meter", "constant:-2"], "takes a positive power in watts"),
    ],
)
def test_what_cannot_be_profiled_is_said_before_anything_is_measured(fails, tmp_path, options, said):
    (tmp_path / "nets.py").write_text(_NETS)
    assert said in fails("profile", "--measure", *options)
    assert not list(tmp_path.glob("operators.*"))


def test_profile_that_is_not_there_is_said(fails):
    assert "Cannot read the profile 'none.json': No such file or directory." in fails("profile", "--from", "none.json")


_VISION = """
from torch import nn

def list_models(module=None):
    return ["resnet50", "inception_v3"]

def get_model(name, weights, **options):
    assert weights is None
    assert options == ({"init_weights": False} if name == "inception_v3" else {})
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
"""


@pytest.fixture
def vision(tmp_path, monkeypatch):
    """Put a torchvision of two networks in the place of any other."""
    package = tmp_path / "packages" / "torchvision"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from torchvision import models\n")
    (package / "models.py").write_text(_VISION)
    for name in ("torchvision", "torchvision.models"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(package.parent)
    yield package
    for name in ("torchvision", "torchvision.models"):
        sys.modules.pop(name, None)


def test_networks_of_torchvision_are_found_beside_families(vision):
    assert vision_names() == ("resnet50", "inception_v3")
    for name in vision_names():
        assert vision_model(name, 2, (3, 8, 8)).counts["relu()@2x4x6x6:float32"] == 1


def test_a_wrong_name_is_told_the_networks_of_torchvision(fails, vision):
    said = fails("profile", "--measure", "resnet51")
    assert said.startswith("Unknown network 'resnet51'. Available: resnet50, ")
    assert "pip install" not in said


def test_a_torchvision_that_does_not_load_is_said(fails, vision):
    (vision / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    assert "does not load here (operator torchvision::nms does not exist)" in fails("profile", "--measure", "resnet50")


def test_without_torchvision_its_networks_need_an_extra(fails, monkeypatch):
    monkeypatch.setattr("nni_latency.profiling._models.importlib.util.find_spec", lambda name: None)
    assert "after pip install 'nni_latency[vision]'" in fails("profile", "--measure", "resnet50")
