"""The journal of a build: a file that is only ever appended to, and may end anywhere."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from building import PROTOCOL, build, choice_runtime, interrupt, make_plan, same

from nni_latency.errors import FileFormatError, OutputError
from nni_latency.measurement import Visit
from nni_latency.tables import build_table, journal_path
from nni_latency.tables._journal import Failure, Journal, RoundRecord

_ROUND = RoundRecord(3, 0.125, ((0, 1), (2, 0)), (Visit(0.5, [[1.0, 2.0]], [3.0]), Visit(0.25, [], [4.0, 0.1])))
_FAILURE = Failure(1, 2, 'RuntimeError: "CUDA error"\nof é')


@pytest.fixture
def journal(tmp_path):
    made = Journal(tmp_path / "j.jsonl", {"space": {"name": "fake"}})
    made.start()
    return made


def test_rounds_and_failures_are_read_as_they_were_written(journal):
    for record in (_ROUND, _FAILURE, _ROUND):
        journal.append(record)
    header, rounds, failures = journal.read()
    assert header["space"] == {"name": "fake"}
    assert (rounds, failures) == ([_ROUND, _ROUND], [_FAILURE])


@pytest.mark.parametrize("record", [_ROUND, _FAILURE])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_cut_line_is_dropped(journal, record, share):
    journal.append(_ROUND)
    whole = journal.path.stat().st_size
    journal.append(record)
    size = journal.path.stat().st_size
    os.truncate(journal.path, whole + int((size - whole) * share))
    assert journal.read()[1:] == ([_ROUND], [])
    journal.drop_cut_line()
    assert journal.path.stat().st_size == whole
    journal.append(_FAILURE)
    assert journal.read()[1:] == ([_ROUND], [_FAILURE])


@pytest.mark.parametrize(
    "line", ["", "3", "null", "[]", '"text"', "{}", '{"index": 1}', '{"reason": "why"}', '{"index":1,"dura']
)
def test_line_that_is_no_record_is_passed_over(journal, line):
    with journal.path.open("a") as file:
        file.write(line + "\n")
    journal.append(_ROUND)
    assert journal.read()[1:] == ([_ROUND], [])


@pytest.mark.parametrize(
    ("key", "value"), [("version", 1), ("version", 3), ("version", "2"), ("version", None), ("format", "other")]
)
def test_journal_of_another_version_is_refused_with_the_remedy(tmp_path, key, value):
    """Rounds of the first version have no reference and no failures: they cannot be mixed with new ones."""
    out = tmp_path / "t.json"
    header, *lines = interrupt(out, rounds=2).splitlines()
    old = json.dumps({**json.loads(header), key: value}).encode()
    journal_path(out).write_bytes(b"\n".join([old, *lines, b""]))
    with pytest.raises(FileFormatError, match=r"is not a journal that this version can go on with.*--no-resume"):
        build(out)
    assert journal_path(out).read_bytes().startswith(old)


def test_remedy_for_a_journal_of_another_version_works(tmp_path):
    out = tmp_path / "t.json"
    journal_path(out).write_text('{"format": "nni_latency.journal", "version": 1}\n')
    assert same(build(out, resume=False), build(tmp_path / "whole.json"))


def _no_room(*_arguments, **_options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _fail_after(times, function, name=""):
    """Let a function fail as on a full disk, after so many calls for a file whose name ends like that."""
    left = [times]

    def call(*arguments, **options):
        if str(arguments[0]).endswith(name):
            left[0] -= 1
        return _no_room() if left[0] < 0 else function(*arguments, **options)

    return call


@pytest.mark.parametrize("rounds", [0, 1, 3])
@pytest.mark.parametrize("place", ["open", "fsync"])
def test_full_disk_in_the_middle_of_a_build_loses_nothing(tmp_path, monkeypatch, place, rounds):
    out = tmp_path / "t.json"
    with monkeypatch.context() as patch:
        # The header is one more line.
        if place == "open":
            patch.setattr(Path, "open", _fail_after(1 + rounds, Path.open, ".journal.jsonl"))
        else:
            patch.setattr("nni_latency.json_lines.os.fsync", _fail_after(1 + rounds, os.fsync))
        with pytest.raises(OutputError, match=r"journal .*No space left on device\. What was measured before is kept"):
            build(out)
    assert not out.exists()
    seen = []
    table = build(out, on_progress=seen.append)
    # What could be written before the system said that there is no room may count as well.
    assert seen[0].resumed in (rounds, rounds + 1)
    assert same(table, build(tmp_path / "whole.json"))


def test_full_disk_at_the_very_end_keeps_all_rounds(tmp_path, monkeypatch):
    out = tmp_path / "t.json"
    with monkeypatch.context() as patch:
        patch.setattr("nni_latency.files.os.fsync", _fail_after(0, os.fsync))
        patch.setattr(Journal, "append_line", _write_unsynchronised)
        patch.setattr(Journal, "start", lambda journal: _write_unsynchronised(journal, journal.header))
        with pytest.raises(OutputError, match=r"Cannot write .*t\.json.*No space left on device"):
            build(out)
    seen = []
    table = build(out, on_progress=seen.append)
    assert seen == []
    assert same(table, build(tmp_path / "whole.json"))


def _write_unsynchronised(self, content):
    with self.path.open("ab") as file:
        file.write(json.dumps(dict(content)).encode() + b"\n")


def test_failure_reaches_the_disk_at_once(tmp_path):
    out, plan_and_latencies = tmp_path / "t.json", make_plan()
    plan, latencies = plan_and_latencies
    held = []

    def trouble():
        raise ValueError("broken")

    runtime = choice_runtime(plan, latencies, {"b:y": trouble})
    build_table(plan, runtime, PROTOCOL, out, on_progress=lambda _progress: held.append(journal_path(out).read_text()))
    assert '{"layer":2,"choice":1,"reason":"ValueError: broken"}\n' in held[0]
