# SPDX-License-Identifier: Apache-2.0
"""The examples of searchers that are not NNI's, with few trials."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import random
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nni_latency import FBNetSpace, LookupTable, TableEstimator
from nni_latency.estimators import ModuleEstimator
from nni_latency.measurement.runtimes import TorchEager
from nni_latency.operators import features_of
from nni_latency.testing import FakeRuntime

_EXAMPLES = Path(__file__).parents[1] / "examples"


def _needs(package: str) -> pytest.MarkDecorator:
    absent = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(absent, reason=f"the package {package} is not installed")


def _run(name: str, folder: Path, *arguments: str | Path) -> str:
    command = [sys.executable, str(_EXAMPLES / name), *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@_needs("optuna")
@pytest.mark.parametrize("sampler", ["nsga2", "tpe"])
def test_optuna_finds_a_front_whose_latencies_are_those_of_the_table(tmp_path, sampler):
    space = FBNetSpace(num_classes=10, input_size=96, width=0.25, depth=0.25)
    draw = random.Random(0)
    costs = {
        layer.name: {choice: draw.uniform(1e-4, 1e-3) for choice in layer.candidates}
        for layer in space.measure_plan().layers
    }
    table = LookupTable.from_latencies(space, costs, platform=TorchEager().platform)
    table.save(tmp_path / "table.json")
    few = ("--trials", "5", "--epochs", "1", "--sampler", sampler)
    printed = _run("optuna_search.py", tmp_path, "--table", "table.json", *few)
    rows = [line.split() for line in printed.splitlines()[4:]]
    assert rows
    front = [(float(row[0].rstrip("%")), float(row[1]), row[5:]) for row in rows]
    labels = [layer.name for layer in table.searched]
    for _, latency, choices in front:
        sample = dict(zip(labels, choices, strict=True))
        assert latency == pytest.approx(1e3 * TableEstimator(table).estimate_sample(sample).value, abs=0.006)
    for (first, fast, _), (second, slow, _) in itertools.pairwise(front):
        assert first < second
        assert fast <= slow
    assert all(float(row[3]) > 0 for row in rows)


@pytest.fixture(scope="module")
def plain():
    return runpy.run_path(str(_EXAMPLES / "plain_pytorch.py"))


def test_costs_of_candidates_add_up_to_those_of_a_plain_network(plain):
    runtime = FakeRuntime(lambda op: 1e-6 + 1e-11 * features_of(op).flops)
    estimator = ModuleEstimator(runtime=runtime, store="memory")
    supernet, images = plain["SuperNetwork"](), torch.zeros(1, 3, 32, 32)
    cost = plain["costs_of"](supernet, estimator, images)
    names = list(plain["CANDIDATES"])
    choices = [names[place % 3] for place in range(len(cost.costs))]
    whole = estimator.estimate(supernet.network(choices), images).value
    assert cost(dict(zip(cost.costs, choices, strict=True))) == pytest.approx(whole, rel=1e-6)


def test_penalty_reaches_the_logits_of_a_plain_super_network(plain):
    cost = plain["AdditiveCost"](0.0, {f"layer{place}": dict.fromkeys(plain["CANDIDATES"], 1e-3) for place in range(6)})
    for row in cost.costs.values():
        row["conv3"] = 1e-5
    torch.manual_seed(0)
    supernet = plain["SuperNetwork"]()
    plain["search"](supernet, cost, 1e-4, 1, 100.0)
    assert all(list(layer.candidates)[layer.logits.argmax()] == "conv3" for layer in supernet.layers)


@pytest.mark.slow
def test_plain_search_meets_its_target(tmp_path):
    printed = _run("plain_pytorch.py", tmp_path, "--epochs", "1", "--target", "0.3")
    predicted, target = map(float, re.search(r"predicted +(\S+) ms, target (\S+) ms", printed).groups())
    assert 0.9 * target - 0.001 < predicted <= target
    measured, at_speed = (float(re.search(rf"{name} +(\S+) ms", printed)[1]) for name in ("measured", "speed"))
    assert measured > 0
    error = float(re.search(r"prediction (\S+)%", printed)[1])
    # They are printed in whole microseconds.
    assert error == pytest.approx(100 * (predicted / at_speed - 1), abs=0.1 / at_speed + 0.1)


def test_estimator_of_whole_networks_is_refused_by_the_plain_search(tmp_path):
    command = [sys.executable, str(_EXAMPLES / "plain_pytorch.py"), "--estimator", "network"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "layer-based" in done.stderr


@pytest.fixture(scope="module")
def pruning():
    return runpy.run_path(str(_EXAMPLES / "prune_timm.py"))


@_needs("timm")
@pytest.mark.parametrize("name", ["resnet18", "resnet26"])
def test_pruned_network_computes_what_a_masked_one_does(pruning, name):
    import timm

    torch.manual_seed(0)
    network = timm.create_model(name, pretrained=False, num_classes=10).eval()
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            # The last ones of the blocks begin with zeros, with which a block computes nothing.
            for values in (module.weight, module.bias, module.running_mean, module.running_var):
                values.data.uniform_(0.5, 1.5)
    thin = pruning["pruned"](network, 0.5)
    known, masked = pruning["importance"](network), copy.deepcopy(network)
    for pair in pruning["pairs_of"](network):
        kept = thin.get_submodule(pair.filters).out_channels
        assert kept % pruning["MULTIPLE"] == 0
        assert 0 < kept < len(known[pair.filters])
        gone = known[pair.filters].argsort()[: len(known[pair.filters]) - kept]
        with torch.no_grad():
            masked.get_submodule(f"{pair.block}.{pair.second}").weight[:, gone] = 0
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(thin(images), masked(images), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(pruning["pruned"](network, 0.0)(images), network(images), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@_needs("timm")
def test_timm_network_is_pruned_to_its_target(tmp_path):
    printed = _run("prune_timm.py", tmp_path, "--model", "resnet10t", "--epochs", "1", "--target", "0.7")
    predicted, target = map(float, re.search(r"predicted +(\S+) ms, target (\S+) ms", printed).groups())
    assert 0 < predicted <= target
    before, after = (float(size) for size in re.findall(r"(\S+) M parameters", printed))
    assert after < before
