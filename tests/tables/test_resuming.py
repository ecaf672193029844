# SPDX-License-Identifier: Apache-2.0
"""Builds that are stopped at any moment and go on."""

from __future__ import annotations

import dataclasses
import errno
import math
import os
import signal
import subprocess
import sys

import pytest
from building import (
    LATENCIES,
    PROTOCOL,
    Noise,
    Stopped,
    build,
    interrupt,
    make_plan,
    rounds_of,
    same,
    store_of,
    values,
)

from nni_latency.database import open_store
from nni_latency.errors import InvalidValueError, MeasurementError, OutputError
from nni_latency.files import reserved
from nni_latency.measurement import Protocol
from nni_latency.measurement.runtimes import TorchEager
from nni_latency.platforms import Platform
from nni_latency.spaces import FBNetSpace
from nni_latency.tables import LookupTable, build_table
from nni_latency.testing import FakeRuntime, fake_plan


def test_first_round_after_resuming_does_not_count_either(tmp_path):
    """A build that goes on does so in a new process, which is as cold as the first."""
    largest = dataclasses.replace(PROTOCOL, statistic=0.999, outlier=0)
    interrupt(tmp_path / "t.json", rounds=5, protocol=largest)
    plan, latencies = make_plan()
    cold = iter([50.0] * (3 * len(plan.layers) * 2))
    runtime = FakeRuntime(latencies, noise=lambda: next(cold, 0.0))
    table = build_table(plan, runtime, largest, tmp_path / "t.json", store=store_of(tmp_path / "t.json"))
    assert values(table) == {layer: pytest.approx(costs) for layer, costs in LATENCIES.items()}


@pytest.mark.parametrize("rounds", [1, 3, 5])
def test_resumed_build_gives_the_table_of_an_uninterrupted_one(tmp_path, rounds):
    interrupt(tmp_path / "t.json", rounds=rounds)
    assert not (tmp_path / "t.json").exists()
    seen = []
    resumed = build(tmp_path / "t.json", on_progress=seen.append)
    assert [progress.resumed for progress in seen] == [rounds] * (6 - rounds)
    assert same(resumed, build(tmp_path / "whole.json"))


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """Count the runs of candidates until each round of an uninterrupted build ended."""
    noise, found = Noise(stop_after=10**6), []

    def count(_progress):
        found.append(10**6 - noise.left)

    build(tmp_path_factory.mktemp("whole") / "t.json", noise=noise, on_progress=count)
    return found


@pytest.mark.parametrize(("ended", "more"), [(0, 0), (0, 5), (0, 30), (1, -1), (1, 0), (1, 1), (2, 7), (5, -1), (5, 0)])
def test_stop_in_the_middle_of_a_round_loses_the_visit_in_flight_alone(tmp_path, ends, ended, more):
    runs = [0, *ends][ended] + more
    whole = sum(end <= runs for end in ends)
    path = tmp_path / "t.json"
    with pytest.raises(Stopped, match=r"stopped"):
        build(path, noise=Noise(stop_after=runs))
    networks = rounds_of(path) if list(store_of(path).campaigns()) else []
    assert len(networks) in (whole, whole + 1)
    seen = []
    table = build(path, noise=Noise(), on_progress=seen.append)
    assert seen[0].resumed == len(networks)
    assert table.rounds == 6
    assert rounds_of(path)[: len(networks)] == networks


def test_build_goes_on_after_two_interruptions(tmp_path):
    interrupt(tmp_path / "t.json", rounds=2)
    interrupt(tmp_path / "t.json", rounds=4)
    assert same(build(tmp_path / "t.json"), build(tmp_path / "whole.json"))


def test_fresh_build_starts_over(tmp_path):
    interrupt(tmp_path / "t.json", rounds=4)
    seen = []
    build(tmp_path / "t.json", fresh=True, on_progress=seen.append)
    assert [progress.resumed for progress in seen] == [0] * 6


def test_longer_budget_goes_on_with_the_rounds_that_are_there(tmp_path):
    interrupt(tmp_path / "t.json", rounds=4)
    seen = []
    longer = dataclasses.replace(PROTOCOL, rounds=9, time_budget=2e9)
    assert build(tmp_path / "t.json", protocol=longer, on_progress=seen.append).rounds == 9
    assert seen[0].resumed == 4


def test_budget_that_is_spent_already_finishes_at_once(tmp_path):
    interrupt(tmp_path / "t.json", rounds=4)
    shorter = dataclasses.replace(PROTOCOL, rounds=3)
    assert build(tmp_path / "t.json", protocol=shorter).rounds == 4


