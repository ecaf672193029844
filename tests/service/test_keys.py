# SPDX-License-Identifier: Apache-2.0
"""Files of keys that several processes change at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nni_latency_service import ApiKeys

from nni_latency.errors import FileFormatError, InvalidValueError

_ADD = """
import sys
from nni_latency_service import ApiKeys

print("ready", flush=True)
sys.stdin.readline()
for number in range(20):
    with ApiKeys.changing(sys.argv[1], create=True) as keys:
        keys.add(f"{sys.argv[2]}-{number}", "read")
"""


def test_keys_that_several_processes_add_at_once_are_all_kept(tmp_path):
    path = tmp_path / "keys.json"
    command = [sys.executable, "-c", _ADD, str(path)]
    processes = [
        subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for name in "abc"
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sorted(key.name for key in ApiKeys.load(path)) == sorted(f"{a}-{n}" for a in "abc" for n in range(20))
    assert path.stat().st_mode & 0o777 == 0o600


def test_keys_are_at_no_moment_readable_by_others(tmp_path, monkeypatch):
    path, modes = tmp_path / "keys.json", []

    def replace(made, target):
        modes.append(made.stat().st_mode & 0o777)
        made.rename(target)
        modes.append(target.stat().st_mode & 0o777)

    monkeypatch.setattr(Path, "replace", replace)
    with ApiKeys.changing(path, create=True) as keys:
        keys.add("a", "read")
    assert modes == [0o600, 0o600]


def test_change_that_fails_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "keys.json"
    with ApiKeys.changing(path, create=True) as keys:
        keys.add("a", "read")
    before = path.read_bytes()
    with pytest.raises(InvalidValueError, match="must be new"), ApiKeys.changing(path) as keys:
        keys.remove("a")
        keys.add("", "read")
    assert path.read_bytes() == before


def test_file_that_does_not_exist_is_made_only_where_that_is_asked(tmp_path):
    with pytest.raises(FileFormatError, match="No such file"), ApiKeys.changing(tmp_path / "none.json"):
        pass
    assert not (tmp_path / "none.json").exists()


def test_whatever_keys_are_saved_are_loaded_and_equal(tmp_path):
    names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(str.strip)

    @given(st.dictionaries(names, st.sampled_from(["read", "measure", "admin"]), max_size=3))
    def check(roles):
        keys = ApiKeys([])
        for name, role in roles.items():
            keys.add(name, role)
        keys.save(tmp_path / "keys.json")
        assert list(ApiKeys.load(tmp_path / "keys.json")) == list(keys)

    check()


def test_half_of_a_character_in_a_name_is_refused_before_a_file_is_written(tmp_path):
    keys = ApiKeys([])
    keys.add("name\ud800", "read")
    with pytest.raises(InvalidValueError, match="a text has half of a character"):
        keys.save(tmp_path / "keys.json")
    assert not (tmp_path / "keys.json").exists()
