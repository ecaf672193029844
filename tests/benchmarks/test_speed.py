# SPDX-License-Identifier: Apache-2.0
"""How fast a search gets its answers. Run by hand: ``make benchmarks``; medians go to docs/benchmarks.rst.

Ours and NNI's stand side by side in one run, because the machine is never the same twice.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nni_latency import FBNet, FBNetSpace, LatencyPenalty, LatencyProfiler, LookupTable, TableEstimator
from nni_latency.nas import FBNetLoss
from nni_latency.tables import LayerPair, Residency


def _costs(space: FBNetSpace) -> dict[str, dict[str, float]]:
    generator = np.random.default_rng(0)
    return {
        label: dict(zip(mutable.values, generator.uniform(1e-4, 2e-3, len(mutable)), strict=True))
        for label, mutable in space.simplify().items()
    }


def _paired(space: FBNetSpace) -> LookupTable:
    """Make a table with a cost for every two neighbouring layers."""
    table, generator = LookupTable.from_latencies(space, _costs(space)), np.random.default_rng(1)
    names, kinds = list(space.simplify()), (0, 1, 0, 0, 0, 1, 0, 0, 2)
    pairs = (
        LayerPair(layers, (kinds, kinds), tuple(map(tuple, generator.normal(0, 2e-5, (3, 3)).tolist())))
        for layers in itertools.pairwise(names)
    )
    return replace(table, pairs=tuple(pairs))


@pytest.fixture(scope="module")
def profiler() -> LatencyProfiler:
    space = FBNetSpace()
    return LatencyProfiler(space, latency_estimator=LookupTable.from_latencies(space, _costs(space)))


@pytest.fixture(scope="module")
def strategy() -> FBNet:
    space = FBNetSpace()
    made = FBNet(LookupTable.from_latencies(space, _costs(space)))
    made.mutate_model(space)
    return made


@pytest.fixture(scope="module")
def sample(profiler: LatencyProfiler) -> dict[str, str]:
    return dict.fromkeys(profiler.cost.costs, "k3_e6")


@pytest.mark.benchmark(group="profile of one sample")
def test_profile_ours(benchmark: Any, profiler: LatencyProfiler, sample: dict[str, str]) -> None:
    assert benchmark(profiler.profile, sample) > 0


@pytest.mark.benchmark(group="profile of one sample")
def test_profile_with_pairs(benchmark: Any, sample: dict[str, str]) -> None:
    space = FBNetSpace()
    assert benchmark(LatencyProfiler(space, latency_estimator=_paired(space)).profile, sample) > 0


@pytest.mark.benchmark(group="profile of one sample")
def test_profile_with_pairs_and_residency(benchmark: Any, sample: dict[str, str]) -> None:
    space = FBNetSpace()
    table = replace(_paired(space), residency=Residency(0.2, 0.01))
    assert benchmark(LatencyProfiler(space, latency_estimator=table).profile, sample) > 0


@pytest.mark.benchmark(group="profile of one sample")
def test_profile_nni_expression(benchmark: Any, profiler: LatencyProfiler, sample: dict[str, str]) -> None:
    assert benchmark(profiler.expression.evaluate, sample) == pytest.approx(profiler.profile(sample))


@pytest.mark.benchmark(group="a million architectures")
def test_million_architectures(benchmark: Any, profiler: LatencyProfiler) -> None:
    table = LookupTable.from_latencies(profiler.space, _costs(profiler.space))
    architectures = np.random.default_rng(0).integers(0, 9, (1_000_000, 22))
    estimator = TableEstimator(table)
    assert benchmark(estimator.predict, architectures).shape == (1_000_000,)


def _step(penalty: Callable[..., Any], sample: dict[str, Any], loss: torch.Tensor) -> None:
    joined, _ = penalty(loss, sample)
    joined.backward()


@pytest.mark.benchmark(group="penalty step, forward and backward, 22 x 9")
def test_penalty_ours(benchmark: Any, strategy: FBNet) -> None:
    benchmark(_step, LatencyPenalty(strategy.profiler, 0.012), {}, torch.tensor(2.0))


@pytest.mark.benchmark(group="penalty step, forward and backward, 22 x 9")
@pytest.mark.parametrize("residency", [None, Residency(0.2, 0.01)], ids=["sum", "residency"])
def test_penalty_with_pairs(benchmark: Any, residency: Residency | None) -> None:
    space = FBNetSpace()
    strategy = FBNet(replace(_paired(space), residency=residency))
    strategy.mutate_model(space)
    benchmark(_step, LatencyPenalty(strategy.profiler, 0.012), {}, torch.tensor(2.0))


@pytest.mark.benchmark(group="penalty step, forward and backward, 22 x 9")
def test_penalty_fbnet_loss(benchmark: Any, strategy: FBNet) -> None:
    # The noise is there already: the forward pass has drawn it.
    benchmark(_step, FBNetLoss(strategy.profiler, strategy.mask), {}, torch.tensor(2.0))


@pytest.mark.benchmark(group="penalty step, forward and backward, 22 x 9")
def test_penalty_nni(benchmark: Any, strategy: FBNet) -> None:
    from nni.nas.oneshot.pytorch.profiler import ExpectationProfilerPenalty

    penalty = ExpectationProfilerPenalty(strategy.profiler, 0.012)
    alphas = strategy._arch_parameters
    choices = {label: list(costs) for label, costs in strategy.profiler.cost.costs.items()}

    def step() -> None:
        # What NNI would hand over if its strategies did not turn the probabilities into floats.
        live = {
            label: dict(zip(choices[label], torch.softmax(alpha, -1), strict=True)) for label, alpha in alphas.items()
        }
        _step(penalty, live, torch.tensor(2.0))

    benchmark(step)


@pytest.mark.benchmark(group="import")
def test_import(benchmark: Any) -> None:
    benchmark.pedantic(
        subprocess.run, ([sys.executable, "-c", "import nni_latency"],), {"check": True}, rounds=10, warmup_rounds=1
    )


@pytest.mark.benchmark(group="import")
def test_import_nothing(benchmark: Any) -> None:
    benchmark.pedantic(subprocess.run, ([sys.executable, "-c", ""],), {"check": True}, rounds=10, warmup_rounds=1)


@pytest.mark.benchmark(group="table of FBNet, 224x224, batch 1, one thread, default protocol")
def test_table_build(benchmark: Any, tmp_path: Path) -> None:
    out = tmp_path / "table.json"
    command = [sys.executable, "-m", "nni_latency", "build-lut", "--space", "fbnet", "--out", str(out)]
    begin = time.perf_counter()
    benchmark.pedantic(subprocess.run, (command,), {"check": True, "capture_output": True}, rounds=1)
    assert time.perf_counter() - begin < 90
    assert LookupTable.load(out).coverage == 1
