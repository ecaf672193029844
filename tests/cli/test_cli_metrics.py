# SPDX-License-Identifier: Apache-2.0
"""``nni-latency build-lut``: metrics, batch sizes, what is kept and what is reported, on an invented machine."""

from __future__ import annotations

import json
import random

import pytest
from tiny import TINY, TINY_OPTIONS

from nni_latency.cli import _remote_options
from nni_latency.database import open_store
from nni_latency.platforms import Conditions, Platform
from nni_latency.spaces import FBNetSpace
from nni_latency.tables import LookupTable
from nni_latency.testing import FakeRuntime


class _Invented(FakeRuntime):
    """A machine that runs out of memory: one candidate fails, and something is swapped in."""

    def __init__(self, broken=None, remarkable=False):
        super().__init__(self._seconds, platform=Platform.current("cpu"))
        self.broken, self.remarkable, self.asked = broken, remarkable, 0

    def _seconds(self, op):
        if op == self.broken:
            raise RuntimeError("out of [memory]")
        return 1e-6 * (1 + sum(map(ord, op.op_key)) % 997)

    def conditions(self):
        self.asked += 1
        return Conditions(swap_in=self.asked << 30) if self.remarkable else Conditions()


@pytest.fixture
def use(monkeypatch):
    """Put an invented machine under the command."""

    def put(runtime):
        monkeypatch.setattr(_remote_options, "make_runtime", lambda *arguments: runtime)
        return runtime

    return put


@pytest.fixture
def build(run, use):
    use(_Invented())
    return lambda *options: run("build-lut", *TINY_OPTIONS, "--protocol", "rounds=1", *options)


@pytest.fixture
def plan():
    return FBNetSpace(**TINY).measure_plan()


def _parameters(candidate):
    module = candidate.build()
    return sum(tensor.numel() * tensor.element_size() for tensor in (*module.parameters(), *module.buffers()))


@pytest.mark.slow
def test_several_batch_sizes_make_a_table_each(build, tmp_path):
    build("--batch-size", "2,1,2")
    made = {LookupTable.load(path).batch_size: path.name for path in tmp_path.glob("[!.]*")}
    here = Platform.current("cpu").id
    assert made == {size: f"fbnet-w0.25-d0.25-32x32-b{size}.{here}.json" for size in (1, 2)}


@pytest.mark.slow
def test_several_batch_sizes_can_be_counted(build, tmp_path):
    build("--batch-size", "1,2", "--metric", "activation_memory")
    one, two = sorted((LookupTable.load(path) for path in tmp_path.glob("[!.]*")), key=lambda table: table.batch_size)
    assert two["stem"]["conv"].value == 2 * one["stem"]["conv"].value


def test_parameter_memory_is_exact(build, plan, tmp_path):
    shown = build("--metric", "parameter_memory", "--out", "t.json").stdout
    table = LookupTable.load(tmp_path / "t.json")
    assert (table.metric, table.coverage, table.protocol) == ("parameter_memory", 1.0, None)
    for layer in plan.layers:
        for choice, candidate in layer.candidates.items():
            entry = table[layer.name][choice]
            assert entry.low == entry.value == entry.high == _parameters(candidate)
    assert "Computed the parameter_memory of 65 candidates" in shown


