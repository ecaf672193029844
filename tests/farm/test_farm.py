# SPDX-License-Identifier: Apache-2.0
"""A farm of real processes: the contract of benches, death and silence of workers, quarantine, Ctrl-C."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from functools import partial

import nni_latency_farm as farm
import pytest
from farms import DriftingDevice, SilentDevice, WaitingDevice, wait_until
from nni_latency_farm.testing import FarmOfProcesses
from torch import nn

from nni_latency.errors import MismatchError, RemoteError, UnknownNameError
from nni_latency.measurement import (
    Campaign,
    CampaignHeader,
    LocalBenches,
    MemoryStore,
    NetworkSchedule,
    Protocol,
    Record,
    Subject,
    measure_network,
)
from nni_latency.measurement.runtimes import TorchEager
from nni_latency.platforms import Platform
from nni_latency.testing import FakeDevice, check_bench, check_schedule

_PROTOCOL = Protocol(n_warmup=0, rounds=4, time_budget=1e9, max_measure_execution_time=1e9, half_width=0.0)


def networks(count):
    return [Subject(f"linear {size}", partial(nn.Linear, size, 4), (1, size)) for size in range(1, count + 1)]


def schedule(count=5, rounds=4):
    first, *others = networks(count)
    protocol = Protocol(n_warmup=0, rounds=rounds, time_budget=1e9, max_measure_execution_time=1e9, half_width=0.0)
    return NetworkSchedule(others, protocol, always=[first])


def measured(benches, on_progress=lambda _state: None, **options):
    """Return what a campaign measures, less what depends on the time."""
    store, plan = MemoryStore(), schedule(**options)
    with store.campaign(CampaignHeader(plan.kind, {}, benches.platform, plan.protocol)) as log:
        Campaign(plan, benches, log, clock=lambda: 0.0, on_progress=on_progress).run()
    (stored,) = store.campaigns()
    return [Record.of({**record.content(), "at": 0.0, "duration": 0.0}) for record in stored.records], stored


def broken():
    raise RuntimeError("it is broken")


def device(name="device", **options):
    return partial(FakeDevice, name, **options)


def test_benches_of_a_farm_pass_the_suites_of_local_ones(processes):
    processes.join("worker", device())
    with processes.client() as client:
        processes.wait_for(1, client)
        benches = client.benches("device.fake.fp32.t1")
        subjects = [Subject("a", nn.ReLU, (1, 8)), Subject("b", nn.Sigmoid, (1, 8))]
        check_bench(benches.open(Protocol()), subjects, Subject("c", broken, (1, 8)))
        check_schedule(schedule, benches)
        before = client.workers()[0].jobs
        assert measured(benches)[0] == measured(LocalBenches(FakeDevice("device")))[0]
        # Conditions twice, subjects once, warm-up, four rounds.
        assert client.workers()[0].jobs >= before + 7


@pytest.mark.slow
def test_a_real_runtime_measures_in_a_process_of_its_own(processes):
    processes.join("worker", TorchEager)
    with processes.client() as client:
        processes.wait_for(1, client)
        (found,) = client.platforms()
        assert found.traits.isolated
        runtime = client.runtime(found.platform)
        times = measure_network(nn.Linear(4, 4), (1, 4), runtime, Protocol(rounds=3, time_budget=600.0, processes=1))
        assert min(times.samples) > 0


@pytest.mark.slow
def test_platforms_are_found_by_their_id_and_facts(processes):
    processes.join("one", device("one"))
    processes.join("two", device("two", speed=2.0))
    with processes.client() as client:
        processes.wait_for(2, client)
        assert {item.platform.id for item in client.platforms()} == {"one.fake.fp32.t1", "two.fake.fp32.t1"}
        assert client.runtime(Platform("two", "fake")).platform.device == "two"
        with pytest.raises(UnknownNameError, match=r"three\.fake\.fp32\.t1"):
            client.benches("three.fake.fp32.t1")
        with pytest.raises(MismatchError, match=r"measure on another platform: runtime\.version"):
            client.benches(Platform("one", "fake", facts={"runtime.version": "7"}))


def test_a_worker_that_is_killed_loses_no_record(processes):
    for name in ("first", "second"):
        processes.join(name, device(pace=1.0))
    with processes.client() as client:
        processes.wait_for(2, client)
        chance = random.Random(0)
        rounds, done = threading.Semaphore(0), threading.Event()

        def kill():
            # After a round, so that no network meets death after death and is blamed for them.
            pause = 0.0
            while rounds.acquire() and not done.wait(pause):
                name = chance.choice(sorted(processes.workers))
                processes.kill(name)
                processes.join(name, device(pace=1.0))
                wait_until(lambda: len(client.workers()) == 2 or done.is_set())
                while rounds.acquire(blocking=False):
                    pass
                if done.is_set():
                    # The last round may have been among these.
                    return
                pause = chance.uniform(0.3, 0.8)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            benches = client.benches("device.fake.fp32.t1")
            there, stored = measured(benches, lambda _state: rounds.release(), rounds=20)
        finally:
            done.set()
            rounds.release()
            killer.join()
    here, _ = measured(LocalBenches(FakeDevice("device")), rounds=20)
    assert there == here
    assert not stored.failures
    assert "left." in processes.said.read_text()


@pytest.mark.slow
def test_ctrl_c_of_a_worker_loses_no_record(processes):
    for name in ("first", "second"):
        processes.join(name, device(pace=10.0))
    with processes.client() as client:
        processes.wait_for(2, client)
        codes = []

        def stop():
            # It has told its conditions, taken the subjects, warmed up, and measured some of twenty rounds.
            wait_until(lambda: any(worker.jobs >= 8 and worker.benches for worker in client.workers()))
            codes.append(processes.interrupt(client_worker(client)))

        stopper = threading.Thread(target=stop)
        stopper.start()
        there, stored = measured(client.benches("device.fake.fp32.t1"), rounds=20)
        stopper.join()
        assert codes == [0]
    assert there == measured(LocalBenches(FakeDevice("device")), rounds=20)[0]
    workers = {content["worker"] for moment, content in stored.conditions.items() if "worker" in moment}
    assert workers == {"first", "second"}


def client_worker(client):
    """Return the name of the worker that measures."""
    return next(worker.name for worker in client.workers() if worker.benches)


@pytest.mark.slow
def test_a_worker_that_drifts_is_quarantined_and_comes_back(processes, tmp_path):
    slow = tmp_path / "slow"
    processes.join("worker", partial(DriftingDevice, slow, "device"), check_every=0.2)
    with processes.client(patience=0.1) as client:
        processes.wait_for(1, client)
        # At once, because the worker may read it at any moment.
        (tmp_path / "new").write_text("1.5")
        (tmp_path / "new").rename(slow)
        processes.wait_for(1, client, "quarantined")
        (state,) = client.workers()
        assert state.reason == "Its reference networks take 50.0 % longer than they did."
        with pytest.raises(
            RemoteError, match=r"No worker measures for device\.fake\.fp32\.t1\. worker is in quarantine"
        ):
            client.benches("device.fake.fp32.t1").conditions()
        slow.unlink()
        processes.wait_for(1, client)
        assert client.benches("device.fake.fp32.t1").conditions().as_dict() == {}
    said = processes.said.read_text()
    assert "worker is in quarantine and gets no work: Its reference networks take 50.0 %" in said
    assert "worker measures again." in said


@pytest.mark.slow
def test_a_worker_unlike_its_twins_is_quarantined(processes):
    for name in ("first", "second"):
        processes.join(name, device())
    with processes.client() as client:
        processes.wait_for(2, client)
        processes.join("odd", device(speed=4.0))
        wait_until(lambda: len(client.workers()) == 3)
        odd = client.workers()[-1]
        assert (odd.name, odd.state) == ("odd", "quarantined")
        assert "on its twins (first, second)" in odd.reason


@pytest.mark.slow
def test_a_campaign_waits_for_a_worker(processes, tmp_path):
    processes.join("worker", device())
    waits = []

    def join_again(sentence):
        waits.append(sentence)
        processes.join("worker", device())

    with processes.client(on_wait=join_again) as client:
        processes.wait_for(1, client)
        benches = client.benches("device.fake.fp32.t1")
        processes.kill("worker")
        assert measured(benches)[0]
    assert waits == ["Waiting for a worker of device.fake.fp32.t1. No worker of it is there."]
    # What the worker that was killed could not remove, the next one has removed.
    assert len([path for path in tmp_path.glob("cache/farm/*/worker-*") if path.is_dir()]) == 1


def test_a_device_belongs_to_one_worker(processes):
    processes.join("first", device(), device="the GPU")
    with processes.client() as client:
        processes.wait_for(1, client)
        processes.join("second", device(), device="the GPU")
        wait_until(lambda: processes.workers["second"].exitcode is not None)
        assert processes.workers["second"].exitcode == 1
        assert [worker.name for worker in client.workers()] == ["first"]


@pytest.mark.slow
def test_workers_find_a_farm_that_comes_back(tmp_path):
    with FarmOfProcesses(tmp_path) as first:
        port = farm.FarmAddress.parse(first.address).port
        first.join("worker", device())
        with first.client() as client:
            first.wait_for(1, client)
        first.kill_scheduler()
        wait_until(lambda: "is looked for again" in first.said.read_text())
        with FarmOfProcesses(tmp_path, port=port) as second, second.client() as client:
            second.wait_for(1, client)


@pytest.mark.slow
def test_a_worker_looks_for_a_farm_that_goes_while_it_joins(tmp_path):
    file = tmp_path / "file"
    with FarmOfProcesses(tmp_path) as first:
        port = farm.FarmAddress.parse(first.address).port
        first.join("worker", partial(WaitingDevice, file, "device"))
        wait_until(lambda: first.said.exists() and "times its reference networks" in first.said.read_text())
        first.kill_scheduler()
        file.touch()
        wait_until(lambda: "is looked for again" in first.said.read_text())
        with FarmOfProcesses(tmp_path, port=port) as second, second.client() as client:
            second.wait_for(1, client)


@pytest.mark.slow
def test_a_worker_looks_for_a_farm_that_goes_while_a_check_waits_for_a_job(tmp_path):
    with FarmOfProcesses(tmp_path) as processes:
        # Its job is never done, so that the next check does not begin.
        processes.join("worker", device(pace=2000.0), references=(), check_every=0.1)
        with processes.client() as client:
            processes.wait_for(1, client)

            def measure():
                with pytest.raises(RemoteError, match="does not answer any more"):
                    measured(client.benches("device.fake.fp32.t1"))

            measuring = threading.Thread(target=measure)
            measuring.start()
            wait_until(lambda: client.workers()[0].benches and time.time() - client.workers()[0].checked > 2.0)
            processes.kill_scheduler()
            measuring.join()
        wait_until(lambda: "is looked for again" in processes.said.read_text())


@pytest.mark.slow
def test_a_worker_says_once_why_it_does_not_find_its_farm_again(tmp_path):
    with FarmOfProcesses(tmp_path) as processes:
        port = farm.FarmAddress.parse(processes.address).port
        processes.join("worker", device())
        with processes.client() as client:
            processes.wait_for(1, client)
        processes.kill_scheduler()
        wait_until(lambda: "Connection refused" in processes.said.read_text())
        with socket.create_server(("127.0.0.1", port)):
            wait_until(lambda: "is no farm, or it does not trust this side" in processes.said.read_text())
        assert processes.said.read_text().count("Connection refused") == 1


@pytest.mark.slow
def test_a_client_says_that_the_farm_is_gone(processes):
    processes.join("worker", device())
    with processes.client() as client:
        processes.wait_for(1, client)
        benches = client.benches("device.fake.fp32.t1")
        processes.kill_scheduler()
        with pytest.raises(RemoteError, match=r"does not answer any more\. What was measured is kept"):
            measured(benches)


def test_nobody_answers():
    with pytest.raises(RemoteError, match=r"No farm answers at tcp://127\.0\.0\.1:1: Connection refused\."):
        farm.Farm("127.0.0.1:1", timeout=1)


def test_a_port_that_is_taken_is_told(processes):
    port = farm.FarmAddress.parse(processes.address).port
    with pytest.raises(RemoteError, match=f"A farm cannot listen on port {port} of 127.0.0.1"):
        farm.serve("127.0.0.1", port)


def test_ctrl_c_ends_a_scheduler(processes):
    os.kill(processes.scheduler.pid, signal.SIGINT)
    processes.scheduler.join(120)
    assert processes.scheduler.exitcode == 0


@pytest.fixture
def impatient(tmp_path):
    """Start a farm that soon gives up a worker of which it hears nothing."""
    with FarmOfProcesses(tmp_path, silence=6.0) as made:
        yield made


@pytest.mark.slow
def test_a_worker_that_is_silent_is_given_up(impatient):
    """A process that is stopped is like a machine without a network: its slice goes to another one after a while."""
    processes = impatient
    for name in ("first", "second"):
        processes.join(name, device(pace=2.0))
    with processes.client() as client:
        processes.wait_for(2, client)
        stopped = []

        def stop(_state):
            if not stopped:
                stopped.append(client_worker(client))
                os.kill(processes.workers[stopped[0]].pid, signal.SIGSTOP)

        begin = time.monotonic()
        there, _ = measured(client.benches("device.fake.fp32.t1"), stop, rounds=20)
        assert time.monotonic() - begin > 5.0
        os.kill(processes.workers[stopped[0]].pid, signal.SIGCONT)
        # It sees that it was given up, and joins again.
        processes.wait_for(2, client)
    assert there == measured(LocalBenches(FakeDevice("device")), rounds=20)[0]


@pytest.mark.slow
def test_a_worker_that_is_silent_while_its_answer_is_fetched_is_given_up(impatient, tmp_path):
    """Its job is done, so that the farm asks it for the answer, and may not ask it again once it is given up."""
    processes = impatient
    silent = tmp_path / "silent"
    for name in ("first", "second"):
        processes.join(name, partial(SilentDevice, silent, "device"), references=())
    with processes.client() as client:
        processes.wait_for(2, client)
        there, _ = measured(client.benches("device.fake.fp32.t1"))
        os.kill(int(silent.read_text()), signal.SIGCONT)
        processes.wait_for(2, client)
    assert there == measured(LocalBenches(FakeDevice("device")))[0]


@pytest.mark.slow
def test_a_hundred_kills_lose_and_double_nothing(processes):
    """Eight workers of four platforms with devices of different speed; every campaign ends as if nothing had been."""
    speeds = {f"device-{number}": 2.0**number for number in range(4)}
    makes = {
        f"{name}-{twin}": device(name, speed=speed, pace=4 * speed) for name, speed in speeds.items() for twin in "ab"
    }
    for name, make in makes.items():
        # Without reference networks a new process measures at once.
        processes.join(name, make, references=())
    kills = 100
    with processes.client() as client:
        processes.wait_for(8, client)
        found, errors = {name: [] for name in speeds}, []
        done = threading.Event()

        def campaigns(name):
            try:
                while not done.is_set():
                    found[name].append(measured(client.benches(f"{name}.fake.fp32.t1"), rounds=25))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=campaigns, args=(name,)) for name in speeds]
        for thread in threads:
            thread.start()
        chance = random.Random(7)
        for _ in range(kills):
            # All are there again, so that no network meets death after death and is blamed for them.
            processes.wait_for(8, client)
            name = chance.choice(sorted(makes))
            processes.kill(name)
            processes.join(name, makes[name], references=())
            time.sleep(chance.uniform(0.0, 0.2))
            assert not errors
        done.set()
        for thread in threads:
            thread.join(120)
        assert not errors
    for name in speeds:
        here, _ = measured(LocalBenches(FakeDevice(name, speed=speeds[name])), rounds=25)
        assert found[name]
        for there, stored in found[name]:
            assert not stored.failures
            assert there == here
    # All of them were workers that had joined; two may be chosen before the farm has seen that one died.
    assert processes.said.read_text().count(" left.") > 0.9 * kills
