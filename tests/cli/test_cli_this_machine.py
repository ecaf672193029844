# SPDX-License-Identifier: Apache-2.0
"""``learn graph`` without data, and ``predict`` by the predictor that it writes."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from measured_graphs import FAST, SLOW, fitted, measured, use_few_networks, write_measured

from nni_latency import graphs, learning
from nni_latency.cli._learn_machine import learn_command
from nni_latency.learning import BasePredictor, MachineMeasurements
from nni_latency.platforms import Platform

#: What `learning.measure_machine` keeps of a machine.
FACTS = {"reference": 0.002, "predictor": "abc", "device_kind": "cpu"}


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """Fit a small predictor in place of the one that ships."""
    return fitted(5).save(tmp_path_factory.mktemp("shipped") / "shipped.safetensors")


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    pytest.importorskip("onnx", reason="the package onnx is not installed")
    return write_measured(tmp_path_factory.mktemp("measured") / "set") / "onnx" / "n3.onnx"


@pytest.fixture
def _ships(monkeypatch, shipped):
    monkeypatch.setattr(graphs, "shipped_predictor", lambda: shipped)
    monkeypatch.setattr(graphs, "shipped_digest", lambda: "abc")


@pytest.fixture(scope="module")
def _learned_once():
    """Learn once what several tests learn from the same numbers: it takes seconds."""
    learn, known = learning.learn_machine, {}

    def learn_once(predictor, networks, watch):
        key = repr([(item.id, dict(item.facts)) for item in (*predictor.platforms_, networks[0].platform)])
        if key not in known:
            known[key] = learn(predictor, networks, watch)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learning, "learn_machine", learn_once)
        yield


@pytest.fixture
def asked(monkeypatch, _ships, _learned_once):
    """Measure invented networks in place of those of this machine; list what was asked for."""
    calls = []

    def measure(runtime, budget, **how):
        calls.append((runtime.platform, budget, how["fresh"], how["store"]))
        how["watch"]("measuring 12 networks", 0.5)
        platform = replace(runtime.platform, facts={**runtime.platform.facts, **FACTS})
        networks = [replace(item, platform=platform) for item in measured(3, [(FAST, 1.0)])]
        return MachineMeasurements(tuple(networks), {"vgg-00001": "no such kernel"}, 100.0)

    monkeypatch.setattr(learning, "measure_machine", measure)
    return calls


def _platforms(path):
    return [item.id for item in graphs.GraphPredictor.load(path).platforms_]


def test_this_machine_is_learned_and_predicted_first(run, net, asked, monkeypatch):
    here = Platform.current().id
    done = run("learn", "graph")
    assert asked == [(Platform.current(), 180.0, False, None)]
    assert re.search(r"Off by [\d.]+ % on 2 networks kept apart, \d of 2 inside of the interval\.", done.stdout)
    assert f"Wrote {graphs.own_predictor()}" in done.stdout
    assert f"{here} cannot run vgg-00001: no such kernel." in done.stderr
    monkeypatch.setattr("nni_latency.learning._speed.measure_reference", lambda _device, _threads: 0.00201)
    shown = run("predict", net)
    assert shown.stdout.index(here) < shown.stdout.index(FAST.id) < shown.stdout.index(SLOW.id)
    assert "learned here" in shown.stdout
    assert shown.stderr == ""
    rows = json.loads(run("predict", net, "--format", "json").stdout)["platforms"]
    assert [row["this_machine"] for row in rows] == ["learned here", None, None]
    compared = json.loads(run("predict", net, net.with_name("n5.onnx"), "--format", "json").stdout)["platforms"]
    assert compared[0]["platform"] == here


@pytest.mark.usefixtures("asked")
def test_json_of_a_learned_machine_has_its_error(run):
    found = json.loads(run("learn", "graph", "--budget", "1min", "--format", "json").stdout)
    assert (found["networks"], found["held_out"], found["failed"]) == (12, 2, 1)
    assert 0 < found["mape"] < 1
    assert found["file"] == str(graphs.own_predictor())


@pytest.mark.usefixtures("asked")
def test_the_predictor_that_ships_stays_by_its_name(run, net, shipped):
    run("learn", "graph")
    shown = run("predict", net, "-e", shipped).stdout
    assert Platform.current().id not in shown
    assert "this machine" not in shown


def test_other_runtimes_are_added_and_the_same_one_is_replaced(run, asked):
    own = graphs.own_predictor()
    run("learn", "graph")
    run("learn", "graph", "--runtime", "torch:bf16", "--threads", 2, "--fresh", "--database", "m.sqlite")
    run("learn", "graph")
    device = Platform.current().device
    assert _platforms(own) == [FAST.id, SLOW.id, f"{device}.torch.fp32.t1", f"{device}.torch.bf16.t2"]
    assert asked[1][2:] == (True, "m.sqlite")


@pytest.mark.usefixtures("asked")
def test_another_file_leaves_your_own_as_it_was(run, fails):
    assert (
        "Ask it: nni-latency predict NET -e mine.safetensors"
        in run("learn", "graph", "--out", "mine.safetensors").stdout
    )
    assert not graphs.own_predictor().exists()
    assert "'mine.safetensors' exists" in fails("learn", "graph", "--out", "mine.safetensors")


@pytest.mark.usefixtures("asked")
def test_an_older_predictor_is_named_and_begun_anew(run, net, monkeypatch):
    run("learn", "graph", "--runtime", "torch:bf16")
    monkeypatch.setattr(graphs, "shipped_digest", lambda: "new")
    monkeypatch.setattr("nni_latency.learning._speed.measure_reference", lambda _device, _threads: 0.002)
    said = run("predict", net).stderr
    assert "Your own predictor was made from another version of the one that ships." in said
    assert "nni-latency learn graph --runtime torch:bf16 --fresh" in said
    said = run("learn", "graph").stderr
    assert "was made from another version of the predictor that ships." in said
    assert "Learn the other platforms again: nni-latency learn graph --runtime torch:bf16 --fresh" in said
    assert _platforms(graphs.own_predictor())[2:] == [Platform.current().id]


@pytest.mark.usefixtures("asked")
def test_a_damaged_predictor_is_replaced(run, fails, net):
    own = graphs.own_predictor()
    own.parent.mkdir(parents=True)
    own.write_text("nothing")
    assert str(own) in fails("predict", net)
    assert "The new one begins with the predictor that ships." in run("learn", "graph").stderr
    assert len(_platforms(own)) == 3


@pytest.mark.parametrize(
    ("seconds", "word"), [(0.0023, "15.0 % slower now"), (0.0018, "10.0 % faster now"), (0.00205, None)]
)
@pytest.mark.usefixtures("asked")
def test_another_speed_of_today_is_said(run, net, monkeypatch, seconds, word):
    run("learn", "graph")
    monkeypatch.setattr("nni_latency.learning._speed.measure_reference", lambda _device, _threads: seconds)
    said = run("predict", net).stderr
    assert (word in said) if word else not said


@pytest.mark.usefixtures("asked")
def test_a_speed_is_measured_for_platforms_that_are_shown_alone(run, net, monkeypatch):
    run("learn", "graph")
    monkeypatch.setattr(
        "nni_latency.learning._speed.measure_reference", lambda _device, _threads: pytest.fail("measured")
    )
    run("predict", net, "--platform", FAST.id)


@pytest.mark.usefixtures("asked")
def test_platforms_of_the_same_device_elsewhere_are_marked(run, net, shipped, tmp_path):
    platform = Platform(Platform.current().device, "onnxruntime")
    found = fitted(2, [(FAST, 1.0), (platform, 2.0)]).save(tmp_path / "same.safetensors")
    rows = json.loads(run("predict", net, "-e", found, "--format", "json").stdout)["platforms"]
    assert [(row["platform"], row["this_machine"]) for row in rows] == [(platform.id, "same device"), (FAST.id, None)]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--runtime", "nothing"], "Unknown runtime 'nothing'. Available: "),
        (["--runtime", "torch:fp8"], "Got the precision 'fp8'."),
        (["--runtime", "torch", "--device", "cuda:99"], "Unknown device 'cuda:99'. Available: cpu"),
        (["--from", "pretrained"], "--from has no effect without --dataset. Omit it."),
        (["--platform", "pi"], "--platform has no effect without --dataset. Omit it."),
        (["--training", "epochs=3"], "--training has no effect without --dataset. Omit it."),
        (["--jobs", 2], "--jobs has no effect without --dataset. Omit it."),
        (["--remote", "farm:127.0.0.1:1"], "--remote has no effect without --dataset. Omit it."),
        (["--list"], "--list has no effect without --from-database. Omit it."),
        (["--dataset", "shipped", "--budget", "1min"], "--budget has no effect with --dataset: nothing is measured."),
        (
            ["--dataset", "shipped", "--runtime", "torch"],
            "--runtime has no effect with --dataset: nothing is measured.",
        ),
        (["--budget", "soon"], "Invalid value for '--budget'"),
        (["--out", "no.txt/x.safetensors"], "Cannot write 'no.txt/x.safetensors'"),
    ],
)
def test_wrong_uses_are_one_sentence(fails, asked, tmp_path, words, sentence):
    (tmp_path / "no.txt").write_text("a file")
    assert sentence in fails("learn", "graph", *words)
    assert not asked


@pytest.mark.usefixtures("_ships")
def test_the_shipped_predictor_is_extended_where_the_own_one_cannot_be_looked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / ("x" * 300)))
    base = learning.base_predictor()
    assert base.predictor.platforms_ == graphs.GraphPredictor.load(graphs.shipped_predictor()).platforms_


@pytest.mark.usefixtures("_ships")
def test_a_budget_for_less_than_five_networks_is_refused(fails, monkeypatch):
    monkeypatch.setattr(learning, "base_predictor", lambda: BasePredictor(None))
    assert "--budget must be at least 30 s" in fails("learn", "graph", "--budget", "5s")


@pytest.mark.usefixtures("asked")
def test_two_commands_do_not_learn_at_once(fails):
    from nni_latency.files import reserved

    with reserved(graphs.own_predictor(), "learning"):
        assert "Another process is learning" in fails("learn", "graph")


@pytest.mark.usefixtures("_ships")
@pytest.mark.parametrize("length", [0, 5, 9, 200, 3000])
def test_an_own_predictor_that_was_cut_off_is_named_with_its_remedy(fails, net, shipped, length):
    own = graphs.own_predictor()
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_bytes(shipped.read_bytes()[:length])
    said = fails("predict", net)
    assert f"{str(own)!r} is no graph predictor that can be read" in said
    assert "Fit one with 'nni-latency learn graph'." in said


@pytest.mark.slow
def test_the_real_command_measures_and_learns(run, net, monkeypatch):
    """Few networks, in torch; an interrupted run would be resumed as the second one is."""
    use_few_networks(monkeypatch, 8)
    words = ["learn", "graph", "--runtime", "torch", "--budget", "20min", "--format", "json"]
    found = json.loads(run(*words).stdout)
    assert (found["networks"], found["held_out"], found["failed"]) == (8, 1, 0)
    assert found["mape"] < 0.5
    again = json.loads(run(*words).stdout)
    assert (again["networks"], again["failed"]) == (8, 0)
    rows = json.loads(run("predict", net, "--format", "json").stdout)["platforms"]
    assert (rows[0]["platform"], rows[0]["this_machine"]) == (found["platform"], "learned here")


def test_platform_of_another_device_is_learned_again_there():
    there = Platform("raspberry-pi-4", "onnxruntime", "fp32", 4)
    assert learn_command(there) == "nni-latency learn graph --runtime onnxruntime --device DEVICE --threads 4 --fresh"
