# SPDX-License-Identifier: Apache-2.0
"""A bench on devices that come and go: contract, slices, and that no record is lost or doubled."""

from __future__ import annotations

import random
from functools import partial

import pytest
from farms import FarmOfDevices
from hypothesis import given, settings
from hypothesis import strategies as st
from nni_latency_farm import BenchPlace, Device, Job
from torch import nn

from nni_latency.errors import MeasurementError
from nni_latency.measurement import (
    Campaign,
    CampaignHeader,
    CandidateError,
    LocalBenches,
    MemoryStore,
    NetworkSchedule,
    Protocol,
    Record,
    Subject,
    WorkerDiedError,
    pack_subject,
)
from nni_latency.measurement.meters import ConstantMeter
from nni_latency.testing import FakeClock, FakeDevice, FakeMeter, check_bench, check_schedule

_PROTOCOL = Protocol(n_warmup=0, rounds=4, time_budget=1e9, max_measure_execution_time=1e9, half_width=0.0)
_NETWORKS = [Subject(f"linear {size}", partial(nn.Linear, size, 4), (1, size)) for size in range(1, 7)]


def broken():
    raise RuntimeError("it is broken")


def farm_of(count=2, dies=lambda _address, _job: "", **options):
    made = FarmOfDevices(dies)
    for number in range(count):
        made.join(f"worker-{number}", FakeDevice(**options))
    return made


def schedule():
    return NetworkSchedule(_NETWORKS[1:], _PROTOCOL, always=_NETWORKS[:1])


def measured(benches):
    """Return what a campaign measures, less what depends on the time."""
    store, plan = MemoryStore(), schedule()
    with store.campaign(CampaignHeader(plan.kind, {}, benches.platform, plan.protocol)) as log:
        Campaign(plan, benches, log, clock=lambda: 0.0).run()
    (stored,) = store.campaigns()
    return [Record.of({**record.content(), "at": 0.0, "duration": 0.0}) for record in stored.records], stored


def test_bench_passes_the_suite_of_local_ones():
    subjects = [Subject("a", nn.ReLU, (1, 8)), Subject("b", nn.Sigmoid, (1, 8))]
    check_bench(farm_of().benches().open(Protocol()), subjects, Subject("c", broken, (1, 8)))


def test_schedule_passes_its_suite_on_a_farm():
    check_schedule(schedule, farm_of(1).benches())


def test_a_campaign_measures_on_a_farm_what_it_measures_here():
    there, _ = measured(farm_of().benches())
    here, _ = measured(LocalBenches(FakeDevice()))
    assert there == here


@pytest.mark.slow
@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), often=st.floats(0.0, 0.3))
def test_no_record_is_lost_or_doubled_whoever_dies(seed, often):
    chance = random.Random(seed)

    def dies(address, job):
        # Not the same network five times in a row: that one would be to blame.
        return chance.choice(["before", "after", "left"]) if chance.random() < often and safe(job) else ""

    deaths = {}

    def safe(job):
        deaths[job.asked[:1]] = deaths.get(job.asked[:1], 0) + 1
        return deaths[job.asked[:1]] % 3

    there, stored = measured(farm_of(3, dies).benches())
    here, _ = measured(LocalBenches(FakeDevice()))
    assert there == here
    assert not stored.failures


def test_a_network_that_takes_five_workers_with_it_is_to_blame():
    def dies(_address, job):
        return "before" if job.task == "visit" and "linear 3" in job.keys else ""

    made = farm_of(2, dies)
    with made.benches().open(_PROTOCOL) as bench:
        for subject in _NETWORKS:
            bench.admit(subject)
        visits = bench.visit_all([((subject.key,), False) for subject in _NETWORKS])
        assert [len(next(visits).visit.whole) for _ in range(2)] == [1, 1]
        with pytest.raises(WorkerDiedError, match="5 workers died while they measured it"):
            next(visits)


def test_a_round_is_one_job():
    made = farm_of(1)
    with made.benches().open(_PROTOCOL) as bench:
        for subject in _NETWORKS:
            bench.admit(subject)
        made.jobs.clear()
        assert len(list(bench.visit_all([((subject.key,), False) for subject in _NETWORKS]))) == 6
    assert [job.task for _, job in made.jobs] == ["visit", "close"]


def test_a_job_ends_after_its_time_and_the_rest_is_the_next_one():
    device = Device(FakeDevice(), "slow", ())
    job = Job(
        BenchPlace("bench", _PROTOCOL),
        "visit",
        tuple(((subject.key,), False) for subject in _NETWORKS),
        {subject.key: pack_subject(subject) for subject in _NETWORKS},
        limit=0.0,
    )
    assert len(device.run(job).visits) == 1


def test_subjects_travel_once_as_long_as_the_worker_stays():
    made = farm_of(1)
    with made.benches().open(_PROTOCOL) as bench:
        bench.admit(_NETWORKS[0])
        for _ in range(3):
            bench.visit([_NETWORKS[0].key])
    assert [len(job.subjects) for _, job in made.jobs] == [1, 0, 0, 0, 0]


