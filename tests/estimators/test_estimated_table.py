# SPDX-License-Identifier: Apache-2.0
"""Tables of what an estimator says."""

from __future__ import annotations

import pytest
from acts_points import draw_blocks, noisy, time_of

from nni_latency import load_estimator
from nni_latency.errors import InvalidValueError
from nni_latency.estimators import ActsEstimator, Estimate, NetworkEstimator, estimate_table
from nni_latency.platforms import Platform
from nni_latency.spaces import FBNetSpace
from nni_latency.tables import LookupTable


@pytest.fixture(scope="module")
def fitted():
    blocks = draw_blocks(40)
    return ActsEstimator().fit(blocks, noisy([time_of(block) for block in blocks]), platform=Platform("pi-4"))


@pytest.fixture(scope="module")
def plan():
    return FBNetSpace(depth=0.25, width=0.5, input_size=32, num_classes=10).measure_plan()


def test_table_says_what_the_estimator_says(fitted, plan, tmp_path):
    table = estimate_table(fitted, plan)
    assert table.coverage == 1
    assert table.platform == fitted.platform
    assert table.remarks == ("Estimated by ActsEstimator and not measured.",)
    table.save(tmp_path / "table.json")
    answer = load_estimator(tmp_path / "table.json").estimate_sample({layer.name: "k5_e6" for layer in plan.searched})
    ops = plan.ops_of({**plan.reference, **{layer.name: "k5_e6" for layer in plan.searched}})
    assert answer.value == pytest.approx(sum(fitted.estimate_op(op).value for op in ops))
    assert answer.low < answer.value < answer.high


def test_an_estimator_of_whole_networks_makes_no_table(plan):
    class Whole(NetworkEstimator):
        metric, platform = "latency", Platform("pi")

        def estimate(self, model, example_inputs=None):
            return Estimate(1.0, 1.0, 1.0)

    with pytest.raises(InvalidValueError, match="cannot be taken apart by layer"):
        estimate_table(Whole(), plan)


@pytest.mark.slow
def test_command_writes_the_table(fitted, plan, tmp_path, monkeypatch):
    from click.testing import CliRunner

    from nni_latency.cli import main

    monkeypatch.chdir(tmp_path)
    fitted.save("fit.json")
    space = [
        "--space",
        "fbnet",
        "--input-size",
        "32",
        "--space-args",
        "depth=0.25,width=0.5,num_classes=10",
    ]
    done = CliRunner().invoke(main, ["build-lut", *space, "--from", "acts:fit.json", "--batch-size", "1,4"])
    assert done.exit_code == 0, done.output
    written = {LookupTable.load(path).batch_size for path in tmp_path.glob("fbnet*.json")}
    assert written == {1, 4}
    refused = CliRunner().invoke(main, ["build-lut", *space, "--from", "acts:fit.json", "--metric", "throughput"])
    assert refused.exit_code == 2
    assert "gives latency, but --metric is throughput" in refused.output
    again = CliRunner().invoke(main, ["build-lut", *space, "--from", "acts:fit.json"])
    assert again.exit_code == 2
    assert "exists" in again.output


@pytest.mark.slow
def test_command_writes_a_table_of_operators_of_a_hub_space(fitted, tmp_path, monkeypatch):
    from click.testing import CliRunner

    from nni_latency.cli import main

    monkeypatch.chdir(tmp_path)
    fitted.save("fit.json")
    options = ["--space", "nasbench201", "--networks", "2", "--from", "acts:fit.json", "--out", "table.json"]
    done = CliRunner().invoke(main, ["build-lut", *options])
    assert done.exit_code == 0, done.output
    assert "operators" in done.output
    assert load_estimator(tmp_path / "table.json").platform.device == "pi-4"
