# SPDX-License-Identifier: Apache-2.0
"""The predictor that ships: it is of the data set that ships, and answers without anything else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.image import imread

from nni_latency.cli import main
from nni_latency.datasets import load_networks
from nni_latency.graphs import (
    GraphPredictor,
    MeasuredNetwork,
    block_families,
    families,
    save_onnx,
    shipped_predictor,
)
from nni_latency.platforms import Platform


@pytest.fixture(scope="module")
def shipped() -> GraphPredictor:
    return GraphPredictor.load(shipped_predictor())


def test_it_is_of_the_data_set_that_ships(shipped: GraphPredictor) -> None:
    assert {item.id for item in shipped.platforms_} == {entry.platform.id for entry in load_networks()}
    assert set(shipped.families_) == {entry.family for entry in load_networks()} > {*families(), *block_families()}
    assert shipped.unmeasured_spread_ < 10


def test_it_is_drawn_with_what_was_measured(shipped: GraphPredictor, tmp_path: Path) -> None:
    known = [item.latency for item in load_networks()]
    assert sorted(shipped.latencies_[~np.isnan(shipped.latencies_)]) == pytest.approx(sorted(known))
    np.testing.assert_array_equal(np.isnan(shipped.latencies_), np.isnan(shipped.held_out_))
    picture = tmp_path / "predictor.png"
    found = CliRunner().invoke(main, ["show", "pretrained", "--plot", str(picture)])
    assert found.exit_code == 0, found.output
    assert imread(picture).shape[1] > 1200


@pytest.mark.slow
def test_it_knows_what_it_has_learned(shipped: GraphPredictor) -> None:
    """Of networks between those whose figures are kept in tests/acceptance."""
    for platform in shipped.platforms_:
        networks = load_networks().only(platform=platform.id)[2::5]
        predicted = shipped.predict([item.graph for item in networks], platform)
        errors = np.abs(predicted / np.array([item.latency for item in networks]) - 1)
        assert np.median(errors) < 0.15, platform.id


@pytest.mark.slow
def test_it_learns_a_gpu(shipped: GraphPredictor) -> None:
    """Of the networks that were measured for it, none has a third of the work of VGG-16."""
    latencies = json.loads(Path(__file__).with_name("h200_latencies.json").read_text("utf-8"))
    graphs = {(item.family, item.seed): item.graph for item in load_networks() if item.batch_size == 1}
    platform = Platform("h200", "torch")
    networks = [
        MeasuredNetwork(f"{family}-{seed}", graphs[family, seed], seconds, platform, family)
        for family, seed, seconds in latencies["learned"]
    ]
    found = shipped.adapt(networks)
    errors, inside = {}, 0
    for family, seed, seconds in latencies["published"]:
        estimate = found.estimate_platforms(graphs[family, seed], [platform])[platform.id]
        errors[family] = abs(estimate.value / seconds - 1)
        inside += estimate.low <= seconds <= estimate.high
    assert np.median(list(errors.values())) < 0.05
    assert max(errors.values()) < 0.35, errors
    assert inside >= 15


def test_a_fresh_installation_predicts(tmp_path: Path) -> None:
    network = tmp_path / "net.onnx"
    save_onnx(families()["resnet"], 0, network, 1)
    found = CliRunner().invoke(main, ["predict", str(network), "--format", "json"])
    assert found.exit_code == 0, found.output
    rows = json.loads(found.output)["platforms"]
    assert len(rows) >= 6
    assert all(0 < row["low_s"] < row["latency_s"] < row["high_s"] for row in rows)
