# SPDX-License-Identifier: Apache-2.0
"""The line to an agent: what is sent, what fails there, and what is said of it."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from numpy_runtime import device_runtime, script

from nni_latency.devices import DeviceError, PythonConnection, Session, _agent, _waiting
from nni_latency.devices._place import find_holes
from nni_latency.measurement import CandidateError, WorkerDiedError

_ADAPTER = Path(__file__).parents[1] / "numpy_adapter.py"


def _begun_with(text):
    """Return a script in which a Python runs something before the agent."""
    return f"exec PYTHON -c 'import sys; {text}; sys.argv = sys.argv[3:]; exec(sys.argv[0])' \"$@\""


def _session_of(python=sys.executable, **options):
    return Session(PythonConnection(str(python)), _ADAPTER, {"threads": 1}, **options)


@pytest.fixture
def session(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    made = _session_of()
    yield made
    made.close()
    # What was killed is cleared away by its janitor.
    limit = time.monotonic() + 60
    while list(tmp_path.glob("nni_latency*")) and time.monotonic() < limit:
        time.sleep(0.02)
    assert not list(tmp_path.glob("nni_latency*"))


def _network(session, mischief="", weights=b""):
    described = b'{"nodes": [["a", 1e-5]], "outputs": [[2, 3]], "mischief": "%s"}' % mischief.encode()
    return session.keep(_agent.shrink(weights + described))


def _run(session, name, **fields):
    asked = {"network": name, "inputs": [], "runs": 1, "values": True, **fields}
    return session.ask("run", needs=[name], **asked)


def test_network_is_sent_once_and_run(session):
    name = _network(session, weights=np.random.default_rng(0).bytes(100_000))
    answer = _run(session, name)
    assert answer.values["results"] == [{"dtype": "float32", "shape": [2, 3]}]
    assert answer.blobs == [bytes(24)]
    line = session._line
    before = line.sent
    assert before > 100_000
    _run(session, name)
    session.renew()
    _run(session, name)
    assert line.sent - before < 2000


@pytest.mark.parametrize(
    ("mischief", "kind", "reason"),
    [
        ("crash", WorkerDiedError, r"its process crashed \(SIGSEGV\)"),
        (
            "abort",
            WorkerDiedError,
            r"its process crashed \(SIGABRT\); the last line that it printed is "
            r"\"conv\.cpp:3: Assertion `size > 0' failed\.!{160}\"",
        ),
        ("exit", WorkerDiedError, "its process ended with code 7"),
        ("fail", CandidateError, "RuntimeError: the test refuses to run this"),
        ("refuse", CandidateError, "ValueError: the test refuses to load this"),
        ("hang", CandidateError, "it did not end within 0.5 s"),
    ],
)
def test_network_that_fails_concerns_no_other(session, mischief, kind, reason):
    good, bad = _network(session), _network(session, mischief)
    _run(session, good)
    with pytest.raises(kind, match=f"^{reason}$"):
        # A process that crashes takes a moment, too, where others are busy.
        _run(session, bad, timeout=0.5 if mischief == "hang" else 60.0)
    assert _run(session, good).blobs


def test_runtime_that_prints_disturbs_nothing(session):
    assert _run(session, _network(session, "print")).blobs == [bytes(24)]


def test_last_line_is_that_of_the_network_that_crashed(session):
    _run(session, _network(session, "print"))
    time.sleep(0.1)
    with pytest.raises(WorkerDiedError, match=r"^its process crashed \(SIGSEGV\)$"):
        _run(session, _network(session, "crash"))


def test_runtime_that_prints_much_is_not_held_up(session):
    name = _network(session, "chatter")
    assert _run(session, name).blobs == [bytes(24)]
    # While nothing is asked, too.
    time.sleep(0.5)
    assert _run(session, name).blobs == [bytes(24)]


def test_several_are_asked_at_once_and_the_first_failure_ends_them(session):
    good, bad = _network(session), _network(session, "fail")
    names = [good, good, bad, good]
    pieces = [
        {"do": "run", "network": name, "inputs": [], "runs": 1, "values": False, "needs": [name]} for name in names
    ]
    answers = session.ask_all(pieces, 60.0)
    next(answers)
    next(answers)
    with pytest.raises(CandidateError):
        next(answers)
    assert _run(session, good).blobs


def test_answers_that_nobody_waits_for_are_passed_over(session):
    name = _network(session)
    piece = {"do": "run", "network": name, "inputs": [], "runs": 20, "values": False, "needs": [name]}
    answers = session.ask_all([piece] * 50, 60.0)
    next(answers)
    answers.close()
    assert _run(session, name).blobs == [bytes(24)]


def test_content_that_is_let_go_of_is_removed_there(session, tmp_path):
    name = _network(session)
    _run(session, name)
    assert list(tmp_path.glob(f"*/content.{name}"))
    session.release(name)
    session.conditions()
    assert not list(tmp_path.glob(f"*/content.{name}"))
    again = _network(session)
    assert again == name
    assert _run(session, again).blobs


def test_agent_that_was_lost_is_started_again(session):
    name = _network(session)
    _run(session, name)
    os.kill(session._line._process.pid, signal.SIGKILL)
    assert _run(session, name).blobs


def test_device_that_does_not_come_back_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(_waiting, "_FIRST_PAUSE", 0.05)
    program, waits = script(tmp_path, 'exec PYTHON "$@"'), []
    session = _session_of(program, on_wait=waits.append, patience=3.0)
    name = _network(session)
    _run(session, name)
    script(tmp_path, "echo 'no route to host' >&2; exit 9")
    os.kill(session._line._process.pid, signal.SIGKILL)
    with pytest.raises(
        DeviceError, match=r"^The device did not come back within 3 s .*no route to host.* to resume\.$"
    ):
        _run(session, name)
    assert all(sentence.startswith("Waiting for the device: ") for sentence in waits)
    assert all(sentence.count(f"python:{program}") == 1 for sentence in waits)
    assert waits
    assert len(set(waits)) == len(waits)


def test_greeting_before_the_first_frame_is_skipped(tmp_path):
    session = _session_of(script(tmp_path, 'echo "Welcome to Debian"; echo; exec PYTHON "$@"'))
    assert _run(session, _network(session)).blobs
    session.close()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("yes hello", "does not answer as the agent does: what was printed begins with 'hello'"),
        ("exit 127", "has no Python"),
        ("echo 'it is broken' >&2; exit 1", r"cannot run the agent \(it is broken\)"),
        (
            _begun_with('sys.version_info = (3, 6); sys.version = "3.6.9 (old)"'),
            "nni_latency needs Python 3.8 or later, and this is 3.6.9",
        ),
    ],
)
def test_what_is_no_python_is_named_in_a_sentence(tmp_path, text, reason):
    session = _session_of(script(tmp_path, text))
    with pytest.raises(DeviceError, match=reason):
        session.open()
    assert session._line is None


@pytest.mark.parametrize("module", ["numpy", "surely_absent"])
def test_what_a_python_lacks_is_named_with_how_to_get_it(tmp_path, module):
    adapter = tmp_path / "_adapter.py"
    adapter.write_text("import json\nimport surely_absent\n")
    python = sys.executable
    if module == "numpy":
        # Without the packages of this environment.
        python = script(tmp_path, 'exec PYTHON -S "$@"')
    session = Session(PythonConnection(str(python)), adapter, {"threads": 1})
    with pytest.raises(DeviceError, match=rf"cannot load '{module}' .* -m pip install numpy surely-absent$"):
        session.open()


def test_full_disk_is_named(tmp_path, monkeypatch):
    folder = tmp_path / "device"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    # Blocks of 512 bytes.
    session = _session_of(script(tmp_path, 'ulimit -f 64; exec PYTHON "$@"'))
    small, large = _network(session), _network(session, weights=np.random.default_rng(0).bytes(100_000))
    _run(session, small)
    with pytest.raises(DeviceError, match=r"has no space left in .*nni_latency\.agent"):
        _run(session, large)
    # What was there before still runs.
    _run(session, small)
    session.close()
    assert not list(folder.iterdir())


def test_clock_of_the_day_may_step(tmp_path):
    jumps = "import random, time; time.time = lambda: random.uniform(-1e9, 1e9)"
    session = _session_of(script(tmp_path, _begun_with(jumps)))
    name = _network(session)
    times = session.ask("times", needs=[name], network=name, inputs=[], runs=5, settling=0).values["times"]
    assert all(1e-5 <= seconds < 60 for seconds in times)
    session.close()


def test_one_agent_measures_at_a_time(monkeypatch):
    monkeypatch.setattr(_waiting, "_PAUSE", 0.05)
    waits = []
    first, second = _session_of(), _session_of(on_wait=waits.append, patience=1.0)
    first.lock()
    with pytest.raises(DeviceError, match="Another process has measured on python:"):
        second.lock()
    assert waits == [f"Waiting for {second.connection.description}: another process measures there"]
    first.close()
    second.patience = 120.0
    second.lock()
    second.close()


def test_cores_can_be_chosen():
    core = sorted(os.sched_getaffinity(0))[0]
    session = Session(PythonConnection(sys.executable), _ADAPTER, {"threads": 1, "cores": [core]})
    session.open()
    assert session.opened["cores"] == str(core)
    session.close()


def test_weights_are_found_wherever_they_lie():
    generator = np.random.default_rng(0)
    weights = [generator.normal(0, spread, 5000).astype(np.float32) for spread in (1.0, 0.1)]
    data = b"head" + weights[1].tobytes() + b"middle" + weights[0].tobytes()
    absent = generator.normal(0, 1, 5000).astype(np.float32)
    holes = find_holes(data, [*weights, absent, weights[0]])
    assert [(at, length, seed) for at, length, seed, _ in holes] == [(4, 20000, 0), (20010, 20000, 1)]
    assert [round(scale, 1) for *_, scale in holes] == [0.1, 1.0]
    found = _agent.expand(_agent.shrink(data, holes))
    assert (len(found), found[:4], found[20004:20010]) == (len(data), b"head", b"middle")


def test_lost_again_and_again_while_it_runs_is_the_networks_fault(session, monkeypatch):
    name = _network(session, "hang")
    random.seed(0)
    asked = session._exchange

    def killed(pieces, timeout):
        os.kill(session._line._process.pid, signal.SIGKILL)
        return asked(pieces, timeout)

    session.open()
    monkeypatch.setattr(session, "_exchange", killed)
    with pytest.raises(WorkerDiedError, match="the device was lost 3 times while it ran"):
        _run(session, name)


def test_platform_is_that_of_the_device():
    runtime = device_runtime(threads=1)
    assert runtime.platform.id.endswith(".numpy.fp32.t1")
    assert runtime.platform.facts["runtime.version"] == "1.0"
    assert "torch" not in runtime.platform.facts
    assert set(runtime.speeds()) == {"peak_flops", "memory_bandwidth"}
    runtime.close()
