# SPDX-License-Identifier: Apache-2.0
"""Benches on a device: the contract suites, campaigns that go on when the line is cut, and what is left there."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest
from numpy_runtime import LEAST, conv, conv_plan, device_runtime
from torch import nn

from nni_latency.devices import DeviceBenches, DeviceRuntime, PythonConnection
from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.loading import load_meter, load_runtime
from nni_latency.measurement import (
    Campaign,
    CampaignHeader,
    CandidateError,
    LocalBenches,
    MemoryStore,
    NetworkSchedule,
    Protocol,
    Subject,
    _campaign,
    cold_chain,
    measure_network,
)
from nni_latency.measurement.runtimes import TorchEager
from nni_latency.tables import build_table
from nni_latency.testing import check_bench, check_runtime

_SHAPE = (1, 4, 8, 8)

_QUICK = Protocol(n_run=3, rounds=3, processes=1, half_width=0.0, time_budget=600.0, timeout=60.0)


@pytest.fixture(scope="module")
def runtime():
    made = device_runtime()
    yield made
    made.close()


def _subject(key, channels=4, size=3, kind="candidate"):
    return Subject(key, partial(conv, channels, size), _SHAPE, kind)


def _refused():
    raise ValueError("it cannot be built")


def test_runtime_keeps_the_contract(runtime):
    check_runtime(runtime)


def test_bench_keeps_the_contract(runtime):
    broken = Subject("broken", _refused, _SHAPE, "candidate")
    check_bench(runtime.benches().open(_QUICK), [_subject("a"), _subject("b", 8)], broken)


def test_parts_are_those_that_the_device_reports(runtime):
    with runtime.benches().open(_QUICK) as bench:
        for subject in (_subject("a"), _subject("b", 8)):
            bench.admit(subject)
        visit = bench.visit(["a", "b"])
    assert len(visit.parts) == len(visit.whole) == runtime.least_runs
    # Each part is three nodes; what is off is what a profile is found to cost.
    shares = np.median(np.array(visit.parts), axis=0)
    assert np.all(shares > LEAST), shares
    assert abs(shares.sum() / np.median(visit.whole) - 1) < 0.6


def test_whole_network_takes_what_its_nodes_take(runtime):
    with runtime.benches().open(_QUICK) as bench:
        bench.admit(_subject("a", kind="network"))
        visit = bench.visit(["a"])
    assert visit.parts == []
    assert min(visit.whole) >= 3 * LEAST


def test_operator_alone_runs_behind_a_flush(runtime):
    chain = cold_chain("relu", nn.ReLU, [_SHAPE])
    with runtime.benches().open(_QUICK) as bench:
        for subject in chain:
            bench.admit(subject)
        visit = bench.visit([subject.key for subject in chain])
    assert all(len(run) == 3 and run[2] >= run[1] for run in visit.parts)


def test_kernels_run_side_by_side(runtime):
    with runtime.benches().open(_QUICK) as bench:
        for key, channels in (("k", 4), ("l", 8)):
            bench.admit(_subject(key, channels, kind="kernel"))
        visit = bench.visit(["k", "l"])
        bench.begin("k")
        bench.step("k")
        bench.step("l")
    assert all(len(run) == 2 and min(run) > 0 for run in visit.parts)
    assert len(visit.parts) >= runtime.least_runs


def test_the_first_network_that_fails_ends_a_round(runtime):
    with runtime.benches().open(_QUICK) as bench:
        bench.admit(_subject("a", kind="network"))
        visits = bench.visit_all([(["a"], True), (["a"], True)])
        assert next(visits).duration > 0
        visits.close()
        with pytest.raises(CandidateError, match="RuntimeError: the test refuses to run this"):
            bench.admit(_subject("bad", 63))
        assert len(bench.visit(["a"]).whole) == 5


@pytest.mark.parametrize(
    ("channels", "reason"),
    [
        (61, r"its process crashed (SIGSEGV)"),
        (62, "it did not end within 1 s"),
        (63, "RuntimeError: the test refuses to run this"),
        (66, "ValueError: the test refuses to load this"),
        (68, "its process answered something else than a frame"),
    ],
)
def test_subject_that_fails_on_the_device_concerns_no_other(channels, reason, runtime):
    # Only the one that hangs is waited for.
    timeout = 1.0 if "end within" in reason else 60.0
    protocol = Protocol(n_run=2, rounds=2, processes=1, half_width=0.0, timeout=timeout)
    subjects = [_subject("good", kind="network"), _subject("bad", channels, kind="network")]
    with MemoryStore().campaign(CampaignHeader("networks", {}, runtime.platform, protocol)) as log:
        Campaign(NetworkSchedule(subjects, protocol), runtime.benches(), log).run()
        assert {failure.subject: failure.reason for failure in log.failures} == {"bad": reason}
        assert len(log.records) >= 2


def test_steps_of_a_long_round_are_reported(runtime, monkeypatch):
    monkeypatch.setattr(_campaign, "_STEP", 0.0)
    steps, rounds = [], []
    subjects = [_subject("a", kind="network"), _subject("b", 8, kind="network")]
    with MemoryStore().campaign(CampaignHeader("networks", {}, runtime.platform, _QUICK)) as log:
        schedule, report = NetworkSchedule(subjects, _QUICK), rounds.append
        Campaign(schedule, runtime.benches(), log, on_progress=report, on_step=lambda *step: steps.append(step)).run()
    assert [what for _, what in steps[:6]] == [
        *("loaded 1 of 2", "loaded 2 of 2"),
        *("prepared 1 of 2", "prepared 2 of 2"),
        *("1 of 2 networks", "2 of 2 networks"),
    ]
    # The first round is a warm-up, and the last one counts.
    assert [state.spent for state, _ in steps[:6]] == [0.0] * 6
    assert steps[-1][0].spent == rounds[-1].spent > steps[-2][0].spent


def test_steps_are_reported_once_a_second(runtime):
    steps = []
    subjects = [_subject(str(channels), channels, kind="network") for channels in range(4, 20)]
    begin = time.monotonic()
    with MemoryStore().campaign(CampaignHeader("networks", {}, runtime.platform, _QUICK)) as log:
        Campaign(
            NetworkSchedule(subjects, _QUICK), runtime.benches(), log, on_step=lambda *step: steps.append(step)
        ).run()
    assert len(steps) <= time.monotonic() - begin


def test_conditions_are_those_of_the_device(runtime):
    assert isinstance(runtime.benches(), DeviceBenches)
    assert runtime.benches().conditions().processors >= 1


def test_meters_are_refused(runtime):
    with pytest.raises(MeasurementError, match="constant:15 reads this machine"):
        runtime.benches([load_meter("constant:15")])


def test_benches_of_this_machine_are_refused(runtime):
    expected = "LocalBenches measures on this machine, and the runtime 'numpy' runs on another device. Take runtime"
    with pytest.raises(InvalidValueError, match=expected):
        LocalBenches(runtime)


def test_network_is_measured(runtime):
    found = measure_network(conv().eval(), _SHAPE, runtime, _QUICK)
    assert min(found.samples) >= 3 * LEAST


def test_runtime_without_an_adapter_is_refused():
    connection = PythonConnection(sys.executable)
    with pytest.raises(InvalidValueError, match="The runtime 'torch' runs on this machine alone"):
        DeviceRuntime(lambda _place: TorchEager(), connection)
    with pytest.raises(InvalidValueError, match="it has no adapter for a device such as 'python:"):
        load_runtime("torch", f"python:{sys.executable}")


class _Cut(PythonConnection):
    """A line that can be cut."""

    def __init__(self):
        super().__init__(sys.executable)
        self.processes = []

    def start(self, command):
        """Start a program, and remember it."""
        self.processes.append(super().start(command))
        return self.processes[-1]

    def cut(self):
        """Kill what runs."""
        for process in self.processes[-1:]:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)


class _Cutter:
    """Cuts a line at random moments, each time after a round was measured since the cut before."""

    def __init__(self, connection, most):
        self.connection, self.left, self.generator = connection, most, random.Random(0)
        self.timer = threading.Timer(0.0, lambda: None)

    def plan(self, *_state):
        """Plan the next cut, unless the one before is still to come."""
        if self.left and not self.timer.is_alive():
            self.left -= 1
            self.timer = threading.Timer(self.generator.uniform(0.0, 0.1), self.connection.cut)
            self.timer.start()


@pytest.mark.parametrize("cuts", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_campaign_goes_on_when_the_line_is_cut(tmp_path, monkeypatch, cuts):
    folder = tmp_path / "device"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    connection, waits, rounds = _Cut(), [], 15 * cuts
    runtime, cutter = device_runtime(connection, waits.append), _Cutter(connection, cuts)
    protocol = Protocol(n_run=3, rounds=rounds, processes=2, half_width=0.0, time_budget=3600.0, timeout=60.0)
    where = {"store": tmp_path / "db.sqlite", "on_start": cutter.plan, "on_progress": cutter.plan}
    table = build_table(conv_plan(_SHAPE), runtime, protocol, tmp_path / "t.json", **where)
    cutter.timer.join()
    runtime.close()
    assert cutter.left == 0
    assert len(connection.processes) >= cuts
    assert table.coverage == 1
    assert table.rounds == rounds
    limit = time.monotonic() + 60
    while list(folder.iterdir()) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not list(folder.iterdir())
    assert all(process.poll() is not None for process in connection.processes)


def test_steps_go_on_when_the_line_is_cut_between_them():
    connection = _Cut()
    runtime = device_runtime(connection)
    with runtime.benches().open(_QUICK) as bench:
        for key, channels in (("a", 4), ("b", 8), ("c", 12)):
            bench.admit(_subject(key, channels))
        bench.begin("a")
        for key in "abc":
            bench.step(key)
            connection.cut()
    runtime.close()
    assert len(connection.processes) >= 3


def test_campaign_resumes_after_a_device_that_did_not_come_back(tmp_path):
    connection, plan = _Cut(), conv_plan(_SHAPE)
    runtime = device_runtime(connection)
    runtime.place.session.patience = 0.0
    protocol = Protocol(n_run=3, rounds=8, processes=1, half_width=0.0, time_budget=600.0, timeout=60.0)
    where = {"store": tmp_path / "db.sqlite"}

    def fail(state):
        if state.rounds == 3:
            connection.start = lambda _command: PythonConnection.start(connection, ["false"])
            connection.cut()

    with pytest.raises(MeasurementError, match=r"did not come back within .*Run the same command again to resume\.$"):
        build_table(plan, runtime, protocol, tmp_path / "t.json", on_progress=fail, **where)
    begun = []
    again = device_runtime()
    table = build_table(plan, again, protocol, tmp_path / "t.json", on_start=begun.append, **where)
    again.close()
    assert begun == [3]
    assert table.rounds == 8


def test_everything_is_said_in_the_devices_words(tmp_path):
    runtime = device_runtime()
    table = build_table(conv_plan(_SHAPE), runtime, _QUICK, tmp_path / "t.json", store="memory")
    assert table.platform.facts["runtime.version"] == "1.0"
    assert table.platform == runtime.platform
    # One node more takes longer by what it takes.
    assert all(0 < entry.value < 1 for layer in table.layers for entry in layer.entries.values())
    runtime.close()
