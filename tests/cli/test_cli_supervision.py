# SPDX-License-Identifier: Apache-2.0
"""Networks of the user cannot take a command with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nni_latency.cli import _main, _supervision

NETWORKS = Path(__file__).with_name("hostile_networks.py")
FIT = Path(__file__).parents[1] / "tables" / "data" / "acts_1_refined.json"

#: What ends a process, and what is said of it.
ENDS = {
    "Exits": "The network's own code ended the process, by sys.exit(0).",
    "Quits": "ended the process with exit code 0.",
    "Crashes": "crashed the process (SIGSEGV).",
    "Hangs": "was still running after 2 s and was stopped. Allow more with --timeout.",
    "Swallows": "allocate",
}

_COMMANDS = {
    "predict": ["predict", "{0}:{1}", "--estimator", f"acts:{FIT}", "--input", "3,8,8"],
    "profile": ["profile", "{0}:{1}", "--input", "3,8,8"],
}


def _run(command, name):
    words = [word.format(NETWORKS, name) for word in _COMMANDS[command]]
    limit = "2s" if name == "Hangs" else "60s"
    return subprocess.run(
        [sys.executable, "-m", "nni_latency", *words, "--timeout", limit], capture_output=True, text=True, check=False
    )


def _check(done, expected):
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    *_, last = done.stderr.splitlines()
    assert last.startswith("Error: ")
    assert expected in last


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("command", _COMMANDS)
def test_every_command_survives_every_network(command, name):
    _check(_run(command, name), ENDS[name])


@pytest.mark.slow
def test_search_survives_a_space():
    space = f"{Path(__file__).with_name('tiny.py')}:Crashing"
    words = ["search", "--space", space, "--latency-estimator", f"acts:{FIT}", "--target", "1000ms"]
    done = subprocess.run([sys.executable, "-m", "nni_latency", *words], capture_output=True, text=True, check=False)
    _check(done, "crashed the process (SIGSEGV).")


def test_files_of_the_working_directory_hide_no_module(tmp_path):
    (tmp_path / "nni_latency").mkdir()
    (tmp_path / "statistics.py").write_text("raise SystemExit('the wrong module')\n")
    program = [sys.executable, "-P", "-m", "nni_latency"]
    done = subprocess.run([*program, "predict", "none.onnx"], cwd=tmp_path, capture_output=True, text=True, check=False)
    _check(done, "none.onnx")


@pytest.mark.slow
def test_interrupt_is_130_with_a_sentence():
    done = _run("predict", "Interrupts")
    assert done.returncode == 130
    assert done.stderr.splitlines()[-1] == "Interrupted."


@pytest.fixture
def supervised(monkeypatch, capfd, tmp_path):
    """Supervise a light program in place of the command line; return its exit code and what was said."""

    def supervise(program):
        file = tmp_path / "program.py"
        begin = "from nni_latency.cli._supervision import begin_supervised, end_supervised, user_code"
        file.write_text(f"{begin}\nimport os, signal, sys, time\nbegin_supervised()\n{program}\n")
        monkeypatch.setattr(_supervision, "_PROGRAM", [sys.executable, str(file)])
        code = _supervision.supervise([])
        return code, capfd.readouterr().err

    return supervise


@pytest.mark.parametrize("code", [0, 1, 2, 7])
def test_exit_code_of_a_command_that_ends_by_itself_is_passed_on(supervised, code):
    assert supervised(f"end_supervised(); sys.exit({code})") == (code, "")


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        ("with user_code('Net', 9): os._exit(0)", "Error: Net ended the process with exit code 0.\n"),
        ("with user_code('Net', 9): os.abort()", "Error: Net crashed the process (SIGABRT).\n"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "most likely because the memory of this machine was used up.\n"),
        ("with user_code('Net', 0.2): time.sleep(60)", "Error: Net was still running after 0.2 s and was stopped."),
    ],
)
def test_process_that_ends_otherwise_is_explained(supervised, program, sentence):
    code, said = supervised(program)
    assert code == 2
    assert sentence in said


def test_time_limit_ends_with_the_user_code(supervised):
    code, _ = supervised("with user_code('Net', 1): pass\ntime.sleep(1.5); end_supervised(); sys.exit(3)")
    assert code == 3


def test_variable_is_not_passed_on(supervised):
    program = f"assert {_supervision._PIPE!r} not in os.environ; end_supervised(); sys.exit(5)"
    assert supervised(program)[0] == 5


def test_only_commands_that_run_networks_are_watched(monkeypatch):
    monkeypatch.delenv(_supervision._PIPE, raising=False)
    assert _supervision.is_needed(["predict", "net.py:Net"])
    assert not _supervision.is_needed(["show", "table.json"])
    assert not _supervision.is_needed(["search", "--help"])
    assert not _supervision.is_needed(["no-such-command"])
    monkeypatch.setenv(_supervision._PIPE, "5")
    assert not _supervision.is_needed(["predict", "net.py:Net"])


def test_a_command_that_is_watched_goes_by_its_own_name():
    command = [sys.executable, "-m", "nni_latency", "profile", "--no-such-option"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: nni-latency profile ")


def test_interrupt_before_a_command_begins_is_130_with_a_sentence(monkeypatch, capsys):
    def interrupted(_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(_main, "is_needed", interrupted)
    with pytest.raises(SystemExit) as ended:
        _main.run()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "\nInterrupted.\n"