def test_clock_that_fails_spoils_no_record(tmp_path, ends):
    plan, latencies = make_plan()
    times = iter([0.0] * (ends[1] + 5))
    runtime = FakeRuntime(latencies, noise=lambda: next(times, math.inf))
    with pytest.raises(MeasurementError, match=r"The clock returned .*inf.*which are not valid times"):
        build_table(plan, runtime, PROTOCOL, tmp_path / "t.json", store=store_of(tmp_path / "t.json"))
    (campaign,) = store_of(tmp_path / "t.json").campaigns()
    assert all(math.isfinite(seconds) for record in campaign.records for seconds in record.whole)
    assert build(tmp_path / "t.json").rounds == 6


@pytest.mark.slow
def test_kill_9_loses_at_most_the_visit_in_flight(tmp_path):
    """A real process on real blocks, killed for good after two rounds; a second one finishes the table."""
    path = tmp_path / "t.json"
    code = (
        "import sys\n"
        "from nni_latency.measurement import Protocol\n"
        "from nni_latency.measurement.runtimes import TorchEager\n"
        "from nni_latency.spaces import FBNetSpace\n"
        "from nni_latency.tables import build_table\n"
        "plan = FBNetSpace(num_classes=4, input_size=16, width=0.5, depth=0.25).measure_plan()\n"
        "protocol = Protocol(rounds=int(sys.argv[2]), time_budget=1e6)\n"
        "build_table(plan, TorchEager(), protocol, sys.argv[1], on_progress=lambda p: print(p.rounds, flush=True))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path), "100000"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        seen = 0
        while seen < 2:
            seen = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        # What it printed before it died, it had measured.
        seen = max([seen, *map(int, process.stdout.read().split())])
        assert process.wait() == -signal.SIGKILL
    assert not path.exists()
    (campaign,) = open_store().campaigns()
    kept = len({record.round for record in campaign.records})
    assert kept >= seen
    progress = []
    plan = FBNetSpace(num_classes=4, input_size=16, width=0.5, depth=0.25).measure_plan()
    protocol = Protocol(rounds=kept + 1, time_budget=1e6)
    table = build_table(plan, TorchEager(), protocol, path, on_progress=progress.append)
    assert [step.resumed for step in progress] == [kept]
    assert LookupTable.load(path) == table
    assert (table.rounds, table.coverage) == (kept + 1, 1.0)


def test_builder_that_waited_for_another_does_not_replace_its_table(tmp_path, monkeypatch):
    """The other one may finish between the first look at the file and the lock."""
    path = tmp_path / "t.json"

    def late(target, doing):
        path.write_text("finished meanwhile")
        return reserved(target, doing)

    monkeypatch.setattr("nni_latency.tables._building.reserved", late)
    with pytest.raises(InvalidValueError, match=r"exists\. Choose another file"):
        build(path)
    assert path.read_text() == "finished meanwhile"


@pytest.mark.parametrize(
    "other",
    [
        {"protocol": dataclasses.replace(PROTOCOL, n_run=5)},
        {"protocol": dataclasses.replace(PROTOCOL, seed=3)},
        {"platform": Platform("pi", "fake")},
        {"platform": Platform("fake-device", "fake", facts={"runtime.version": "2"})},
    ],
)
def test_build_of_another_platform_or_protocol_never_mixes(tmp_path, other):
    """It is another campaign: what was measured for the first one stays, and is resumed later."""
    path = tmp_path / "t.json"
    interrupt(path, rounds=4)
    seen = []
    build(path, on_progress=seen.append, **other)
    assert seen[0].resumed == 0
    assert len(list(store_of(path).campaigns())) == 2
    build(path, on_progress=seen.append, overwrite=True)
    assert [progress.resumed for progress in seen[-2:]] == [4, 4]


def test_build_of_other_candidates_never_mixes(tmp_path):
    path, seen = tmp_path / "t.json", []
    interrupt(path, rounds=1)
    plan, latencies = fake_plan({**LATENCIES, "c": {"small": 1.0, "huge": 9.0}}, fixed=["stem"])
    build_table(plan, FakeRuntime(latencies), PROTOCOL, path, store=store_of(path), on_progress=seen.append)
    assert seen[0].resumed == 0


def test_finished_table_is_built_again_without_measuring(tmp_path):
    path, seen = tmp_path / "t.json", []
    table = build(path)
    again = build(path, overwrite=True, on_progress=seen.append)
    assert seen == []
    assert again == table


def test_full_disk_is_reported_and_nothing_is_lost(tmp_path, monkeypatch):
    path = tmp_path / "t.json"
    kept = []

    def full(log, record):
        if len(kept) == 7:
            raise OutputError(f"Cannot write the database: {os.strerror(errno.ENOSPC)}.")
        kept.append(record)
        log.records.append(record)

    with monkeypatch.context() as patch:
        patch.setattr("nni_latency.measurement._store._MemoryLog.append", full)
        with pytest.raises(OutputError, match=r"No space left on device"):
            build(path)
    (campaign,) = store_of(path).campaigns()
    assert list(campaign.records) == kept
    assert build(path).rounds == 6
