"""Files of JSON lines: durable, and whole again wherever they were cut."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nni_latency.errors import FileFormatError, OutputError
from nni_latency.json_lines import JournalFile, append_lines, whole_part

HEADER = {"format": "test", "version": 1, "shape": (1, 2)}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture
def journal(tmp_path):
    made = JournalFile(tmp_path / "j.jsonl", HEADER)
    made.start()
    return made


def _cut(path: Path, share: float) -> int:
    """Cut a file anywhere, and return how many lines are whole."""
    end = round(path.stat().st_size * share)
    os.truncate(path, end)
    return path.read_bytes().count(b"\n")


@given(values=st.lists(JSON, max_size=5), more=st.lists(JSON, max_size=2), share=st.floats(0, 1))
def test_lines_cut_at_any_byte_are_whole_again(values, more, share):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "lines")
        append_lines(path, values, what="memo")
        whole = _cut(path, share)
        kept = whole_part(path.read_bytes())
        append_lines(path, more, what="memo", after=len(kept))
        append_lines(path.with_name("other"), [*values[:whole], *more], what="memo")
        assert path.read_bytes() == path.with_name("other").read_bytes()


@given(lines=st.lists(st.dictionaries(st.text(), JSON, max_size=3), max_size=5), share=st.floats(0, 1))
def test_journal_cut_at_any_byte_goes_on_with_its_whole_lines(lines, share):
    with tempfile.TemporaryDirectory() as folder:
        journal = JournalFile(Path(folder, "j.jsonl"), HEADER)
        journal.start()
        for line in lines:
            journal.append_line(line)
        whole = _cut(journal.path, share)
        assert journal.exists() is (whole > 0)
        if not journal.exists():
            return
        assert journal.read_lines() == (journal.header, lines[: whole - 1])
        journal.drop_cut_line()
        journal.append_line({"more": 1})
        assert journal.read_lines()[1] == [*lines[: whole - 1], {"more": 1}]


def test_header_is_as_it_is_read_again(journal):
    assert journal.header == {"format": "test", "version": 1, "shape": [1, 2]}
    assert journal.read_lines() == (journal.header, [])


def test_start_discards_what_was_there(journal):
    journal.append_line({"a": 1})
    journal.start()
    assert journal.read_lines()[1] == []


@pytest.mark.parametrize("line", ["", "{", "[" * 100_000, "nan", b"\xff\xfe"], ids=range(5))
def test_line_that_is_no_json_is_passed_over(journal, line):
    with journal.path.open("ab") as file:
        file.write((line if isinstance(line, bytes) else line.encode()) + b"\n")
    journal.append_line({"a": 1})
    assert journal.read_lines()[1] == [{"a": 1}]


@pytest.mark.parametrize(
    "first", ["", "3", "[]", "letter", "{}", '{"format":"test"}', '{"format":"test","version":2}', '{"version":1}']
)
def test_journal_with_another_header_is_refused_with_the_remedy(journal, first):
    journal.path.write_text(first + "\n")
    with pytest.raises(FileFormatError, match=r"j\.jsonl' is not a journal that this version.*Start over with --no"):
        journal.read_lines()
    assert journal.path.read_text() == first + "\n"


def test_dropping_a_cut_line_leaves_a_whole_file_alone(journal):
    before = journal.path.read_bytes()
    journal.drop_cut_line()
    assert journal.path.read_bytes() == before


@pytest.mark.parametrize(("age", "left_behind"), [(-1, False), (0, True), (1, True)])
def test_journal_older_than_the_result_was_left_behind(journal, age, left_behind):
    result = journal.path.with_name("result.json")
    assert not journal.is_left_behind(result)
    result.touch()
    written = journal.path.stat().st_mtime_ns + age * 10**9
    os.utime(result, ns=(written, written))
    assert journal.is_left_behind(result) is left_behind
    journal.remove()
    assert not journal.is_left_behind(result)


def test_journal_can_be_removed_twice(journal):
    journal.remove()
    journal.remove()
    assert not journal.exists()


def test_numbers_that_json_has_no_word_for_are_refused(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        append_lines(tmp_path / "lines", [float("nan")], what="memo")
    assert not (tmp_path / "lines").exists()


def test_every_append_reaches_the_disk(tmp_path, monkeypatch):
    sizes, synchronise = [], os.fsync

    def watched(descriptor):
        synchronise(descriptor)
        sizes.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fsync", watched)
    append_lines(tmp_path / "lines", [1, 2], what="memo")
    append_lines(tmp_path / "lines", [3], what="memo")
    assert sizes == [4, 6]


def test_full_disk_names_the_file_and_what_is_kept(tmp_path, monkeypatch):
    def full(_descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"^Cannot write the memo '.*lines': No space left.* before is kept"):
        append_lines(tmp_path / "lines", [1], what="memo")
