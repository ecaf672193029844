# SPDX-License-Identifier: Apache-2.0
"""Files that are kept: they give the estimates that they gave when they were written.

Each file in ``data`` has the version of its format that its name says; ``estimates.json`` holds what the package then
made of them.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from nni_latency import load_estimator
from nni_latency.documents import load
from nni_latency.estimators import TableEstimator, TransferEstimator
from nni_latency.micro_benchmarks import BenchmarkPoints
from nni_latency.operators import OpSpec
from nni_latency.tables import LookupTable
from nni_latency.validation import read_summary

_DATA = Path(__file__).parent / "data"
_THEN = json.loads((_DATA / "estimates.json").read_text())
_OPERATORS = ("operators_1_names", "operators_1_names_nni", "operators_1")
_OP = OpSpec.of("conv2d", [(1, 16, 28, 28)], out_channels=32, kernel_size=3, stride=1, groups=1, bias=False)


def _numbers(estimate):
    return [estimate.value, estimate.low, estimate.high]


@pytest.mark.parametrize("name", ["lookup_table_1", "lookup_table_1_failures"])
def test_lookup_table_costs_networks_what_it_did(name):
    estimator = load_estimator(_DATA / f"{name}.json", missing="nearest")
    assert isinstance(estimator, TableEstimator)
    layers = estimator.table.searched
    for number, then in enumerate(_THEN[name]):
        sample = [number % len(layer.choices) for layer in layers]
        assert _numbers(estimator.estimate_sample(sample)) == pytest.approx(then, rel=1e-12)


def test_lookup_table_keeps_what_else_it_said():
    table = load(_DATA / "lookup_table_1.json")
    assert (table.space.name, table.rounds, len(table.drift)) == ("fbnet", 11, 11)
    assert table.residency.saving == 0.6
    assert table.reference == 0.012025369460614336
    assert set(table.conditions) == {"before", "after"}
    assert (table.campaign, table.package_version) == (None, None)
    failed = load(_DATA / "lookup_table_1_failures.json")
    assert failed.metric == "throughput"
    assert dict(failed["b"].failures) == {"y": "ValueError: broken"}


@pytest.mark.parametrize("name", _OPERATORS)
def test_table_of_operators_costs_them_what_it_did(name):
    estimator = load_estimator(_DATA / f"{name}.json")
    assert isinstance(estimator, TableEstimator)
    then = dict(_THEN[name])
    total = then.pop("total", None)
    now = {key: estimator.estimate_op(estimator.table.by_op[key].op) for key in then}
    for key, estimate in now.items():
        assert _numbers(estimate) == pytest.approx(then[key], rel=1e-12)
        assert estimate.missing == ()
    if total is not None:
        assert _numbers(estimator.total(now.values())) == pytest.approx(total, rel=1e-12)


def test_operators_from_elsewhere_keep_their_names():
    table = LookupTable.load(_DATA / "operators_1_names.json")
    assert (table.space.name, table.platform.device, table.input_shape) == ("operators", "jetson", (1,))
    names = [entry.names for entry in table.operators]
    assert names[0] == ("Conv-input:32x32x3-output:32x32x16",)
    # Two keys of one operator.
    assert len(names[2]) == 2
    assert ("Odd-input:1x1x8-output:1x1x8",) in names
    nni = LookupTable.load(_DATA / "operators_1_names_nni.json")
    assert [entry.names for entry in nni.operators] == [
        (f"56x56x24-24-s1:{name}",) for name in ("k3_e1", "skip", "shift")
    ]


@pytest.mark.parametrize("name", [*_OPERATORS, "lookup_table_1", "lookup_table_1_failures"])
def test_table_is_written_anew_without_a_change(tmp_path, name):
    table = load(_DATA / f"{name}.json")
    assert load(table.save(tmp_path / "new.json")) == table


def test_benchmark_points_are_what_they_were(tmp_path):
    points, then = BenchmarkPoints.load(_DATA / "benchmark_points_1.json"), _THEN["benchmark_points_1"]
    assert points.latencies.tolist() == then["latencies"]
    assert points.totals.tolist() == then["totals"]
    assert dict(points.failures) == then["ended"]
    assert points.space.name == "micro-benchmarks"
    assert BenchmarkPoints.load(points.save(tmp_path / "new.json")) == points


@pytest.mark.parametrize("name", ["acts_1_refined", "acts_1_published"])
def test_fit_predicts_what_it_did(name):
    estimator, (of_op, of_totals, of_block) = load_estimator(_DATA / f"{name}.json"), _THEN[name]
    assert _numbers(estimator.estimate_op(_OP)) == pytest.approx(of_op, rel=1e-9)
    assert estimator.predict([[1e6, 2e6, 1e9]]).tolist() == pytest.approx(of_totals, rel=1e-9)
    assert estimator.predict([[_OP, _OP]]).tolist() == pytest.approx(of_block, rel=1e-9)


def test_transfer_predicts_what_it_did():
    estimator = TransferEstimator.load(_DATA / "transfer_1.json")
    networks = [[choice] * len(estimator.labels_) for choice in (0, 1)]
    for now, then in zip(estimator.predict_interval(networks), _THEN["transfer_1"], strict=True):
        np.testing.assert_allclose(now, then, rtol=1e-6)


def test_validation_has_the_scores_that_it_had():
    summary = read_summary(_DATA / "validation_1.json")
    assert summary.model_dump(include={"scores", "repeatability"}) == _THEN["validation_1"]
