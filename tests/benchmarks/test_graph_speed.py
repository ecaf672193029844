# SPDX-License-Identifier: Apache-2.0
"""How fast a predictor of graphs answers. Run by hand: ``make benchmarks``; medians go to docs/benchmarks.rst."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nni_latency.graphs import GraphPredictor, find_families, save_onnx, shipped_predictor
from nni_latency.operators import Graph, read_onnx


@pytest.fixture(scope="module")
def predictor() -> GraphPredictor:
    return GraphPredictor.load(shipped_predictor())


@pytest.fixture(scope="module", params=["resnet", "mobilenetv3", "densenet"])
def network(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    (family,) = find_families([request.param])
    return save_onnx(family, 0, tmp_path_factory.mktemp("networks") / f"{request.param}.onnx")


@pytest.fixture(scope="module")
def graph(network: Path) -> Graph:
    return read_onnx(network)


@pytest.mark.benchmark(group="latency of a graph on all platforms")
def test_graph(benchmark: Any, predictor: GraphPredictor, graph: Graph) -> None:
    assert len(benchmark(predictor.estimate_platforms, graph)) == len(predictor.platforms_)


@pytest.mark.benchmark(group="the same on one platform")
def test_one_platform(benchmark: Any, predictor: GraphPredictor, graph: Graph) -> None:
    (seconds,) = benchmark(predictor.predict, [graph], predictor.platforms_[0])
    assert seconds > 0


@pytest.mark.benchmark(group="the same from an ONNX file")
def test_file(benchmark: Any, predictor: GraphPredictor, network: Path) -> None:
    assert len(benchmark(lambda: predictor.estimate_platforms(read_onnx(network)))) == len(predictor.platforms_)
