# SPDX-License-Identifier: Apache-2.0
"""How far a farm grows: what its scheduler can do, measured with up to 8 workers, and simulated with 1,000.

    python examples/farm_growth.py --out docs/images/farm_growth.png

Measured: real processes on this machine, a scheduler and workers whose devices are fake. A visit makes the worker wait
for a while and computes nothing; every worker has a campaign of its own, and all campaigns are one process. From them
come the processor's time that a job costs the scheduler, the worker and the client, and how long a job is under way.

Simulated: the same jobs, event by event. The `Registry` of the simulation is the one of the real scheduler; processors
are queues. On the machine that was measured all processes share its processors, and the simulation has to match what
was measured. Then the scheduler has a processor for itself, as workers and clients on machines of their own leave it.
"""

from __future__ import annotations

import heapq
import itertools
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import nni_latency_farm as farm
from distributed.scheduler import heartbeat_interval
from nni_latency_farm.testing import FarmOfProcesses
from torch import nn

from nni_latency.measurement import Protocol, Stage, Subject
from nni_latency.platforms import Platform
from nni_latency.plots import picture
from nni_latency.testing import FakeDevice

#: Workers that are measured, and how long their jobs are [s].
MEASURED = (1, 2, 4, 8)
SLICES = (0.05, 0.25, 1.0)

#: What is simulated.
WORKERS = (1, 2, 4, 8, 16, 32, 64, 125, 250, 500, 1000)
LONG_SLICES = (0.25, 1.0, 5.0, 20.0)

#: A data set of networks: batches of 32 are loaded in one job and visited in 10 rounds, a job each, as
#: ``nni-latency dataset measure`` does; loading takes 10 s, a round 2 s.
BATCH, LOADING, ROUNDS, ROUND = 32, 10.0, 10, 2.0
SUBJECTS = 1_000_000


@dataclass(frozen=True)
class Costs:
    """What a job costs, whatever it measures [s]."""

    scheduler: float
    client: float
    worker: float
    #: Time that it is under way besides: messages wait to be sent together.
    waiting: float
    #: Processor's time of the scheduler for the heartbeat of a worker.
    beat: float

    @property
    def total(self) -> float:
        """Processor's time of all processes."""
        return self.scheduler + self.client + self.worker


@dataclass(frozen=True)
class Point:
    """What so many workers did, with jobs of a length [s]."""

    workers: int
    slice: float
    #: Jobs that were done in a second.
    rate: float


def main() -> None:
    """Run the command."""
    command()


@click.command()
@click.option("--seconds", default=6.0, show_default=True, help="How long every point is measured.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("farm_growth.png"), show_default=True)
def command(seconds: float, out: Path) -> None:
    """Measure a farm of up to 8 workers, and simulate one of 1,000."""
    costs, measured = measure(seconds)
    print(
        f"A job costs {1e3 * costs.scheduler:.2f} ms of the scheduler's processor, {1e3 * costs.client:.2f} ms of the"
    )
    print(f"client's and {1e3 * costs.worker:.2f} ms of the worker's; messages wait {1e3 * costs.waiting:.1f} ms.")
    print(f"A heartbeat takes {1e3 * costs.beat:.2f} ms of the scheduler's processor.\n")
    print("workers  slice  measured jobs/s  simulated jobs/s")
    for point in measured:
        simulated = simulate(costs, point.workers, point.slice, cores=os.cpu_count() or 1, shared=True)
        print(f"{point.workers:7}  {point.slice:5g}  {point.rate:15.1f}  {simulated:16.1f}")
    grown = [Point(workers, length, simulate(costs, workers, length)) for length in LONG_SLICES for workers in WORKERS]
    print("\nSimulated, the scheduler on a machine of its own: share of the time in which devices measure")
    print("workers  " + "  ".join(f"{length:5g} s" for length in LONG_SLICES))
    for workers in WORKERS:
        shares = [point.rate * point.slice / workers for point in grown if point.workers == workers]
        print(f"{workers:7}  " + "  ".join(f"{share:7.1%}" for share in shares))
    durations = [(workers, data_set(costs, workers)) for workers in WORKERS if workers >= 8]
    print(f"\n{SUBJECTS:,} networks, in batches of {BATCH}:")
    for workers, took in durations:
        share = SUBJECTS / BATCH * BATCH_TIME / took / workers
        print(f"{workers:7} workers: {took / 3600:9.1f} h, of which they measure {share:6.1%}")
    print(f"\nThe real Registry with 1,000 workers: {registry_costs()}")
    draw(measured, grown, costs, durations, out)
    print(f"Wrote {out}")


BATCH_TIME = LOADING + ROUNDS * ROUND


def measure(seconds: float) -> tuple[Costs, list[Point]]:
    """Measure real farms."""
    points: list[Point] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        FarmOfProcesses(Path(folder)) as processes,
        processes.client() as client,
    ):
        for number in range(max(MEASURED)):
            processes.join(f"worker-{number}", partial(WaitingDevice, f"device-{number}"), check_every=1e6)
        processes.wait_for(max(MEASURED), client)
        beat = _idle(processes, seconds) / max(MEASURED) * heartbeat_interval(max(MEASURED))
        costs = _costs(processes, client, seconds, beat)
        for length, workers in itertools.product(SLICES, MEASURED):
            points.append(Point(workers, length, _rate(client, workers, length, seconds)))
    return costs, points


