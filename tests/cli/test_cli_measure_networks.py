# SPDX-License-Identifier: Apache-2.0
"""``nni-latency dataset``: measuring, merging, and NNLQP's layout on the command line."""

from __future__ import annotations

import json

import pytest
import torch
from measured_graphs import save_nodes
from torch import nn

from nni_latency.cli._dataset_measure import _counts, _members, _NetworkOptions
from nni_latency.datasets import load_networks
from nni_latency.operators import export_onnx
from nni_latency.platforms import Platform

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")


@pytest.fixture
def model(tmp_path):
    """Save a small network."""
    path = tmp_path / "small.onnx"
    onnx.save(export_onnx(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval(), [torch.zeros(1, 3, 8, 8)]).model, path)
    return path


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--platform", "torch:fp3"], r"The platform 'torch:fp3' must be a runtime, or a runtime and one of the"),
        (["--platform", "torch,nowhere"], "Unknown runtime 'nowhere'"),
        (["--platform", ","], "It must be names separated by commas. Got none."),
        (["--family", "resnets"], "Unknown family 'resnets'"),
        (["--family", "vgg,mixed:0"], "a name and a number of networks >= 1, such as mixed:200. Got the number '0'"),
        (["--family", "mixed:many"], "Got the number 'many'"),
        (["--family", f"mixed:{'9' * 5000}"], "a name and a number of networks >= 1"),
        (["--family", "mixes:3"], "Unknown family 'mixes'"),
        (["none.onnx"], "Cannot read the ONNX file 'none.onnx': No such file or directory."),
    ],
)
def test_what_cannot_be_measured_is_said_before_anything_is(fails, options, said, tmp_path):
    assert said in fails("dataset", "measure", *options)
    assert not (tmp_path / "networks.zip").exists()


def test_data_set_that_exists_stays(fails, tmp_path):
    (tmp_path / "networks.zip").touch()
    assert "'networks.zip' exists" in fails("dataset", "measure", "--family", "vgg")


def test_networks_of_each_family_are_spread_evenly(tmp_path, monkeypatch):
    monkeypatch.setenv("NNI_LATENCY_CACHE", str(tmp_path / "cache"))
    wanted = _NetworkOptions(("squeezenet:4", "nasbench201"), per_family=2, seed=3, batch_sizes=(1,))
    counts = _counts(wanted, ())
    assert {family.name: count for family, count in counts.items()} == {"squeezenet": 4, "nasbench201": 2}
    made = [(item.family, item.seed) for item in _members(counts, wanted)]
    small, other = "nasbench201", "squeezenet"
    assert made == [(other, 3), (small, 3), (other, 4), (other, 5), (small, 4), (other, 6)]


def test_a_family_that_is_named_is_not_one_of_all():
    orders = [("all:2", "mixed:5", "vgg"), ("mixed:5", "vgg", "all:2")]
    first, last = (
        _counts(_NetworkOptions(families, per_family=3, seed=0, batch_sizes=(1,)), ()) for families in orders
    )
    assert first == last
    counts = {family.name: count for family, count in first.items()}
    assert (counts.pop("mixed"), counts.pop("vgg"), set(counts.values())) == (5, 3, {2})


@pytest.mark.slow
def test_networks_are_measured_and_named_where_they_cannot_run(run, model, tmp_path, monkeypatch):
    monkeypatch.setenv("NNI_LATENCY_CACHE", str(tmp_path / "cache"))
    words = [
        "dataset",
        "measure",
        model,
        "--family",
        "nasbench201",
        "--per-family",
        1,
        "--platform",
        "torch,torchscript",
    ]
    words += ["--budget", "10min", "--protocol", "half_width=0.5", "--format", "json"]
    words += ["--database", tmp_path / "mine.sqlite"]
    done = run(*words)
    rows = json.loads(done.stdout)["platforms"]
    assert [(row["networks"], row["failed"]) for row in rows] == [(1, 1), (1, 1)]
    assert "cannot run small: the runtime 'torch' runs modules of torch" in done.stderr
    networks = load_networks(tmp_path / "networks.zip")
    assert {entry.name for entry in networks} == {"nasbench201-00000-b1"}
    assert networks[0].parts
    assert not networks[1].parts
    again = run(*words, "--overwrite")
    assert again.stderr.count("nothing was measured") == 2
    assert json.loads(again.stdout) == json.loads(done.stdout)


def test_a_data_set_goes_to_nnlqp_and_back(run, fails, model, tmp_path):
    (tmp_path / "lines" / "onnx").mkdir(parents=True)
    model.rename(tmp_path / "lines" / "onnx" / "small.onnx")
    (tmp_path / "lines" / "gt.txt").write_text("7 onnx/small.onnx 1 2.5 small phone train\n")
    assert "1 latency on 1 platform" in run("dataset", "merge", "lines/gt.txt", "--out", "networks.zip").stdout
    words = ["dataset", "merge", "networks.zip", "--out", "back/gt.txt"]
    run(*words)
    line = "7 onnx/7-b1.onnx 1 2.5 small phone.unknown.fp32.t1 train\n"
    assert (tmp_path / "back" / "gt.txt").read_text() == line
    assert "'back/gt.txt' exists" in fails(*words)
    (tmp_path / "back" / "gt.txt").unlink()
    assert "'back/onnx/7-b1.onnx' exists" in fails(*words)
    assert not (tmp_path / "back" / "gt.txt").exists()
    run(*words, "--overwrite")
    assert (tmp_path / "back" / "gt.txt").read_text() == line
    assert "give --out FOLDER/gt.txt" in fails(*words[:-1], "back/lines.txt")
    assert "Convert it alone" in fails("dataset", "merge", "networks.zip", "back/gt.txt", "--out", "both.zip")
    (tmp_path / "lines" / "gt.txt").write_text("7 onnx/small.onnx\n7 onnx/none.onnx 1 2.5 small phone\n")
    said = fails("dataset", "merge", "lines/gt.txt", "--out", "other.zip")
    assert "line 1: it must have six or seven words" in said
    assert "line 2: there is no file 'onnx/none.onnx'" in said
    assert not (tmp_path / "other.zip").exists()


def test_data_sets_are_merged(run, fails, tmp_path):
    for name in ("one", "two"):
        save_nodes(tmp_path / f"{name}.zip", {Platform(name, "onnxruntime"): True})
    said = run("dataset", "merge", "one.zip", "two.zip", "--out", "both.zip").stdout
    assert said == "Wrote both.zip: 16 latencies on 2 platforms\n"
    assert len(load_networks(tmp_path / "both.zip")) == 16
    run("dataset", "merge", "one.zip", "two.zip", "both.zip", "--conflict", "mean", "--out", "mean.zip")
    assert len(load_networks(tmp_path / "mean.zip")) == 16
    assert "share 8 networks and no anchor. Measure more" in fails(
        "dataset", "merge", "one.zip", "both.zip", "--align-speed", "--out", "c.zip"
    )
    (tmp_path / "table.json").write_text("{}")
    assert "monday.zip" in fails("dataset", "merge", "monday.zip", "one.zip", "--align-speed", "--out", "c.zip")
    assert "is not a data set" in fails("dataset", "merge", "one.zip", "table.json", "--out", "c.zip")
    assert not (tmp_path / "c.zip").exists()
