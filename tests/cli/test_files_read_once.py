# SPDX-License-Identifier: Apache-2.0
"""A file is opened once and parsed once, whether the library, an estimator or a command loads it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from written_files import KEPT, WRITTEN, write_files

from nni_latency.documents import SavedFile, load
from nni_latency.errors import FileFormatError
from nni_latency.loading import load_estimator, load_table

_opened: Counter[str] = Counter()


def _count(event, arguments):
    if event == "open" and isinstance(arguments[0], str | Path):
        _opened[str(Path(arguments[0]).absolute())] += 1


# A hook of this kind stays until the process ends.
sys.addaudithook(_count)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a file of every kind, by its format."""
    return write_files(tmp_path_factory.mktemp("files"))


@pytest.fixture
def parsed(monkeypatch):
    """Return the lengths of what is parsed as JSON."""
    lengths, loads = [], json.loads

    def counting(text, **how):
        lengths.append(len(text))
        return loads(text, **how)

    monkeypatch.setattr(json, "loads", counting)
    return lengths


def _check(files, name, parsed, use):
    path = Path(files[name]).absolute()
    _opened.clear()
    use(path)
    assert _opened[str(path)] == 1
    # What is checked is parsed where it is checked, by pydantic.
    assert len(content := path.read_bytes()) not in parsed or content.startswith(b"PK")


@pytest.mark.parametrize("name", [*KEPT, *WRITTEN])
def test_a_file_of_any_kind_is_loaded_at_one_reading(files, name, parsed):
    _check(files, name, parsed, load)


@pytest.mark.parametrize(
    "name",
    [f"nni_latency.{kind}" for kind in ("lookup_table", "acts", "transfer", "energy")],
)
def test_an_estimator_is_made_of_a_file_at_one_reading(files, name, parsed):
    _check(files, name, parsed, load_estimator)


def test_a_table_and_what_is_shown_are_loaded_at_one_reading(files, parsed, run):
    _check(files, "nni_latency.lookup_table", parsed, load_table)
    parsed.clear()
    for name in ("nni_latency.lookup_table", "nni_latency.networks", "nni_latency.kernels"):
        _check(files, name, parsed, lambda path: run("show", path))


def test_a_file_that_was_read_may_go(files, tmp_path):
    path = tmp_path / "table.json"
    path.write_bytes(Path(files["nni_latency.lookup_table"]).read_bytes())
    file = SavedFile(path)
    assert file.kind == "nni_latency.lookup_table"
    path.unlink()
    assert load(file) == load(files["nni_latency.lookup_table"])


def test_a_file_of_another_kind_than_expected_is_refused_as_the_first(files):
    with pytest.raises(FileFormatError, match=r"is not a lookup table: its format must be"):
        load(files["nni_latency.validation"], ["nni_latency.lookup_table", "nni_latency.acts"])


@pytest.mark.parametrize("content", [b"", b"\x80\x04", b"PK\x03\x04 and no more", b"[1, 2]", b'{"a": 1}', b"8 bytes.{"])
def test_a_file_that_says_no_kind_is_refused(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    assert SavedFile(tmp_path / "file").kind == ""
    with pytest.raises(
        FileFormatError, match=r"'.*file' is not a file of nni_latency: it does not say what it holds\."
    ):
        load(tmp_path / "file")
