# SPDX-License-Identifier: Apache-2.0
"""Costs beside the accuracy in what trials report to NNI."""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from toys import LATENCIES, Toy, evaluator_for, profiler_of, run_experiment, table_of

from nni_latency.errors import InvalidValueError
from nni_latency.imports import quiet_nni
from nni_latency.nas import CostReporting, LatencyProfiler, cost_report, report_with_cost
from nni_latency.spaces import CANDIDATES, FBNetSpace
from nni_latency.tables import LookupTable

with quiet_nni():
    import nni
    from nni.nas.evaluator import FunctionalEvaluator
    from nni.nas.experiment.config import ModelFormatConfig, SequentialEngineConfig
    from nni.nas.strategy import TPE, Random, RegularizedEvolution
    from nni.runtime import trial_command_channel as channels

SAMPLE = {"a": "z", "b": "x", "c": "w"}


class Listening(channels.TrialCommandChannel):
    """Keep what a trial sends."""

    def __init__(self):
        self.sent = []

    def receive_parameter(self):
        return None

    def send_metric(self, type, parameter_id, trial_job_id, sequence, value):  # noqa: A002 - NNI calls it so
        self.sent.append((type, value))


@pytest.fixture
def listening():
    before = channels.get_default_trial_command_channel()
    channel = Listening()
    channels.set_default_trial_command_channel(channel)
    yield channel
    channels.set_default_trial_command_channel(before)


@pytest.fixture(scope="module")
def tiny():
    return FBNetSpace(num_classes=2, input_size=32, width=0.25, depth=0.25, head_channels=16)


@pytest.fixture(scope="module")
def tiny_table(tiny):
    generator = torch.Generator().manual_seed(0)
    layers = {
        label: {choice: 1e-3 * float(torch.rand((), generator=generator)) for choice in CANDIDATES}
        for label in tiny.simplify()
    }
    return LookupTable.from_latencies(tiny, {"stem": {"conv": 1e-3}, **layers, "head": {"16": 1e-3}})


@pytest.mark.parametrize(
    ("metric", "name", "value"),
    [
        ("latency", "latency_ms", 4.0),
        ("energy", "energy_mj", 4.0),
        ("parameter_memory", "parameter_memory_mib", 4e-3 / 2**20),
        ("peak_memory", "peak_memory_mib", 2e-3 / 2**20),
    ],
)
def test_report_names_metric_and_unit(metric, name, value):
    space = Toy()
    table = LookupTable.from_latencies(space, LATENCIES, metric=metric)
    report = cost_report(LatencyProfiler(space, latency_estimator=table), SAMPLE)
    assert report == {name: pytest.approx(value)}


def test_report_of_a_network_is_the_estimators(tiny, tiny_table):
    sample = {label: CANDIDATES[index] for index, label in enumerate(tiny.simplify())}
    network = tiny.freeze(sample)
    by_profiler = cost_report(LatencyProfiler(tiny, latency_estimator=tiny_table), sample)
    assert cost_report(tiny_table, network, tiny.example_inputs()) == pytest.approx(by_profiler)


def test_result_holds_accuracy_cost_and_more(listening):
    result = report_with_cost(0.75, profiler_of(Toy()), SAMPLE, top5=0.9)
    assert result == {"default": 0.75, "latency_ms": pytest.approx(4.0), "top5": 0.9}
    assert listening.sent == [("FINAL", result)]


@pytest.mark.parametrize("accuracy", [float("nan"), float("inf"), "high", None, True])
def test_accuracy_is_a_finite_number(accuracy, listening):
    with pytest.raises(InvalidValueError, match=r"The 'accuracy' of a report must be a finite number\. Got"):
        report_with_cost(accuracy, profiler_of(Toy()), SAMPLE)
    assert listening.sent == []


@pytest.mark.parametrize("name", ["default", "latency_ms"])
def test_further_numbers_do_not_replace_others(name):
    with pytest.raises(InvalidValueError, match=rf"must have unused names\. Got {name!r}"):
        report_with_cost(0.5, profiler_of(Toy()), SAMPLE, **{name: 1.0})


def test_profiler_without_a_candidate_needs_a_trial(monkeypatch):
    monkeypatch.setattr(nni.trial, "_params", None)
    with pytest.raises(InvalidValueError, match=r"no candidate to cost: outside of a trial a profiler needs a sample"):
        report_with_cost(0.5, profiler_of(Toy()))


def test_estimator_without_a_network_says_so():
    with pytest.raises(InvalidValueError, match=r"An estimator costs a network: give the network as the candidate"):
        report_with_cost(0.5, table_of(Toy()))


def _run(space, evaluator, strategy, folder, trials=2):
    return run_experiment(
        space,
        strategy,
        evaluator,
        folder,
        execution_engine=SequentialEngineConfig(),
        model_format=ModelFormatConfig("raw"),
        max_trial_number=trials,
    )


@pytest.mark.parametrize(
    "strategy",
    [Random(seed=0), RegularizedEvolution(population_size=3, sample_size=2, seed=0)],
    ids=lambda strategy: type(strategy).__name__,
)
def test_strategies_maximise_the_accuracy_alone(strategy, tmp_path):
    space, results = Toy(), []
    profiler = profiler_of(space)

    def judge(model):
        results.append(report_with_cost(float(len(results) == 1), profiler))

    _run(space, FunctionalEvaluator(judge), strategy, tmp_path, trials=4)
    best = next(iter(strategy.list_models(limit=1)))
    assert best.metric == 1.0
    assert 1e3 * profiler.profile(best.sample) == pytest.approx(results[1]["latency_ms"])


