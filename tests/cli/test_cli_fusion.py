# SPDX-License-Identifier: Apache-2.0
"""``learn kernels --fusion`` and ``show`` for fusion rules."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from nni_latency.fusion import read_rules, save_rules
from nni_latency.operators import FusionRule, FusionRules, FusionTimes
from nni_latency.platforms import Platform

_RULES = FusionRules(
    Platform("cpu", "onnxruntime"),
    (
        FusionRule(("conv2d", "batch_norm"), True, folds=True, source="read from the runtime's model: FusedConv"),
        FusionRule(("conv2d", "relu"), True, times=FusionTimes(4e-4, 1e-4, 4e-4, 0.1)),
        FusionRule(("add", "relu"), False, times=FusionTimes(1e-4, -1e-6, 2e-4, 1.0)),
    ),
    failures={"conv2d + gelu": "there is no gelu"},
)

_NETWORK = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.block = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, inputs):
        print("user code may print")
        stem = self.stem(inputs)
        return torch.relu(self.block(stem) + stem)
"""


@pytest.fixture
def rules(tmp_path):
    (tmp_path / "net.py").write_text(_NETWORK)
    return save_rules(_RULES, tmp_path / "rules.json")


def test_detection_writes_rules_and_prints_verdicts(run, fails):
    words = ("learn", "kernels", "--fusion", "conv2d+relu", "--protocol", "rounds=8", "--budget", "5min")
    printed = run(*words).stdout
    (written,) = [line.partition("Wrote ")[2] for line in printed.splitlines() if line.startswith("Wrote ")]
    found = read_rules(written)
    assert written == f"fusion.{found.platform.id}.json"
    assert "conv2d + relu" in printed
    assert "a run, taken off" in printed
    assert "exists. Choose another file" in fails(*words)
    again = json.loads(run(*words, "--out", "again.json", "--format", "json").stdout)
    assert again["rules"][0]["times"]["together"] == found.rules[0].times.together
    assert again["campaign"] == found.campaign


def test_wrong_probes_are_refused(fails):
    assert "Unknown operator 'convolution'" in fails("learn", "kernels", "--fusion", "convolution+relu")
    assert "Unknown runtime 'nonsense'" in fails("learn", "kernels", "--fusion", "all", "--runtime", "nonsense")
    assert "--kernel has no effect with --fusion" in fails("learn", "kernels", "--fusion", "all", "--kernel", "conv")


def test_rules_are_shown_with_their_evidence(run, rules):
    shown = run("show", rules).stdout
    for text in ("in the weights", "one kernel", "apart, not clear", "FusedConv", "100.0 %", "there is no gelu"):
        assert text in shown
    content = json.loads(run("show", rules, "--format", "json").stdout)
    assert content["rules"][1] == {
        "kinds": ["conv2d", "relu"],
        "fused": True,
        "shared": False,
        "folds": False,
        "times": {"before": 4e-4, "last": 1e-4, "together": 4e-4, "margin": 0.1, "share": pytest.approx(1.0)},
        "source": "",
    }
    assert [(rule["fused"], rule["folds"]) for rule in content["rules"]] == [
        (True, True),
        (True, False),
        (False, False),
    ]
    assert content["rules"][0]["times"] is None
    assert run("show", rules, "--format", "csv").stdout.count("\n") == 4


def test_a_network_is_shown_as_kernels_and_drawn(run, rules):
    words = ("show", rules, "--network", "net.py:Net", "--input", "3,16,16")
    shown = run(*words, "--plot", "before_after.png").stdout
    assert "conv2d dense + batch_norm + relu" in shown
    assert "4 kernels on" in shown
    with Image.open("before_after.png") as picture:
        assert min(picture.size) > 200
    kernels = json.loads(run(*words, "--kwargs", '{"width": 4}', "--batch-size", 2, "--format", "json").stdout)
    assert kernels[0]["names"] == ["stem.0.conv2d", "stem.1.batch_norm", "stem.2.relu"]


def test_what_cannot_be_shown_is_refused(fails, rules, tables):
    assert "Name one with --network" in fails("show", rules, "--plot", "before_after.png")
    assert "is no file of fusion rules" in fails("show", tables["tiny"], "--network", "net.py:Net")
    assert "must be a class" in fails("show", rules, "--network", "net.py")
    assert "give it without the batch" in fails("show", rules, "--network", "net.py:Net")
    rules.write_text(rules.read_text()[:-9])
    assert "is not whole JSON" in fails("show", rules)
