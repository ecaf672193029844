# SPDX-License-Identifier: Apache-2.0
"""The report of a GPU, on machines without one."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

_SCRIPT = Path(__file__).parents[1] / "examples" / "gpu_report.py"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU here")
def test_without_a_gpu_it_says_so_and_succeeds(tmp_path):
    done = CliRunner().invoke(runpy.run_path(str(_SCRIPT))["main"], ["--out", str(tmp_path / "report")])
    assert (done.exit_code, done.output.count("\n")) == (0, 1)
    assert "There is no GPU here" in done.output
    assert not (tmp_path / "report").exists()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_step_is_in_the_report(tmp_path, monkeypatch):
    """On the CPU, with the smallest space and short budgets; the tests marked gpu are skipped there."""
    monkeypatch.chdir(_SCRIPT.parents[1])
    arguments = ["--out", str(tmp_path), "--device", "cpu", "--tiny"]
    done = CliRunner().invoke(runpy.run_path(str(_SCRIPT))["main"], arguments)
    assert done.exit_code == 0, done.output
    steps = json.loads((tmp_path / "report.json").read_text())["steps"]
    assert set(steps) == {
        "tests marked gpu",
        "FBNet at batch 1",
        "FBNet at batch 2",
        "energy of FBNet at batch 2",
        "operators at batch 2",
        "meters",
        "micro-benchmarks",
        "memory",
    }
    assert "skipped" in steps["tests marked gpu"]["summary"]
    assert steps["FBNet at batch 2"]["scores"]["n"] >= 12
    assert steps["energy of FBNet at batch 2"]["metric"] == "energy"
    assert steps["meters"]["meters"][0]["busy"] == pytest.approx(30.0, rel=0.05)
    assert steps["operators at batch 2"]["models"][0]["energy_attributed"] > 0
    assert steps["micro-benchmarks"]["points"] > 10
    assert all(row["activations_counted"] == row["activations_allocated"] for row in steps["memory"]["networks"])
    page = (tmp_path / "report.md").read_text()
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == list(steps)
    assert all((tmp_path / step["picture"]).is_file() for step in steps.values() if "picture" in step)


def test_a_step_that_fails_is_reported_and_the_others_go_on(tmp_path):
    script = runpy.run_path(str(_SCRIPT))
    report = script["Report"]("cpu", {**script["TINY"], "space": {"input_size": -1}}, tmp_path)
    report.run("broken", report.memory)
    report.run("command", lambda: {"summary": report.command("json.tool", str(tmp_path / "nothing.json"))})
    report.run("whole", lambda: {"summary": "fine"})
    report.write()
    assert report.failed == ["broken", "command"]
    page = (tmp_path / "report.md").read_text()
    assert "The 'input_size' of FBNetSpace must be" in page
    assert "'json.tool" in page
    assert re.search(r"ended with code [12]", page)
    assert "summary: fine" in page