def _report_plainly(model, value):
    nni.report_intermediate_result(0.25)
    nni.report_final_result(value)


@pytest.mark.parametrize("value", [0.5, {"default": 0.5, "top5": 0.75}], ids=["number", "dictionary"])
def test_evaluator_adds_costs_to_the_final_result_alone(value, tiny, tiny_table, listening):
    network = tiny.freeze(dict.fromkeys(tiny.simplify(), "skip"))
    inner = FunctionalEvaluator(functools.partial(_report_plainly, value=value))
    CostReporting(inner, tiny_table, (1, 3, 32, 32)).evaluate(network)
    cost = cost_report(tiny_table, network, tiny.example_inputs())
    expected = {**cost, **(value if isinstance(value, dict) else {"default": value})}
    assert listening.sent == [("PERIODICAL", 0.25), ("FINAL", expected)]
    assert channels.get_default_trial_command_channel() is listening


def test_evaluator_lets_errors_through_and_cleans_up(tiny, tiny_table, listening):
    def fail(model):
        raise RuntimeError("no data")

    network = tiny.freeze(dict.fromkeys(tiny.simplify(), "skip"))
    with pytest.raises(RuntimeError, match="no data"):
        CostReporting(FunctionalEvaluator(fail), tiny_table, (1, 3, 32, 32)).evaluate(network)
    assert channels.get_default_trial_command_channel() is listening


@pytest.mark.filterwarnings("ignore:Your `val_dataloader`'s sampler has shuffling enabled")
def test_evaluator_of_lightning_reports_costs_too(tmp_path):
    space, sent = Toy(), []
    profiler = profiler_of(space)
    evaluator = CostReporting(evaluator_for(1, str(tmp_path)), profiler)
    before = channels.get_default_trial_command_channel()

    class Noted(Random):
        def _initialize(self, model_space, engine):
            engine.register_model_event_callback("final_metric", lambda event: sent.append(event.metric))
            return super()._initialize(model_space, engine)

    best = _run(space, evaluator, Noted(seed=0), tmp_path, trials=1)
    assert channels.get_default_trial_command_channel() is before
    assert sent[0]["latency_ms"] == pytest.approx(1e3 * profiler.profile(best))
    assert 0 <= sent[0]["default"] <= 1


def test_evaluator_travels_by_its_arguments(tmp_path, monkeypatch, tiny_table):
    tiny_table.save(tmp_path / "table.json")
    monkeypatch.chdir(tmp_path)
    evaluator = CostReporting(FunctionalEvaluator(_report_plainly, value=0.5), "table.json", (1, 3, 32, 32))
    text = nni.dump(evaluator)
    assert "bytes:" not in text
    arrived = nni.load(text)
    assert isinstance(arrived, CostReporting)
    assert arrived.costs == str(tmp_path / "table.json")
    assert tuple(arrived.input_shape) == (1, 3, 32, 32)
    assert arrived.evaluator.function is _report_plainly


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((print, "table.json", (1, 8)), r"'evaluator' of CostReporting must be an evaluator of NNI\. Got builtin"),
        ((FunctionalEvaluator(print), "table.json"), r"CostReporting needs the 'input_shape' of the network"),
    ],
)
def test_evaluator_refuses_wrong_arguments(arguments, message):
    with pytest.raises(InvalidValueError, match=message):
        CostReporting(*arguments)


def test_tpe_takes_a_result_with_costs(tmp_path):
    from nni_latency.nas import TPE as OUR_TPE

    space = Toy()
    profiler = profiler_of(space)
    strategy = OUR_TPE(seed=0)
    assert isinstance(strategy, TPE)
    _run(space, FunctionalEvaluator(lambda model: report_with_cost(0.5, profiler)), strategy, tmp_path, trials=3)
    assert [model.metric for model in strategy.list_models()] == [0.5, 0.5, 0.5]


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _run_script(arguments, folder, seconds):
    """Run a script with a limit; end whatever it has started, by number, if it does not end."""
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        started = psutil.Process(process.pid)
        for child in [*started.children(recursive=True), started]:
            child.kill()
        pytest.fail(f"The experiment did not end within {seconds} s:\n{process.communicate()[0]}")
    return output


@pytest.mark.slow
def test_web_page_of_a_local_experiment_gets_accuracy_and_latency(tmp_path, tiny_table, monkeypatch):
    """NNI's manager, its training service and a trial, each a process; what arrived is read from NNI's REST API."""
    code = tmp_path / "code"
    code.mkdir()
    shutil.copy(Path(__file__).parent / "local_experiment.py", code)
    tiny_table.save(tmp_path / "table.json")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("no_proxy", "localhost,127.0.0.1" + "," * bool(os.environ.get("no_proxy")))
    output = _run_script(
        ["local_experiment.py", str(tmp_path / "table.json"), str(tmp_path / "experiments"), str(_free_port())],
        code,
        seconds=780,
    )
    lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
    assert len(lines) == 1, output
    result = json.loads(lines[0].removeprefix("RESULT "))
    assert len(result["reported"]) == 1
    low, high = result["range"]
    for parameter_id, metrics in result["reported"].items():
        assert metrics == {"default": 0.75, "latency_ms": pytest.approx(result["expected"][parameter_id])}
        assert metrics["latency_ms"] <= 1e3 * (low + high) / 2
