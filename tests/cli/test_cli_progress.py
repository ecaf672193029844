# SPDX-License-Identifier: Apache-2.0
"""What a command says while it works: that it loads, and how long its parts still take."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
from narrow import check_lines
from rich.console import Console

from nni_latency.cli import _console, main, progress, remarks
from nni_latency.cli._console import Part
from nni_latency.cli._measuring import Measuring, StoreOptions
from nni_latency.measurement import Progress
from nni_latency.measurement.runtimes import TorchEager
from nni_latency.tables import shipped_tables

#: Runs a command in a process that has none of the packages which take seconds to import.
_LIGHT = """
import sys
for name in ("torch", "nni", "pytorch_lightning", "sklearn", "scipy", "onnx"):
    sys.modules[name] = None
from nni_latency.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("command", [["validate"], ["search", "--target", "8ms", "--latency-estimator"]])
def test_commands_that_take_long_say_so_before_they_import_anything(command):
    table = next(iter(shipped_tables()))
    words = [sys.executable, "-c", _LIGHT, *command, table]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stderr.startswith("Loading PyTorch,")


def test_the_time_left_is_that_of_the_pace_so_far(monkeypatch):
    now = 100.0
    monkeypatch.setattr(_console.time, "monotonic", lambda: now)
    with progress(Console(file=io.StringIO())) as bar:
        part = Part(bar, "searching", is_next=False)
        (task,) = bar.tasks
        assert not task.visible
        # The search goes on from the middle.
        part(0.5)
        assert (task.visible, task.fields["left"]) == (True, "")
        now = 110.0
        part(0.6)
        assert task.completed == 0.6
        assert task.fields["left"] == "40 s left"
        now = 139.9
        part(1.0 - 1e-15)
        assert task.fields["left"] == "0 s left"
        now = 150.0
        part(1.0)
        assert task.fields["left"] == ""


def test_bar_moves_inside_of_a_first_round():
    with Measuring("a network", TorchEager(), StoreOptions(fresh=False, database=None)) as measuring:
        (task,) = measuring._bar.tasks
        measuring.on_step(Progress(0, 0.0, 0.0, 0), "loaded 3 of 9")
        assert (task.description, task.completed, task.fields["left"]) == ("warming up", 0.0, "loaded 3 of 9")
        measuring.on_step(Progress(0, 5.0, 0.5, 0), "1 of 9 networks")
        assert (task.completed, task.fields["left"]) == (0.5, "1 of 9 networks")
        measuring.on_progress(Progress(1, 7.6, 0.76, 0))
        assert (task.description, task.fields["left"]) == ("round 1", "at most 2 s left")
        measuring.on_step(Progress(1, 8.0, 0.8, 0), "1 of 9 networks")
        assert (task.completed, task.fields["left"]) == (0.8, "at most 2 s left")


@pytest.mark.skipif(sys.platform == "win32", reason="opens a terminal of POSIX")
def test_remarks_and_errors_are_folded_between_words_on_a_screen(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    remark = "Other processes had taken more than 65.3 % of the time. Stop them, which 'top' lists."
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as screen:
        monkeypatch.setattr(sys, "stderr", screen)
        remarks().print(remark, markup=False)
        with pytest.raises(SystemExit):
            main(["show", "a_name_that_no_file_and_no_table_that_ships_has.json"])
        screen.flush()
        shown = ""
        while "nni-latency show" not in " ".join(shown.split()):
            shown += os.read(ours, 100_000).decode().replace("\r\n", "\n")
    os.close(ours)
    check_lines(shown, 40)
    assert "65.3 %" in shown
    assert " ".join(shown.split()).startswith(f"{remark} Error: ")
