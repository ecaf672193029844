# SPDX-License-Identifier: Apache-2.0
"""``kernels:PREDICTORS,RULES``: predictors and fusion rules as one estimator."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from staircase import PROTOCOL, SMALL, invented, time_of
from torch import nn

from nni_latency import load_estimator
from nni_latency.errors import InvalidValueError, MismatchError
from nni_latency.fusion import save_rules
from nni_latency.kernels import Kernel, build_predictors, find_types, kernel_types
from nni_latency.measurement import MemoryStore
from nni_latency.operators import FusionRule, FusionRules


class Sum(nn.Module):
    """Two kernels: a sum with its activation, and another sum."""

    def forward(self, first, second):
        return torch.relu(first + second) + second


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Write predictors, and beside them the rule that an activation runs with its sum."""
    folder = tmp_path_factory.mktemp("kernels")
    out = folder / "device.kernels.json"
    kinds = find_types(["add_block", "add_relu"])
    predictors = build_predictors(kinds, invented(), out, protocol=PROTOCOL, sampling=SMALL, store=MemoryStore())
    rules = FusionRules(predictors.platform, (FusionRule(("add", "relu"), True),))
    return out, save_rules(rules, folder / f"fusion.{predictors.platform.id}.json"), predictors


@pytest.mark.parametrize("name", ["{0}", "kernels:{0}", "kernels:{0},{1}"])
def test_network_costs_its_kernels(files, name):
    out, rules, predictors = files
    estimator = load_estimator(name.format(out, rules))
    shape = (1, 64, 28, 28)
    found = estimator.estimate(Sum(), (torch.zeros(shape), torch.zeros(shape)))
    kernels = [Kernel.of("add_relu", HW=28, CIN=64), Kernel.of("add_block", HW=28, CIN=64)]
    assert found.value == pytest.approx(sum(predictors.predict(kernels)))
    assert found.low < found.value < found.high
    assert not found.missing
    known = kernel_types()
    assert found.value == pytest.approx(sum(time_of(known[item.kind], item) for item in kernels), rel=0.2)


def test_names_of_both_files_may_have_commas(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path, name in zip(files[:2], ("a,b.json", "rules, 1.json"), strict=True):
        (tmp_path / name).write_bytes(path.read_bytes())
    assert load_estimator("kernels:a,b.json,rules, 1.json").platform == files[2].platform


def test_rules_that_are_not_there_say_how_to_find_them_out(files, tmp_path):
    alone = tmp_path / "alone.kernels.json"
    alone.write_bytes(files[0].read_bytes())
    with pytest.raises(InvalidValueError, match=r"Find them out with 'nni-latency learn kernels --fusion all'"):
        load_estimator(f"kernels:{alone}")


def test_rules_of_another_runtime_are_refused(files, tmp_path):
    platform = replace(files[2].platform, runtime="another")
    rules = save_rules(FusionRules(platform, (FusionRule(("add", "relu"), True),)), tmp_path / "rules.json")
    with pytest.raises(MismatchError, match=r"another"):
        load_estimator(f"kernels:{files[0]},{rules}")
