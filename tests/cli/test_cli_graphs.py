# SPDX-License-Identifier: Apache-2.0
"""``learn graph``, ``predict`` and ``families suggest`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from measured_graphs import FAST, SLOW, fitted, write_measured


@pytest.fixture(scope="module")
def predictor(tmp_path_factory):
    return fitted(5).save(tmp_path_factory.mktemp("predictor") / "graph.safetensors")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Twelve networks of three families, measured on two platforms."""
    pytest.importorskip("onnx", reason="the package onnx is not installed")
    return write_measured(tmp_path_factory.mktemp("measured") / "set")


@pytest.fixture
def net(folder):
    return folder / "onnx" / "n3.onnx"


def test_a_predictor_is_fitted_and_predicts(run, folder, net):
    words = ["learn", "graph", "--dataset", folder, "--training", "epochs=3,members=1"]
    report = json.loads(run(*words, "--format", "json").stdout)
    assert [row["networks"] for row in report["platforms"]] == [12, 12]
    assert report["families"] == ["depth1", "depth2", "depth3"]
    shown = run("predict", net, "-e", "graph.safetensors").stdout
    assert shown.index(FAST.id) < shown.index(SLOW.id)
    assert "multiply-adds" in shown


@pytest.mark.slow
def test_a_platform_is_added(run, folder, predictor, net):
    words = [
        "learn",
        "graph",
        "--dataset",
        folder,
        "--from",
        predictor,
        "--platform",
        SLOW.id,
        "--out",
        "both.safetensors",
    ]
    assert "Wrote both.safetensors" in run(*words).stdout
    found = json.loads(run("predict", net, "-e", "both.safetensors", "--format", "json").stdout)
    assert {row["platform"]: row["networks"] for row in found["platforms"]} == {FAST.id: 24, SLOW.id: 12}


def test_fits_are_on_this_machine_or_on_others(fails, folder):
    words = ["learn", "graph", "--dataset", folder, "--remote", "farm:127.0.0.1:1"]
    assert "--jobs is for this machine, and --remote for others" in fails(*words, "--jobs", 2)
    assert "No farm answers at tcp://127.0.0.1:1: Connection refused." in fails(*words)


def test_data_of_several_platforms_has_no_other_name(fails, folder, predictor):
    words = ["learn", "graph", "--dataset", folder, "--from", predictor, "--platform", "mine"]
    assert "none of them is 'mine.unknown.fp32.t1'" in fails(*words)


@pytest.mark.parametrize("option", [("--jobs", 2), ("--training", "members=2")])
def test_a_platform_is_added_with_the_settings_that_a_predictor_has(fails, folder, predictor, option):
    words = ["learn", "graph", "--dataset", folder, "--from", predictor, *option]
    assert f"{option[0]} has no effect with --from" in fails(*words)


def test_operators_are_explained(run, predictor, net):
    found = json.loads(run("predict", net, "-e", predictor, "--platform", "fast", "--format", "json").stdout)
    (row,) = found["platforms"]
    assert row["platform"] == FAST.id
    assert row["low_s"] < row["latency_s"] < row["high_s"]
    assert sum(item["latency_s"] for item in row["layers"]) < row["latency_s"]
    assert "Layers on" not in run("predict", net, "-e", predictor).stdout
    assert run("predict", net, "-e", predictor, "--top", 2).stdout.count("Layers on ") == 2


def test_a_platform_that_nobody_measured_needs_three_that_were(fails, predictor, net):
    words = ["predict", net, "--estimator", predictor]
    assert "three known ones" in fails(*words, "--guess", "board.onnxruntime.fp32.t4", "--fact", "peak_flops=1e11")
    assert "must be NAME=NUMBER" in fails(*words, "--guess", "board", "--fact", "colour=red")
    assert "Name it with --guess" in fails(*words, "--fact", "peak_flops=1e11")


