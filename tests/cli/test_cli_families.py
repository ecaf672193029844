# SPDX-License-Identifier: Apache-2.0
"""``families`` on the command line."""

from __future__ import annotations

import json

import pytest

from nni_latency.graphs import block_families, families
from nni_latency.operators import graph_key, read_onnx, trace


def test_families_are_listed(run):
    found = json.loads(run("dataset", "families", "--format", "json").stdout)["families"]
    assert [row["family"] for row in found] == [*families(), *block_families()]
    assert "MobileNetV2 (arXiv:1801.04381)" in run("dataset", "families").stdout


@pytest.fixture
def generate(run, tmp_path, monkeypatch):
    """Write two members of two families, with further options."""
    pytest.importorskip("onnx", reason="the package onnx is not installed")
    monkeypatch.chdir(tmp_path)
    words = ["dataset", "generate", "--family", "squeezenet", "--family", "bert", "--per-family", 2]

    def generate_with(*options, call=run):
        return call(*words, *options)

    return generate_with


@pytest.mark.slow
def test_members_are_written_and_are_those_of_their_seeds(generate, tmp_path):
    assert "Wrote 4 networks of 2 families to onnx" in generate("--batch-size", 2).stdout
    names = ["bert-00001.onnx", "bert-00002.onnx", "squeezenet-00001.onnx", "squeezenet-00002.onnx"]
    assert sorted(path.name for path in (tmp_path / "onnx").iterdir()) == names
    assert all(path.stat().st_size < 100_000 for path in (tmp_path / "onnx").iterdir())
    family = families()["squeezenet"]
    kinds = [item.op.kind for item in trace(family.network(2), family.example_inputs(2), by="graph").operators]
    traced = read_onnx(tmp_path / "onnx" / "squeezenet-00002.onnx")
    assert [item.op.kind for item in traced.operators].count("conv2d") == kinds.count("conv2d")
    assert traced.operators[0].op.input_shapes[0] == (2, 3, 224, 224)
    assert graph_key(traced) != graph_key(read_onnx(tmp_path / "onnx" / "squeezenet-00001.onnx"))


def test_folder_of_results_is_not_mixed_with_an_older_one(generate, fails, tmp_path):
    generate()
    (tmp_path / "onnx" / "mine.txt").touch()
    assert "is not empty" in generate("--seed", 5, call=fails)
    generate("--seed", 5, "--overwrite")
    assert sorted(path.name for path in (tmp_path / "onnx").iterdir()) == [
        *("bert-00005.onnx", "bert-00006.onnx", "mine.txt", "squeezenet-00005.onnx", "squeezenet-00006.onnx")
    ]


@pytest.mark.slow
def test_interrupted_run_goes_on(generate, tmp_path):
    generate()
    folder = tmp_path / "onnx"
    (folder / "unfinished").touch()
    (folder / "squeezenet-00002.onnx").unlink()
    before = (folder / "bert-00001.onnx").stat().st_mtime_ns
    generate()
    assert (folder / "squeezenet-00002.onnx").is_file()
    assert (folder / "bert-00001.onnx").stat().st_mtime_ns == before
    assert not (folder / "unfinished").exists()


def test_unknown_family_is_named(fails, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "Unknown family 'resnets'" in fails("dataset", "generate", "--family", "resnets")
    assert not (tmp_path / "onnx").exists()
