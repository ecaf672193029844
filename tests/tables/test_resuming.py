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
from building import LATENCIES, PROTOCOL, Noise, Stopped, build, interrupt, make_plan, same, values

from nni_latency.errors import InvalidValueError, MeasurementError, MismatchError, OutputError
from nni_latency.files import reserved
from nni_latency.measurement import Protocol
from nni_latency.measurement.runtimes import TorchEager
from nni_latency.platforms import Platform
from nni_latency.spaces import FBNetSpace
from nni_latency.tables import LookupTable, build_table, journal_path
from nni_latency.tables._journal import Journal
from nni_latency.testing import FakeRuntime, fake_plan


def test_first_round_after_resuming_does_not_count_either(tmp_path):
    """A build that goes on does so in a new process, which is as cold as the first."""
    largest = dataclasses.replace(PROTOCOL, statistic=0.999, outlier=0)
    interrupt(tmp_path / "t.json", rounds=5, protocol=largest)
    plan, latencies = make_plan()
    cold = iter([50.0] * (3 * len(plan.layers) * 2))
    runtime = FakeRuntime(latencies, noise=lambda: next(cold, 0.0))
    assert values(build_table(plan, runtime, largest, tmp_path / "t.json")) == LATENCIES


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
def test_stop_in_the_middle_of_a_round_loses_that_round_alone(tmp_path, ends, ended, more):
    runs = [0, *ends][ended] + more
    whole = sum(end <= runs for end in ends)
    with pytest.raises(Stopped, match=r"stopped"):
        build(tmp_path / "t.json", noise=Noise(stop_after=runs))
    assert journal_path(tmp_path / "t.json").read_bytes().count(b"\n") == 1 + whole
    seen = []
    table = build(tmp_path / "t.json", noise=Noise(), on_progress=seen.append)
    assert seen[0].resumed == whole
    assert table.rounds == 6


def test_journal_cut_in_its_last_line_loses_that_round_alone(tmp_path):
    path = tmp_path / "t.json"
    content = interrupt(path, rounds=4)
    last = content.rstrip(b"\n").rfind(b"\n") + 1
    journal_path(path).write_bytes(content[: last + (len(content) - last) // 2])
    seen = []
    table = build(path, on_progress=seen.append)
    assert [progress.resumed for progress in seen] == [3, 3, 3]
    assert same(table, build(tmp_path / "whole.json"))


def test_journal_cut_at_any_byte_goes_on(tmp_path):
    """Wherever a crash cuts the journal, header included, the same command builds the same table."""
    path = tmp_path / "t.json"
    content = interrupt(path, rounds=2)
    whole = build(tmp_path / "whole.json")
    for length in {0, 1, content.index(b"\n"), content.index(b"\n") + 1, len(content) // 2, len(content) - 1}:
        journal_path(path).write_bytes(content[:length])
        assert same(build(path, overwrite=True), whole)


def test_build_goes_on_after_two_interruptions(tmp_path):
    interrupt(tmp_path / "t.json", rounds=2)
    interrupt(tmp_path / "t.json", rounds=4)
    assert same(build(tmp_path / "t.json"), build(tmp_path / "whole.json"))


def test_resume_false_starts_over(tmp_path):
    interrupt(tmp_path / "t.json", rounds=4)
    seen = []
    build(tmp_path / "t.json", resume=False, on_progress=seen.append)
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


def test_clock_that_fails_spoils_no_journal(tmp_path, ends):
    plan, latencies = make_plan()
    times = iter([0.0] * (ends[1] + 5))
    runtime = FakeRuntime(latencies, noise=lambda: next(times, math.inf))
    with pytest.raises(MeasurementError, match=r"The clock gave .*inf.*which are no times"):
        build_table(plan, runtime, PROTOCOL, tmp_path / "t.json")
    assert journal_path(tmp_path / "t.json").read_bytes().count(b"\n") == 3
    assert same(build(tmp_path / "t.json"), build(tmp_path / "whole.json"))


def test_kill_9_loses_at_most_the_round_in_flight(tmp_path):
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
    kept = journal_path(path).read_bytes().count(b"\n") - 1
    assert kept >= seen
    progress = []
    plan = FBNetSpace(num_classes=4, input_size=16, width=0.5, depth=0.25).measure_plan()
    protocol = Protocol(rounds=kept + 1, time_budget=1e6)
    table = build_table(plan, TorchEager(), protocol, path, on_progress=progress.append)
    assert [step.resumed for step in progress] == [kept]
    assert LookupTable.load(path) == table
    assert (table.rounds, table.coverage) == (kept + 1, 1.0)
    assert not journal_path(path).exists()


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


def test_other_space_is_refused_and_both_are_named(tmp_path):
    interrupt(tmp_path / "t.json", rounds=1)
    plan, latencies = make_plan(width=2)
    with pytest.raises(MismatchError, match=r"two spaces.*'width': 2.*--no-resume") as info:
        build_table(plan, FakeRuntime(latencies), PROTOCOL, tmp_path / "t.json")
    assert "{'name': 'fake', 'arguments': {}}" in str(info.value)


def test_other_candidates_are_refused(tmp_path):
    interrupt(tmp_path / "t.json", rounds=1)
    plan, latencies = fake_plan({**LATENCIES, "c": {"small": 1.0, "huge": 9.0}}, fixed=["stem"])
    with pytest.raises(MismatchError, match=r"would mix two spaces"):
        build_table(plan, FakeRuntime(latencies), PROTOCOL, tmp_path / "t.json")


def test_other_platform_is_refused_and_both_are_named(tmp_path):
    interrupt(tmp_path / "t.json", rounds=1)
    with pytest.raises(MismatchError, match=r"id: fake-device\.fake\.fp32\.t1 against pi\.fake\.fp32\.t1"):
        build(tmp_path / "t.json", platform=Platform("pi", "fake"))


def test_other_protocol_is_refused_and_both_values_are_named(tmp_path):
    interrupt(tmp_path / "t.json", rounds=1)
    with pytest.raises(MismatchError, match=r"two protocols \(n_run: 1 against 5; seed: 0 against 3\)"):
        build(tmp_path / "t.json", protocol=dataclasses.replace(PROTOCOL, n_run=5, seed=3))


def test_refused_journal_stays_as_it_was(tmp_path):
    content = interrupt(tmp_path / "t.json", rounds=2)
    with pytest.raises(MismatchError, match=r"two protocols"):
        build(tmp_path / "t.json", protocol=dataclasses.replace(PROTOCOL, seed=3))
    assert journal_path(tmp_path / "t.json").read_bytes() == content


def test_full_disk_is_reported_and_nothing_is_lost(tmp_path, monkeypatch):
    path = tmp_path / "t.json"
    write, written = Journal.append_line, []

    def full(self, content):
        if len(written) == 2:
            # The system wrote what still had room and then gave up.
            with self.path.open("ab") as file:
                file.write(b'{"index":2,"dura')
            raise OutputError(f"Cannot write the journal {str(self.path)!r}: {os.strerror(errno.ENOSPC)}.")
        written.append(content)
        write(self, content)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append_line", full)
        with pytest.raises(OutputError, match=r"No space left on device"):
            build(path)
    seen = []
    table = build(path, on_progress=seen.append)
    assert seen[0].resumed == 2
    assert same(table, build(tmp_path / "whole.json"))
