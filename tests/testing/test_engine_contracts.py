# SPDX-License-Identifier: Apache-2.0
"""Every built-in bench and schedule passes its contract suite, and the suites find what is broken."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
from torch import nn

from nni_latency.datasets import BatchedNetworks
from nni_latency.measurement import (
    IsolatedBench,
    LocalBench,
    LocalBenches,
    Meter,
    NetworkSchedule,
    Protocol,
    Subject,
    cold_chain,
)
from nni_latency.measurement.runtimes import TorchEager
from nni_latency.micro_benchmarks import Block, PointSchedule
from nni_latency.tables import BatchSchedule, LayerSchedule
from nni_latency.testing import FakeRuntime, check_bench, check_meter, check_schedule, fake_plan

_LATENCIES = {"stem": {"conv": 0.5}, "a": {"x": 0.25, "y": 1.0}, "b": {"x": 2.0, "y": 4.0, "z": 0.125}}
_PLAN, _BY_KEY = fake_plan(_LATENCIES, fixed=["stem"])
_PROTOCOL = Protocol(n_warmup=0, rounds=6, time_budget=1e9, max_measure_execution_time=1e9, half_width=0.0)
_NETWORKS = [
    Subject(f"network {number}", _PLAN.network_of(selection), _PLAN.input_shape)
    for number, selection in enumerate(
        {"stem": "conv", "a": first, "b": second} for first, second in itertools.product("xy", "xyz")
    )
]
_SERIES = [
    (Block.of("conv", 8, channels=4, out=8, kernel=3), (1, 2)),
    (Block.of("head", 4, channels=8, classes=4), (1,)),
]


SCHEDULES = {
    "layers": lambda: LayerSchedule(_PLAN, _PROTOCOL, isolated=False),
    "layers in processes": lambda: LayerSchedule(_PLAN, _PROTOCOL),
    "networks": lambda: NetworkSchedule(_NETWORKS[1:], _PROTOCOL, always=_NETWORKS[:1]),
    "networks divided": lambda: NetworkSchedule(_NETWORKS[1:], _PROTOCOL, always=_NETWORKS[:1], divided=True),
    "batches": lambda: BatchSchedule(
        _PLAN, Protocol(rounds=2, time_budget=1e9), [np.ones(size) for size in _PLAN.sizes]
    ),
    "networks in batches": lambda: BatchedNetworks(
        _NETWORKS[1:], _PROTOCOL, anchors=_NETWORKS[:1], weights={item.key: 2**27 for item in _NETWORKS}
    ),
    "points": lambda: PointSchedule(_SERIES, _PROTOCOL, lambda: 0),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_built_in_schedule_passes_its_suite(name):
    runtime = FakeRuntime(lambda op: _BY_KEY.get(op.op_key, 1e-5))
    check_schedule(SCHEDULES[name], LocalBenches(runtime))


class _Forgetful(NetworkSchedule):
    """Begins anew whatever it has seen."""

    def observe(self, records):
        super().observe(records)
        self.next = 0


class _Restless(NetworkSchedule):
    """Changes when it is asked."""

    def next_round(self):
        self.next += 1
        return super().next_round()


class _Secretive(NetworkSchedule):
    """Plans one network."""

    def planned(self):
        return [[(_NETWORKS[0],)]]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (_Forgetful, r"must ask for"),
        (_Restless, r"must ask for|must change nothing"),
        (_Secretive, r"'planned' must have .* It lacks \['network 1', 'network 2', "),
    ],
)
def test_check_schedule_finds_a_broken_rule(kind, message):
    with pytest.raises(AssertionError, match=message):
        check_schedule(lambda: kind(_NETWORKS, _PROTOCOL), LocalBenches(FakeRuntime(_BY_KEY)))


def _broken():
    raise ValueError("cannot be made")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [LocalBench, IsolatedBench])
def test_built_in_bench_passes_its_suite(kind):
    subjects = [
        Subject("first", partial(nn.Conv2d, 3, 4, 1), (1, 3, 8, 8)),
        Subject("second", partial(nn.Conv2d, 4, 2, 1), (1, 4, 8, 8)),
    ]
    check_bench(kind(TorchEager(), Protocol()), subjects, Subject("broken", _broken))


def test_cold_chain_passes_the_suite_of_benches():
    subjects = cold_chain("relu", nn.ReLU, [(2, 3)])
    check_bench(LocalBench(TorchEager(), Protocol()), subjects, Subject("broken", _broken))


class _Counter(Meter):
    """Counts what was done."""

    metric, resolution = "energy", 1.0

    def __init__(self):
        self.count = 0.0

    def work(self):
        self.count += 1.0

    def start(self):
        self.count = 0.0

    def stop(self):
        return self.count


def test_meter_passes_its_suite():
    meter = _Counter()
    check_meter(meter, meter.work)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"resolution": 0.0}, r"'resolution' must be positive"),
        ({"period": -1.0}, r"'period' must be >= 0"),
        ({"stop": lambda: -1.0}, r"must cost >= 0"),
        ({"stop": lambda: 1.0}, r"Fifty runs must cost more"),
        ({"idle": lambda: float("nan")}, r"'idle' must be a finite number"),
    ],
)
def test_check_meter_finds_a_broken_rule(change, message):
    meter = _Counter()
    vars(meter).update(change)
    with pytest.raises(AssertionError, match=message):
        check_meter(meter, meter.work)
