# SPDX-License-Identifier: Apache-2.0
"""``make demo-service``: a farm, its workers and a service in one command; Ctrl-C ends them and leaves nothing."""

from __future__ import annotations

import configparser
import importlib.util
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from farms import wait_until

_ROOT = Path(__file__).parents[2]

_RUNTIMES = ("onnxruntime", "openvino")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="workers are bound to processors"),
    pytest.mark.skipif(not all(map(importlib.util.find_spec, _RUNTIMES)), reason="a runtime is not installed"),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two workers need two processors"),
]


@pytest.fixture
def environment(tmp_path):
    """Return an environment with the plugins of both runtimes, and a mark that all processes of a test inherit."""
    folders = [str(tmp_path), str(_ROOT)]
    for name in _RUNTIMES:
        described = tmp_path / f"nni_latency_{name}-0.1.0.dist-info"
        described.mkdir()
        (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: nni_latency_{name}\nVersion: 0.1.0\n")
        plugin = _ROOT / "plugins" / f"nni_latency_{name}"
        setup = configparser.ConfigParser()
        setup.read(plugin / "setup.cfg", encoding="utf-8")
        points = setup["options.entry_points"]["nni_latency"]
        (described / "entry_points.txt").write_text(f"[nni_latency]{points}\n")
        folders.append(str(plugin))
    kept = {name: value for name, value in os.environ.items() if name != "NNI_LATENCY_PLUGINS"}
    return {**kept, "PYTHONPATH": os.pathsep.join(folders), "TMPDIR": str(tmp_path), "DEMO_MARK": uuid.uuid4().hex}


def _left(environment):
    """Return the commands of the processes that a demo has left."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if environment["DEMO_MARK"].encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


def _begin(environment, *words):
    command = [sys.executable, str(_ROOT / "examples" / "demo_service.py"), "--port", "0", "--budget", "5s", *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )


def test_the_demo_measures_on_the_farm_and_ctrl_c_ends_everything(environment, tmp_path):
    process = _begin(environment)
    said = []
    for line in process.stdout:
        said.append(line)
        if "Ctrl-C ends" in line:
            break
    # As a terminal does: the whole group hears it.
    os.killpg(process.pid, signal.SIGINT)
    rest, _ = process.communicate(timeout=180)
    text = "".join(said) + rest
    assert process.returncode == 0, text
    for runtime in _RUNTIMES:
        answers = [line for line in said if line.startswith("resnet18.onnx on ") and runtime in line]
        assert [line.split(", a ")[1].split(",")[0] for line in answers] == ["measurement", "record"]
    assert rest.splitlines()[-1] == "Everything has ended."
    assert "Traceback" not in text
    wait_until(lambda: not _left(environment))
    folders = [item.name for item in tmp_path.iterdir() if item.suffix != ".dist-info"]
    assert not [name for name in folders if name.startswith(("nni_latency", "nni-latency"))]


def test_ctrl_c_before_everything_runs_ends_everything(environment):
    process = _begin(environment)
    assert "The farm listens" in process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=180)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    wait_until(lambda: not _left(environment))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--runtimes", "nope"], "Error: The worker 1 did not start: Unknown runtime 'nope'."),
        (["--runtimes", "onnxruntime", "--port", "99999"], "Error: The service did not start: "),
        (["--runtimes", ",".join(["torch"] * 999)], "Error: 999 workers need as many processors, and"),
    ],
)
def test_what_does_not_start_is_one_sentence(environment, words, sentence):
    process = _begin(environment, *words)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 1, said
    assert said.splitlines()[-1].startswith(sentence)
    assert "Traceback" not in said
    wait_until(lambda: not _left(environment))