def test_a_worker_that_has_closed_the_bench_gets_the_subjects_again():
    made = farm_of(1)
    with made.benches().open(_PROTOCOL) as bench:
        bench.admit(_NETWORKS[0])
        made.devices["worker-0"].close()
        assert bench.visit([_NETWORKS[0].key]).whole


def test_a_device_keeps_few_benches_open():
    made = farm_of(1)
    benches = [made.benches().open(_PROTOCOL) for _ in range(10)]
    for bench in benches:
        bench.__enter__()
        bench.admit(_NETWORKS[0])
    assert len(made.devices["worker-0"]._open) == 4
    assert all(bench.visit([_NETWORKS[0].key]).whole for bench in benches)


def test_the_worker_that_took_a_record_is_noted():
    made = farm_of(2)
    _, stored = measured(made.benches())
    assert stored.conditions["worker from record 0"] == {"worker": "worker-0"}


def test_a_bench_that_moves_is_noted():
    visits = []

    def dies(address, job):
        visits.append(job.task)
        return "left" if visits.count("visit") == 4 and job.task == "visit" else ""

    _, stored = measured(farm_of(2, dies).benches())
    workers = {moment: content["worker"] for moment, content in stored.conditions.items() if "worker" in moment}
    first, second = workers
    assert (first, workers[first], workers[second]) == ("worker from record 0", "worker-0", "worker-1")


def test_a_subject_that_fails_is_named_by_the_worker():
    with farm_of(1).benches().open(_PROTOCOL) as bench:
        with pytest.raises(CandidateError, match="RuntimeError: it is broken"):
            bench.admit(Subject("broken", broken, (1, 8)))
        bench.admit(_NETWORKS[0])
        assert bench.visit([_NETWORKS[0].key]).whole


def test_meters_of_this_machine_are_refused():
    from nni_latency_farm import FarmRuntime

    made = farm_of(1)
    runtime = FarmRuntime(made, made.devices["worker-0"].announcement())
    with pytest.raises(MeasurementError, match="reads this machine, and the farm measures on others"):
        runtime.benches((FakeMeter(FakeClock()),))
    with pytest.raises(MeasurementError, match="is a platform of a farm: networks run there"):
        runtime.inputs((1, 3))


def _metered(**meters):
    """Return a farm of one device with meters that read its clock, and its runtime as clients see it."""
    from nni_latency_farm import FarmRuntime

    made, device = FarmOfDevices(), FakeDevice()
    made.join("worker", device, {name: FakeMeter(device.clock, watts) for name, watts in meters.items()})
    return made, FarmRuntime(made, made.devices["worker"].announcement())


def _visit(runtime, meter):
    with runtime.benches((meter,)).open(_PROTOCOL) as bench:
        bench.admit(_NETWORKS[0])
        return bench.visit([_NETWORKS[0].key])


def test_meters_of_the_workers_are_read_there():
    made, runtime = _metered(rapl=10.0, other=20.0)
    assert (runtime.meter().description, runtime.meter().metric) == ("rapl", "energy")
    for meter, watts in ((runtime.meter(), 10.0), (runtime.meter("other"), 20.0)):
        visit = _visit(runtime, meter)
        assert visit.samples["energy"][0] == pytest.approx(watts * visit.whole[0])
        assert runtime.benches((meter,)).conditions().meter == made.devices["worker"].meters[meter.name].description
    with pytest.raises(MeasurementError, match="The meter 'rapl' is one of a farm: it is read there"):
        runtime.meter().start()


def test_an_assumed_power_needs_no_meter_there():
    _, runtime = _metered()
    assert _visit(runtime, ConstantMeter(5)).samples["energy"][0] > 0
    assert runtime.benches((ConstantMeter(5),)).conditions().meter_assumption == "a constant power of 5 W"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", r"The workers of fake-device.fake.fp32.t1 read no energy\. They read: nothing\. A power can be assumed"),
        ("rapl", r"The workers of fake-device.fake.fp32.t1 cannot read 'rapl'\. They read: nothing\."),
    ],
)
def test_a_meter_that_the_workers_lack_is_said(name, said):
    with pytest.raises(MeasurementError, match=said):
        _metered()[1].meter(name)


def test_a_worker_that_lacks_a_meter_says_so():
    made, runtime = _metered(rapl=10.0)
    made.devices["worker"].meters.clear()
    with pytest.raises(MeasurementError, match="The worker worker of the farm cannot read 'rapl'"):
        _visit(runtime, runtime.meter())
    with pytest.raises(MeasurementError, match="The worker worker of the farm cannot read 'rapl'"):
        runtime.benches((runtime.meter(),)).conditions()


def test_reference_networks_tell_the_speed_of_a_device():
    from nni_latency_farm import reference_subjects

    slow, fast = (Device(FakeDevice(speed=speed), "device", reference_subjects()).check() for speed in (1.0, 4.0))
    assert set(slow) == {"reference operator", "dense", "depthwise", "matrices"}
    assert slow["dense"] == 4 * fast["dense"]
