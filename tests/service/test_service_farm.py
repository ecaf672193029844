# SPDX-License-Identifier: Apache-2.0
"""A service whose farm measures: workers and schedulers come and go, what is known is answered all the time."""

from __future__ import annotations

import threading
import time
from functools import partial

import nni_latency_farm as farm
import pytest
from farms import FarmOfDevices, wait_until
from nni_latency_farm.testing import FarmOfProcesses
from nni_latency_service import LatencyService
from nni_latency_service.query import LatencyQuery, Question, RemoteMachines

from nni_latency.database import DatabaseStore
from nni_latency.errors import BusyError, MissingEntryError, RemoteError, UnknownNameError
from nni_latency.measurement import IsolatedBench, Limits, Protocol
from nni_latency.measurement.runtimes import TorchEager
from nni_latency.testing import FakeDevice

_PLATFORM = "device.fake.fp32.t1"


pytestmark = pytest.mark.usefixtures("forgotten_sockets")


@pytest.fixture
def store(tmp_path):
    made = DatabaseStore(str(tmp_path / "m.sqlite"))
    yield made
    made.close()


def _ask(service, key):
    """Ask as a client does that waits; return the answer."""
    found = service.ask(Question.of(key), _PLATFORM, "always", 0.1, "me", may_measure=True)
    if hasattr(found, "is_over"):
        wait_until(lambda: found.is_over)
        assert found.answer is not None, found.error
        found = found.answer
    return found


def _address(processes):
    return farm.FarmAddress.parse(processes.address)


@pytest.mark.slow
def test_a_farm_that_is_lost_is_found_again_and_what_is_known_is_answered(tmp_path, store, monkeypatch):
    monkeypatch.setattr("nni_latency_service.query._machines._INTERVAL", 0.1)
    with FarmOfProcesses(tmp_path) as first:
        first.join("worker", partial(FakeDevice, "device"))
        with first.client() as client:
            first.wait_for(1, client)
        machines = RemoteMachines(partial(farm.Farm, first.address))
        service = LatencyService(LatencyQuery(store, machines=machines))
        assert [_ask(service, "relu()@1x8:float32").source for _ in range(2)] == ["measurement", "record"]
        first.kill_scheduler()
        wait_until(lambda: not machines.platforms())
        begin = time.monotonic()
        assert service.known("relu()@1x8:float32", _PLATFORM).source == "record"
        assert time.monotonic() - begin < 5
        with pytest.raises(MissingEntryError, match=r"Nothing measures on this platform"):
            _ask(service, "tanh()@1x8:float32")
        with pytest.raises(RemoteError, match=r"They are asked again until they do"):
            machines.benches(_PLATFORM)
        with FarmOfProcesses(tmp_path, port=_address(first).port):
            # The worker looks for the farm, too.
            wait_until(machines.platforms)
            assert _ask(service, "tanh()@1x8:float32").source == "measurement"
            service.close()


@pytest.mark.slow
def test_a_service_that_is_stopped_does_not_wait_for_a_worker(tmp_path, store):
    with FarmOfProcesses(tmp_path) as processes:
        # So slow that it is never done before it is killed.
        processes.join("worker", partial(FakeDevice, "device", pace=2000.0), references=())
        with processes.client() as client:
            processes.wait_for(1, client)
        service = LatencyService(LatencyQuery(store, machines=RemoteMachines(partial(farm.Farm, processes.address))))
        job = service.ask(Question.of("relu()@1x8:float32"), _PLATFORM, "always", 0.1, "me", may_measure=True)
        wait_until(lambda: job.state == "running")
        processes.kill("worker")
        service.close()
        assert job.state == "failed"
        with pytest.raises((BusyError, MissingEntryError)):
            _ask(service, "tanh()@1x8:float32")


class _Moving:
    """A remote whose only machine has left when it is first asked for, and is there again at the next look."""

    description, advice = "moving", ""

    def __init__(self):
        self.device, self.missed, self.is_closed = FakeDevice("device"), 0, False

    def runtimes(self):
        if self.is_closed:
            raise TypeError("its connection is closed")
        return [self.device]

    def workers(self):
        return []

    def runtime(self, platform):
        if not self.missed:
            self.missed += 1
            raise UnknownNameError.of("platform", platform, [])
        return self.device

    def close(self):
        self.is_closed = True


def test_a_machine_that_is_back_by_the_next_look_is_taken():
    remote = _Moving()
    machines = RemoteMachines(lambda: remote)
    assert machines.benches(_PLATFORM).platform.id == _PLATFORM
    with pytest.raises(UnknownNameError, match="nowhere"):
        remote.missed = 0
        machines.benches("nowhere")
    machines.close()


class _Failing(_Moving):
    """A remote that fails in ways that its interface does not know until it is mended, and each time it is closed."""

    reasons = ("first", "first", "second")

    def __init__(self):
        super().__init__()
        self.asked = 0

    def runtimes(self):
        self.asked += 1
        if 1 < self.asked <= 1 + len(self.reasons):
            raise TypeError(self.reasons[self.asked - 2])
        return [self.device]

    def close(self):
        raise OSError("no line")


def test_machines_that_fail_are_asked_again_and_each_reason_is_logged_once(monkeypatch, caplog):
    monkeypatch.setattr("nni_latency_service.query._machines._INTERVAL", 0.01)
    remote = _Failing()
    machines = RemoteMachines(lambda: remote)
    wait_until(lambda: "answer again" in caplog.text and machines.platforms())
    assert [platform.id for platform in machines.platforms()] == [_PLATFORM]
    machines.close()
    said = [record.message for record in caplog.records if "disconnected" not in record.message]
    assert said == ["TypeError: first", "TypeError: second", "The other machines answer again."]
    assert "could not be disconnected: OSError: no line" in caplog.text


def test_a_look_at_machines_that_are_closed_meanwhile_fails_silently(monkeypatch):
    monkeypatch.setattr("nni_latency_service.query._machines._INTERVAL", 0.01)
    remote, before = _Moving(), set(threading.enumerate())
    machines = RemoteMachines(lambda: remote)
    (watching,) = set(threading.enumerate()) - before

    def close_first():
        machines.close()
        return _Moving.runtimes(remote)

    remote.runtimes = close_first
    # An error in a thread would fail the test.
    watching.join(180)
    assert not watching.is_alive()
    assert machines.platforms() == ()


def test_networks_of_others_are_measured_by_workers_with_limits():
    devices = FarmOfDevices()
    devices.join("worker", TorchEager())
    limits = Limits(memory=2**31)
    announced = devices.devices["worker"].announcement()
    seen = []

    class _Watched(TorchEager):
        def benches(self, meters=(), limits=None):
            seen.append(limits)
            return super().benches(meters, limits)

    devices.devices["worker"].runtime = _Watched()
    with farm.FarmBenches(devices, announced, limits=limits).open(Protocol()) as bench:
        place = bench._place
        assert isinstance(devices.devices["worker"]._find(place)._bench, IsolatedBench)
    devices.devices["worker"].close()
    assert seen == [limits]