def test_activation_memory_of_a_candidate_holds_its_input_and_output_at_least(build, plan, tmp_path):
    build("--metric", "activation_memory", "--out", "t.json")
    table = LookupTable.load(tmp_path / "t.json")
    stem = plan.layers[0].candidates["conv"].op
    channels = stem["out_channels"]
    (_, _, height, width) = plan.input_shape
    stride = stem["stride"]
    numbers = 3 * height * width + channels * (height // stride) * (width // stride)
    assert table["stem"]["conv"].value >= 4 * numbers


@pytest.mark.parametrize("metric", ["parameter_memory", "activation_memory"])
def test_counted_metrics_run_nothing(build, use, metric):
    machine = use(_Invented())
    build("--metric", metric)
    assert (machine.clock.now, machine.sessions) == (0.0, 0)


def test_counted_table_is_not_replaced_unasked(build, fails):
    build("--metric", "parameter_memory", "--out", "t.json")
    command = ["build-lut", *TINY_OPTIONS, "--metric", "parameter_memory", "--out", "t.json"]
    assert "'t.json' exists" in fails(*command)
    build("--metric", "parameter_memory", "--out", "t.json", "--overwrite")


@pytest.mark.slow
def test_throughput_is_the_batch_over_the_latency(build, tmp_path):
    build("--batch-size", 2, "--metric", "throughput", "--out", "throughput.json")
    build("--batch-size", 2, "--out", "latency.json")
    throughput, latency = (LookupTable.load(tmp_path / f"{name}.json") for name in ("throughput", "latency"))
    assert throughput.metric == "throughput"
    for layer in latency.layers:
        for choice, entry in layer.entries.items():
            assert throughput[layer.name][choice].value == pytest.approx(2 / entry.value)


def test_metric_stands_in_the_name_of_the_file(build, tmp_path):
    build("--metric", "throughput")
    (path,) = tmp_path.glob("[!.]*")
    assert path.name == f"fbnet-w0.25-d0.25-32x32-b1.{Platform.current('cpu').id}.throughput.json"


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["throughput", "activation_memory"])
def test_predict_and_show_take_other_metrics(build, run, metric):
    build("--metric", metric, "--out", "t.json")
    command = ["predict", "fbnet@" + ",".join(["k3_e1"] * 7), "-e", "t.json", "--format", "json"]
    content = json.loads(run(*command).stdout)
    assert content["low"] <= content[metric] <= content["high"]
    assert metric in run("show", "t.json").stdout


def test_raw_samples_are_kept_in_the_database(build, plan):
    build("--out", "t.json")
    (stored,) = open_store().campaigns()
    assert stored.failures == ()
    assert {len(times) for record in stored.records for times in record.parts} == {len(plan.layers)}


@pytest.mark.slow
def test_early_end_leaves_budget(run, use, tmp_path):
    """Without any noise the intervals are narrow as soon as there are enough samples."""
    use(_Invented())
    run(
        "build-lut",
        *TINY_OPTIONS,
        "--protocol",
        "rounds=60",
        "--protocol",
        "half_width=0.05",
        "--budget",
        "5min",
        "--out",
        "t.json",
    )
    table = LookupTable.load(tmp_path / "t.json")
    assert table.rounds < 60
    assert table.unsettled == ()


@pytest.mark.slow
def test_protocol_takes_half_width_and_timeout(build, tmp_path):
    build("--protocol", "half_width=0.1", "--protocol", "timeout=180", "--out", "t.json")
    protocol = LookupTable.load(tmp_path / "t.json").protocol
    assert (protocol.half_width, protocol.timeout) == (0.1, 180.0)


@pytest.mark.slow
def test_failed_candidate_is_reported(build, use, plan, tmp_path):
    broken = plan.layers[2].candidates["k5_e6"].op
    places = [
        (layer.name, name) for layer in plan.layers for name, item in layer.candidates.items() if item.op == broken
    ]
    use(_Invented(broken))
    result = build("--out", "t.json")
    assert "Could not be measured: layer1:k5_e6: RuntimeError: out of [memory]" in result.stderr
    table = LookupTable.load(tmp_path / "t.json")
    assert table.missing == tuple(places)
    assert f"coverage {1 - len(places) / 65:.1%}".replace("%", " %") in result.stdout


def test_unsteady_conditions_are_reported(build, use, tmp_path):
    use(_Invented(remarkable=True))
    result = build("--out", "t.json")
    (remark,) = LookupTable.load(tmp_path / "t.json").remarks
    assert "swap" in remark
    assert remark in result.stderr


@pytest.mark.slow
def test_entries_that_did_not_settle_are_reported(run, use, tmp_path):
    machine = use(_Invented())
    draw = random.Random(0)
    machine.noise = lambda: draw.uniform(0.0, 2e-3)
    result = run("build-lut", *TINY_OPTIONS, "--protocol", "rounds=3", "--out", "t.json")
    count = len(LookupTable.load(tmp_path / "t.json").unsettled)
    assert count > 8
    assert f"{count} entries did not settle within the budget: " in result.stderr
    assert f"and {count - 8} more" in result.stderr
