# SPDX-License-Identifier: Apache-2.0
"""The example of networks that no predictor learns from: it writes files that are read and run."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from click.testing import CliRunner

from nni_latency.graphs import block_families, families
from nni_latency.operators import read_onnx

_EXAMPLE = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "unseen_sources.py"))


def _run(*arguments: object) -> str:
    found = CliRunner().invoke(_EXAMPLE["main"], [str(item) for item in arguments])
    assert found.exit_code == 0, found.output
    return found.output


def test_networks_are_written_once_and_read(tmp_path: Path) -> None:
    words = ("--out", tmp_path, "--only", "lenet", "--only", "ds_cnn")
    assert [line.partition(":")[0] for line in _run(*words).splitlines()] == ["lenet", "ds_cnn"]
    assert _run(*words) == ""
    for name in ("lenet", "ds_cnn"):
        assert len(read_onnx(tmp_path / f"{name}.onnx").operators) > 5


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    found = CliRunner().invoke(_EXAMPLE["main"], ["--out", str(tmp_path), "--only", "lenett"])
    assert found.exit_code == 2
    assert "lenett" in found.output


def test_no_family_has_their_names() -> None:
    names = set(_EXAMPLE["architectures"]())
    assert len(names) == 48
    assert not names & {*families(), *block_families()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["siamese", "dlrm", "tab_transformer", "bert_mini", "espcn"])
def test_onnx_runtime_runs_them(name: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    _run("--out", tmp_path, "--only", name)
    runtime.InferenceSession(tmp_path / f"{name}.onnx", providers=["CPUExecutionProvider"])
    assert read_onnx(tmp_path / f"{name}.onnx").operators