def test_a_batch_takes_longer(run, predictor, net):
    one, eight = (
        json.loads(run("predict", net, "-e", predictor, "--batch-size", size, "--format", "json").stdout)["platforms"][
            0
        ]
        for size in (1, 8)
    )
    assert eight["latency_s"] > 2 * one["latency_s"]


def test_networks_are_compared(run, fails, predictor, folder):
    small, large = folder / "onnx" / "n0.onnx", folder / "onnx" / "n11.onnx"
    found = json.loads(run("predict", large, small, "-e", predictor, "--format", "json").stdout)
    assert {row["best"] for row in found["platforms"]} == {str(small)}
    assert all(row["factor"] > 1 for row in found["platforms"])
    assert f"Fastest: {small.name} on {FAST.id}" in run("predict", large, small, "-e", predictor).stdout
    assert "is named twice" in fails("predict", small, small, "-e", predictor)


def test_many_networks_are_a_row_each(run, predictor, folder):
    files = [folder / "onnx" / f"n{number}.onnx" for number in range(6)]
    command = ["predict", *files, "-e", predictor]
    shown = run(*command).stdout
    assert all(shown.count(file.name) == 1 + (file is files[0]) for file in files[:-1]), shown
    assert FAST.id in shown
    assert "1 more platform: name some with --platform, or print all with --format csv." in shown
    both = run(*command, "--platform", "fast", "--platform", "slow").stdout
    assert both.count(files[1].name) == 2
    assert "more platform" not in both
    found = json.loads(run(*command, "--format", "json").stdout)
    assert (len(found["platforms"]), len(found["networks"])) == (2, 12)
    assert len(run(*command, "--format", "csv").stdout.splitlines()) == 3


def test_files_of_one_name_keep_their_folders(run, predictor, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, source in (("a/n0.onnx", "n0"), ("b/n0.onnx", "n11"), ("b/n11.onnx", "n11")):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes((folder / "onnx" / f"{source}.onnx").read_bytes())
    shown = run("predict", "a/n0.onnx", "b/n0.onnx", "b/n11.onnx", "-e", predictor).stdout
    assert "b/n0.onnx" in shown
    assert "b/n11.onnx" not in shown
    assert "Fastest: a/n0.onnx on " in shown


def test_networks_to_measure_are_suggested(run, fails, predictor, folder, tmp_path):
    found = json.loads(
        run("dataset", "suggest", folder / "onnx", "--samples", 4, "-e", predictor, "--format", "json").stdout
    )
    assert len({row["network"] for row in found["networks"]}) == 4
    assert "no ONNX file" in fails("dataset", "suggest", tmp_path, "-e", predictor)


def test_mistakes_are_said_in_one_sentence(fails, predictor, folder, net, tmp_path):
    assert "Unknown platform 'pixel'" in fails("predict", net, "-e", predictor, "--platform", "pixel")
    (tmp_path / "net.onnx").write_bytes(net.read_bytes()[:100])
    assert "not an ONNX file" in fails("predict", tmp_path / "net.onnx", "-e", predictor)
    assert str(net) in fails("predict", net, "-e", net)
    (tmp_path / "gt.txt").write_text("1 onnx/a.onnx 1 fast plain device-fast\n2 onnx/b.onnx\n")
    words = ["learn", "graph", "--dataset", folder, "--training"]
    assert "The field 'members' of --training must be a whole number >= 1. Got 0." in fails(*words, "members=0")
    assert "Unknown field of --training 'depth'. Available: epochs, members, seed, at_least." in fails(
        *words, "depth=3"
    )
    assert "'epochs' is given twice, as 2 and as 3. Give it once." in fails(*words, "epochs=2,epochs=3")
    assert "--training at_least has no effect without --from-database. Omit it." in fails(*words, "at_least=3")
    message = fails("learn", "graph", "--dataset", tmp_path)
    assert "line 1" in message
    assert "line 2" in message
