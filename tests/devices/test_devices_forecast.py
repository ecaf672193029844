# SPDX-License-Identifier: Apache-2.0
"""What is about to be sent to a device is said before, and what was sent afterwards."""

from __future__ import annotations

import importlib
import re
import sys
from functools import partial
from pathlib import Path

import numpy as np
import numpy_runtime
import pytest
from numpy_runtime import conv, device_runtime, tool_runtime
from torch import nn

from nni_latency.devices import DeviceRuntime, PythonConnection
from nni_latency.measurement import Campaign, CampaignHeader, MemoryStore, NetworkSchedule, Protocol, Record, Subject
from nni_latency.spaces import FBNetSpace
from nni_latency.tables import BatchSchedule, LayerSchedule

_PLUGINS = Path(__file__).parents[2] / "plugins"

_QUICK = Protocol(n_run=2, rounds=2, processes=1, half_width=0.0, time_budget=600.0, timeout=60.0)

_WHERE = f"python:{sys.executable}"

_BEFORE = re.compile(
    r"Sending (\d+) networks? to (\S+): about ([0-9.]+ k?M?B)(?: and at most ([0-9.]+ k?M?B) a round)? \((.+)\)"
)

_UNITS = {"B": 1, "kB": 1e3, "MB": 1e6}


def _bytes(text):
    number, unit = text.split()
    return float(number) * _UNITS[unit]


def _measured(runtime, schedule):
    """Measure, and return what was said."""
    said = []
    runtime.on_send = lambda sentence: said.append((sentence, runtime.sent))
    with MemoryStore().campaign(CampaignHeader(schedule.kind, {}, runtime.platform, _QUICK)) as log:
        Campaign(schedule, runtime.benches(), log).run()
    runtime.close()
    return said


def _networks(*modules):
    subjects = [Subject(f"net {number}", build, (1, 4, 16, 16)) for number, build in enumerate(modules)]
    return NetworkSchedule(subjects, _QUICK)


def test_networks_are_announced_before_they_are_sent():
    runtime = device_runtime()
    sent = runtime.sent
    (before, then), (after, now) = _measured(runtime, _networks(conv, partial(conv, 8)))
    assert (found := _BEFORE.fullmatch(before)), before
    assert found.groups()[:2] == ("2", _WHERE)
    assert found[5] == "weights are drawn there"
    # A request for its load at most.
    assert then - sent < 200 < now - then
    assert re.fullmatch(rf"Sent [0-9.]+ k?B to {re.escape(_WHERE)}", after), after


def test_networks_that_a_device_forgets_are_announced_for_every_process():
    found = []
    for count in (1, 3):
        runtime, said = device_runtime(), []
        runtime.on_send = said.append
        with runtime.benches().expecting([[(Subject("net", conv, (1, 4, 16, 16)),)]] * count):
            found.append(_bytes(_BEFORE.fullmatch(said[0])[3]))
        runtime.close()
    assert found[1] == pytest.approx(3 * found[0], rel=0.1)


def test_candidates_are_made_and_sent_once_for_all_processes(monkeypatch):
    built = []
    monkeypatch.setattr(numpy_runtime, "conv", lambda *sizes: built.append(sizes) or conv(*sizes))
    runtime = device_runtime()
    protocol = Protocol(n_run=2, rounds=4, processes=2, half_width=0.0, time_budget=600.0, timeout=60.0)
    schedule = LayerSchedule(numpy_runtime.conv_plan((1, 4, 16, 16)), protocol)
    with MemoryStore().campaign(CampaignHeader(schedule.kind, {}, runtime.platform, protocol)) as log:
        Campaign(schedule, runtime.benches(), log).run()
        assert {record.process for record in log.records} == {0, 1}
    runtime.close()
    # Both layers have the same two.
    assert sorted(built) == [(4, 1), (4, 3)]


def test_solved_table_plans_all_batches_once_the_first_was_measured():
    plan = numpy_runtime.conv_plan((1, 4, 16, 16))
    schedule = BatchSchedule(plan, Protocol(rounds=3, time_budget=600.0), [np.ones(size) for size in plan.sizes])
    found = []
    for session in schedule.sessions():
        found.append((schedule.iteration, [len(networks) for networks in schedule.planned()]))
        while chains := schedule.next_round():
            keys = [[subject.key for subject in chain] for chain in chains]
            schedule.observe([Record(1e-3, [], {"latency": [1e-3]}, key, schedule.next, session, 1e-3) for key in keys])
    # Every batch has all four networks.
    assert found == [(0, [4]), (1, [4, 4]), (1, [4])]


def test_nothing_is_built_where_nobody_listens():
    runtime, built = device_runtime(), []
    assert runtime.on_send is None
    with runtime.benches().expecting([[(Subject("net", lambda: built.append(1), (1, 4, 16, 16)),)]]):
        assert not built
    runtime.close()


def _refused():
    raise ValueError("it cannot be built")


def test_network_that_cannot_be_built_is_announced_as_the_others():
    said = _measured(device_runtime(), _networks(conv, _refused))
    assert said[0][0].startswith("Sending 2 networks to ")


@pytest.mark.slow
def test_forecast_for_an_agent_holds():
    pytest.importorskip("onnxruntime")
    sys.path.append(str(_PLUGINS / "nni_latency_onnxruntime"))
    plugin = importlib.import_module("nni_latency_onnxruntime")
    runtime = DeviceRuntime(lambda place: plugin.OnnxRuntime(place=place), PythonConnection(sys.executable))
    schedule = LayerSchedule(FBNetSpace(preset="cifar10", depth=0.25).measure_plan(), _QUICK)
    (before, then), (_, now) = _measured(runtime, schedule)
    found = _BEFORE.fullmatch(before)
    once, by_round = _bytes(found[3]), _bytes(found[4])
    # Rounds of the warm-up are sent as well, as many as it takes.
    assert (once + (_QUICK.rounds + 1) * by_round) / 2 < now - then
    assert now - then < 2 * (once + (_QUICK.rounds + schedule.warm_up) * by_round)


def test_forecast_for_a_benchmark_binary_holds(tmp_path):
    runtime = tool_runtime(PythonConnection(sys.executable), tmp_path)
    large = [partial(nn.Conv2d, 4, channels, 16) for channels in (64, 256)]
    (before, then), (_, now) = _measured(runtime, _networks(*large))
    found = _BEFORE.fullmatch(before)
    assert found[5] == "with random weights"
    assert found[4] is None
    assert (now - then) / 2 < _bytes(found[3]) < 2 * (now - then)