def _idle(processes: FarmOfProcesses, seconds: float) -> float:
    before = _cpu(processes.scheduler.pid)
    time.sleep(seconds)
    return (_cpu(processes.scheduler.pid) - before) / seconds


def _costs(processes: FarmOfProcesses, client: farm.Farm, seconds: float, beat: float) -> Costs:
    """Take the processor's time of every process while one campaign after another does jobs that take no time."""
    pids = {"scheduler": processes.scheduler.pid, "client": os.getpid(), "worker": processes.workers["worker-0"].pid}
    before = {name: _cpu(pid) for name, pid in pids.items()}
    begin = time.perf_counter()
    jobs, _ = _campaign(client, 0, 0.0, 2 * seconds)
    took = time.perf_counter() - begin
    spent = {name: _cpu(pid) - before[name] for name, pid in pids.items()}
    beats = max(MEASURED) / heartbeat_interval(max(MEASURED)) * took
    scheduler = (spent["scheduler"] - beat * beats) / jobs
    client_cost, worker = spent["client"] / jobs, spent["worker"] / jobs
    waiting = max(0.0, took / jobs - scheduler - client_cost - worker)
    return Costs(scheduler, client_cost, worker, waiting, beat)


def _rate(client: farm.Farm, workers: int, length: float, seconds: float) -> float:
    """Return how many jobs so many campaigns do in a second, each on a worker of its own."""
    rates = [0.0] * workers

    def run(number: int) -> None:
        jobs, took = _campaign(client, number, length, max(seconds, 8 * length))
        rates[number] = jobs / took

    threads = [threading.Thread(target=run, args=(number,)) for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(rates)


def _campaign(client: farm.Farm, number: int, length: float, seconds: float) -> tuple[int, float]:
    """Do jobs of a length for a while; return how many, and how long they took once the subject was loaded [s]."""
    jobs = 0
    with client.benches(f"device-{number}.fake.fp32.t1").open(Protocol(n_warmup=0)) as bench:
        bench.admit(Subject("wait", nn.Identity, (1, 4), specification={"seconds": length}))
        begin = time.perf_counter()
        while time.perf_counter() < begin + seconds:
            bench.visit(["wait"])
            jobs += 1
        return jobs, time.perf_counter() - begin


class WaitingDevice(FakeDevice):
    """A device whose networks take as long as they say, and no processor."""

    def prepare(self, subject: Subject, inputs: Any) -> Stage:
        """Return what waits."""
        stage = super().prepare(subject, inputs)
        seconds = float(subject.specification.get("seconds", 0.0))

        def run(value: Any) -> Any:
            time.sleep(seconds)
            return stage(value)

        return run


def _cpu(pid: int) -> float:
    """Return the processor's time of a process so far [s]."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Queue:
    """Processors that do one thing after another."""

    def __init__(self, processors: int) -> None:
        self._free = [0.0] * processors

    def done(self, arrives: float, takes: float) -> float:
        """Return when something is done that arrives at a moment, not before anything that arrived earlier."""
        end = max(arrives, heapq.heappop(self._free)) + takes
        heapq.heappush(self._free, end)
        return end


def simulate(
    costs: Costs, workers: int, length: float, *, cores: int = 1, shared: bool = False, jobs: int = 4000
) -> float:
    """Return how many jobs are done in a second where every worker has a campaign.

    Parameters
    ----------
    costs : Costs
        Of a job.
    workers : int
        How many there are.
    length : float
        How long every job measures [s].
    cores : int, default=1
        Processors of the machine on which the scheduler is.
    shared : bool, default=False
        Whether client and workers are on that machine as well; if so, the client is one process for all campaigns.
    jobs : int, default=4000
        How many are simulated.
    """
    registry, keys = _farm_of(workers)
    machine, scheduler = Queue(cores), Queue(1)
    # Heartbeats take their share of the scheduler from jobs.
    load = 1 - min(0.99, costs.beat * workers / heartbeat_interval(workers))

    def on_scheduler(now: float, takes: float) -> float:
        end = scheduler.done(now, takes / load)
        return max(end, machine.done(now, takes)) if shared else end

    def elsewhere(now: float, takes: float, own: Queue) -> float:
        end = own.done(now, takes)
        return max(end, machine.done(now, takes)) if shared else end

    clients = [Queue(1)] * workers if shared else [Queue(1) for _ in range(workers)]
    devices = [Queue(1) for _ in range(workers)]
    # Moment, campaign, stage: 0 the client asks, 1 the scheduler sends, 2 the worker measures, 3 the answer returns.
    events = [(number * length / workers, number, 0) for number in range(workers)]
    heapq.heapify(events)
    done, now = 0, 0.0
    warm, since = max(2 * workers, jobs // 10), 0.0
    while done < jobs + warm:
        now, number, stage = heapq.heappop(events)
        if stage == 0:
            then = elsewhere(now, costs.client, clients[number])
        elif stage == 1:
            assert registry.assign(str(number), "client", keys) is not None
            then = on_scheduler(now, costs.scheduler / 2)
        elif stage == 2:
            then = elsewhere(now, costs.worker, devices[number]) + length + costs.waiting
        else:
            then = on_scheduler(now, costs.scheduler / 2)
            done += 1
            since = now if done == warm else since
        heapq.heappush(events, (then, number, (stage + 1) % 4))
    return jobs / (now - since)


def data_set(costs: Costs, workers: int) -> float:
    """Return how long a million networks take [s]: every job of them is simulated where workers are most."""
    jobs = SUBJECTS // BATCH * (1 + ROUNDS)
    simulated = jobs if workers == max(WORKERS) else 4000
    return jobs / simulate(costs, workers, BATCH_TIME / (1 + ROUNDS), jobs=simulated)


def _farm_of(workers: int) -> tuple[farm.Registry, str]:
    registry = farm.Registry()
    platform = Platform("device", "fake")
    for number in range(workers):
        announcement = farm.Announcement(f"worker-{number}", platform, farm.Traits())
        # Judged against all twins only in `registry_costs`.
        registry.join(f"worker-{number}", announcement, {})
    return registry, farm.platform_key(platform)


def registry_costs() -> str:
    """Say what the registry of a real scheduler takes with 1,000 workers of one platform."""
    registry, key = _farm_of(1000)
    for number in range(1000):
        registry.assign(str(number), "client", key)
    assign = _time(lambda: registry.assign("7", "client", key))
    move = _time(lambda: (registry.release("7"), registry.assign("7", "client", key)))
    times = {"dense": 1e-3, "depthwise": 2e-3, "matrices": 1e-3}
    for number in range(1000):
        registry.check(f"worker-{number}", times)
    check = _time(lambda: registry.check("worker-7", times))
    return f"{1e6 * assign:.1f} us a job, {1e6 * move:.0f} us a new bench, {1e3 * check:.2f} ms a check of a worker"


def _time(what: Any, count: int = 200) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        what()
    return (time.perf_counter() - begin) / count


def draw(
    measured: Sequence[Point],
    grown: Sequence[Point],
    costs: Costs,
    durations: Sequence[tuple[int, float]],
    out: Path,
) -> None:
    """Draw jobs a second against workers, measured and simulated, and how long a million networks take."""
    capacity = 1 / costs.scheduler
    title = (
        f"One scheduler serves about {round(capacity, -1):.0f} jobs a second, however many workers there are\n"
        "Farms of up to 8 workers, measured, and of up to 1,000, simulated"
    )
    with picture(out, title, height=4.2) as figure:
        left, right = figure.subplots(1, 2)
        for length in LONG_SLICES:
            points = [point for point in grown if point.slice == length]
            places = [point.workers for point in points], [point.rate for point in points]
            left.plot(*places, label=f"slices of {length:g} s")
        left.axhline(capacity, color="0.5", linestyle="--", label="the scheduler's processor is busy")
        for length, marker in zip(SLICES, "osD", strict=True):
            points = [point for point in measured if point.slice == length]
            places = [point.workers for point in points], [point.rate for point in points]
            left.plot(*places, marker, color="black", mfc="none", label=f"measured, slices of {length:g} s")
        left.set(
            xscale="log", yscale="log", xlabel="workers", ylabel="jobs a second", title="What the scheduler can do"
        )
        figure.legend(loc="outside lower center", ncols=3)
        right.plot([workers for workers, _ in durations], [seconds / 86400 for _, seconds in durations], "o-")
        ideal = SUBJECTS / BATCH * BATCH_TIME / 86400
        right.plot(
            [workers for workers, _ in durations], [ideal / workers for workers, _ in durations], "--", color="0.5"
        )
        right.set(xscale="log", yscale="log", xlabel="workers", ylabel="days", title="A million networks")
        right.annotate("dashed: a farm that costs nothing", (0.05, 0.06), xycoords="axes fraction")
        for axis in (left.xaxis, left.yaxis, right.xaxis, right.yaxis):
            axis.set_major_formatter("{x:g}")


if __name__ == "__main__":
    main()
