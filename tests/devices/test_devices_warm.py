# SPDX-License-Identifier: Apache-2.0
"""Devices that are warm are waited for: what shows that they are, and campaigns on them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from functools import partial

import pytest
import torch
from adb_program import Adb
from numpy_runtime import conv, device_runtime, tool_runtime
from ssh_server import SSHD, running_ssh_server

from nni_latency.devices import (
    AdbConnection,
    PythonConnection,
    ShellFacts,
    SshConnection,
    _agent,
    _waiting,
)
from nni_latency.measurement import (
    SLOWED,
    Campaign,
    CampaignHeader,
    MemoryStore,
    NetworkSchedule,
    Protocol,
    Subject,
)
from nni_latency.operators import capture_operators
from nni_latency.tables import MeasurePlan, PlanCandidate, PlanLayer, SpaceReference, build_table

_SHAPE = (1, 4, 8, 8)

_QUICK = Protocol(n_run=2, rounds=3, processes=1, half_width=0.0, time_budget=600.0, timeout=60.0)

#: As Android 12 prints it, shortened.
_DUMPSYS = """IsStatusOverride: false
ThermalEventListeners:
\tcallbacks: 1
Thermal Status: {status}
Cached temperatures:
\tTemperature{{mValue=99.0, mType=0, mName=cpu7, mStatus=0}}
HAL Ready: true
HAL connection:
\tThermalHAL 2.0 connected: yes
Current temperatures from HAL:
\tTemperature{{mValue=54.6, mType=0, mName=cpu0, mStatus=0}}
\tTemperature{{mValue=71.3, mType=0, mName=cpu7, mStatus=0}}
\tTemperature{{mValue=90.0, mType=1, mName=gpu0, mStatus=0}}
Current cooling devices from HAL:
\tCoolingDevice{{mValue=3, mType=1, mName=battery}}
\tCoolingDevice{{mValue={state}, mType=2, mName=thermal-cpufreq-0}}
\tCoolingDevice{{mValue=2, mType=3, mName=thermal-devfreq-0}}
"""


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(_waiting, "_COOLING_PAUSE", 0.05)
    monkeypatch.setattr(_waiting, "_FRESH", 0.0)


class _Thermal:
    """What a kernel shows of the heat of a device: it is slowed down at first."""

    def __init__(self, folder):
        self.folder = folder
        for name, content in (("thermal_zone0/temp", "82400"), ("cooling_device0/type", "Processor")):
            (folder / name).parent.mkdir(parents=True)
            (folder / name).write_text(f"{content}\n")
        self.slow(3)

    def slow(self, state):
        (self.folder / "cooling_device0/cur_state").write_text(f"{state}\n")

    def inside(self, *command):
        """Return a command that runs where this is what the kernel shows."""
        mounted = f"mount --bind {shlex.quote(str(self.folder))} /sys/class/thermal"
        return ["unshare", "-m", "sh", "-c", f'{mounted} && exec "$@"', "sh", *command]


@pytest.fixture
def thermal(tmp_path):
    made = _Thermal(tmp_path / "thermal")
    if shutil.which("unshare") is None or subprocess.run(made.inside("true"), capture_output=True).returncode:
        pytest.skip("needs the right to mount a folder over /sys/class/thermal")
    return made


class _Warm(PythonConnection):
    """Another Python on a machine whose kernel shows something else."""

    def __init__(self, thermal):
        super().__init__(sys.executable)
        self._thermal = thermal

    def start(self, command):
        """Start a program there."""
        return super().start(self._thermal.inside(*command))


@pytest.fixture
def phone(tmp_path, monkeypatch):
    """Connect a phone whose kernel hides its heat, and whose service reports it; return what changes the report."""
    adb = Adb(tmp_path / "platform-tools")
    adb.install()
    adb.connect(A1B2="device")
    monkeypatch.setenv("PATH", f"{adb.folder}:{os.environ['PATH']}")
    monkeypatch.delenv("ANDROID_SERIAL", raising=False)

    def report(status, state):
        (tmp_path / "report").write_text(_DUMPSYS.format(status=status, state=state))

    program = adb.folder / "dumpsys"
    program.write_text(f'#!/bin/sh\n[ "$*" = thermalservice ] && exec cat {tmp_path}/report\n')
    program.chmod(0o755)
    return report


def _measured(runtime, clock=time.perf_counter):
    """Measure a network in a campaign, and return its log."""
    subjects = [Subject("net", conv, _SHAPE, "network")]
    with MemoryStore().campaign(CampaignHeader("networks", {}, runtime.platform, _QUICK)) as log:
        Campaign(NetworkSchedule(subjects, _QUICK, isolated=True), runtime.benches(), log, clock).run()
    runtime.close()
    assert len(log.records) == 3, log.failures
    return log


# What shows that a device is warm --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("printed", "hot", "slowed"),
    [
        ("throttled=0x0", False, False),
        ("throttled=0xe0000", False, False),
        ("throttled=0xe0008", True, True),
        ("throttled=0x20002", True, True),
        ("throttled=0x50005", False, True),
        ("throttled=0xd000d", True, True),
    ],
    ids=["cool", "was warm", "warm", "capped", "weak supply", "both"],
)
def test_raspberry_pi_shows_heat_and_a_weak_supply(printed, hot, slowed):
    assert _agent.heat("/nowhere/", {"vcgencmd": printed}) == {"cpu_hot": hot, "cpu_slowed": slowed}


def test_firmware_that_cannot_be_asked_shows_nothing():
    assert _agent.heat("/nowhere/", {"vcgencmd": "VCHI initialization failed", "dumpsys": "Can't find service"}) == {}


@pytest.mark.parametrize(("status", "state", "hot"), [(0, 0, False), (2, 0, True), (0, 1, True)])
def test_phone_shows_heat_by_its_service(phone, status, state, hot):
    phone(status, state)
    known = ShellFacts(AdbConnection())
    assert known.heat() == {"cpu_temperature": 71.3, "cpu_hot": hot, "cpu_slowed": hot}
    assert (known.conditions().cpu_temperature, known.conditions().cpu_slowed) == (71.3, hot)


def test_machine_without_signs_is_not_waited_for(tmp_path):
    waits = []
    connection = _Warm(_Thermal(tmp_path / "thermal"))
    shutil.rmtree(tmp_path / "thermal")
    (tmp_path / "thermal").mkdir()
    if subprocess.run(connection._thermal.inside("true"), capture_output=True).returncode:
        pytest.skip("needs the right to mount a folder over /sys/class/thermal")
    _measured(device_runtime(connection, waits.append))
    assert waits == []


# Campaigns --------------------------------------------------------------------------------------------------------


def _cooled(thermal, waits, sentence):
    waits.append(sentence)
    thermal.slow(0)


def test_warm_device_is_waited_for(thermal):
    waits = []
    connection = _Warm(thermal)
    log = _measured(device_runtime(connection, partial(_cooled, thermal, waits)))
    where = connection.description
    assert waits == [f"Waiting for {where} to cool down: 82 C, its processors are slowed down"]
    assert log.conditions["before"]["cpu_slowed"] is True
    assert log.conditions["after"]["cpu_slowed"] is False
    assert SLOWED not in log.conditions


def test_raspberry_pi_whose_firmware_is_asked_is_waited_for(tmp_path, monkeypatch):
    program, state, waits = tmp_path / "vcgencmd", tmp_path / "state", []
    program.write_text(f'#!/bin/sh\n[ "$*" = get_throttled ] && exec cat {state}\n')
    program.chmod(0o755)
    state.write_text("throttled=0xe0008\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def cool(sentence):
        waits.append(sentence)
        state.write_text("throttled=0xe0000\n")

    _measured(device_runtime(on_wait=cool))
    assert len(waits) == 1
    assert re.fullmatch(r"Waiting for python:\S+ to cool down: (\d+ C, )?its processors are slowed down", waits[0])


def test_device_that_gets_warm_again_is_waited_for_again(thermal):
    waits, rounds = [], []
    runtime = device_runtime(_Warm(thermal), partial(_cooled, thermal, waits))
    thermal.slow(0)
    subjects = [Subject("net", conv, _SHAPE, "network")]

    def warm(state):
        rounds.append(state.rounds)
        thermal.slow(state.rounds % 2)

    with MemoryStore().campaign(CampaignHeader("networks", {}, runtime.platform, _QUICK)) as log:
        Campaign(NetworkSchedule(subjects, _QUICK), runtime.benches(), log, on_progress=warm).run()
    runtime.close()
    # The last round is followed by none.
    assert len(waits) == sum(number % 2 for number in rounds[:-1])


@pytest.mark.skipif(not SSHD.exists() or shutil.which("ssh") is None, reason="needs openssh-server and openssh-client")
def test_warm_device_is_waited_for_over_ssh(thermal, tmp_path, monkeypatch):
    script = tmp_path / "inside"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(thermal.inside())} sh -c "$SSH_ORIGINAL_COMMAND"\n')
    script.chmod(0o755)
    waits = []
    with running_ssh_server(f"ForceCommand {script}") as server:
        monkeypatch.setenv("PATH", f"{server.binaries}:{os.environ['PATH']}")
        with SshConnection(server.address) as connection:
            connection.python = sys.executable
            assert ShellFacts(connection).heat() == {"cpu_temperature": 82.4, "cpu_hot": True, "cpu_slowed": True}
            _measured(device_runtime(connection, partial(_cooled, thermal, waits)))
    assert waits == [f"Waiting for ssh:{server.address} to cool down: 82 C, its processors are slowed down"]


def test_waiting_for_a_phone_costs_no_budget(phone, tmp_path):
    waits, now = [], [0.0]
    phone(3, 2)

    def cool(sentence):
        waits.append(sentence)
        now[0] += 1000.0
        phone(0, 0)

    log = _measured(tool_runtime(AdbConnection("A1B2"), tmp_path, cool), clock=lambda: now[0])
    assert waits == ["Waiting for adb:A1B2 to cool down: 71 C, its processors are slowed down"]
    assert max(record.duration for record in log.records) < 1000


def _plan():
    layer = {
        f"k{size}": PlanCandidate(
            capture_operators(torch.nn.Conv2d(4, 4, size, padding=size // 2), torch.zeros(_SHAPE))[0][1],
            partial(conv, 4, size),
        )
        for size in (1, 3)
    }
    return MeasurePlan(SpaceReference("convolutions", {}), _SHAPE, (PlanLayer("layer", layer),))


def test_device_that_stays_warm_is_measured_with_a_remark(thermal, tmp_path, monkeypatch):
    monkeypatch.setattr(_waiting, "_COOLING", 2.0)
    waits = []
    runtime = device_runtime(_Warm(thermal), waits.append)

    def cool_at_last(state):
        if state.rounds == 2:
            thermal.slow(0)

    table = build_table(_plan(), runtime, _QUICK, tmp_path / "t.json", store="memory", on_progress=cool_at_last)
    runtime.close()
    where = runtime.connection.description
    assert waits == [
        f"Waiting for {where} to cool down: 82 C, its processors are slowed down",
        f"{where} has not cooled down within 2 s. Measuring goes on.",
    ]
    assert table.coverage == 1
    assert any("The processors were slowed down at 82 C." in remark for remark in table.remarks), table.remarks


def test_waiting_lasts_until_the_device_is_cool(thermal):
    waits = []
    timer = threading.Timer(0.5, thermal.slow, [0])

    def note(_sentence):
        waits.append(time.monotonic())
        timer.start()

    runtime = device_runtime(_Warm(thermal), note)
    with runtime.benches().open(_QUICK) as bench:
        assert bench.cool_down()
        assert time.monotonic() - waits[0] >= 0.5
        assert bench.cool_down()
    runtime.close()
    timer.join()
    assert len(waits) == 1


def test_rounds_that_follow_at_once_need_no_other_look(thermal, monkeypatch):
    waits = []
    monkeypatch.setattr(_waiting, "_FRESH", 1e6)
    thermal.slow(0)
    runtime = device_runtime(_Warm(thermal), partial(_cooled, thermal, waits))
    with runtime.benches().open(_QUICK) as bench:
        assert bench.cool_down()
        thermal.slow(1)
        received = runtime.place.session._line.received
        assert bench.cool_down()
        assert (waits, runtime.place.session._line.received) == ([], received)
        monkeypatch.setattr(_waiting, "_FRESH", 0.0)
        assert bench.cool_down()
    runtime.close()
    assert len(waits) == 1
