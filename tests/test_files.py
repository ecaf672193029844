# SPDX-License-Identifier: Apache-2.0
"""Whole files or none, and locks that die with their process."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nni_latency.errors import BusyError, OutputError
from nni_latency.files import (
    cache_folder,
    check_writable,
    locked,
    make_private,
    remove,
    replacing,
    reserved,
    write_atomically,
)


def test_write_atomically_writes_text_as_utf8(tmp_path):
    write_atomically(tmp_path / "a.json", "µs\n")
    assert (tmp_path / "a.json").read_bytes() == "µs\n".encode()


def test_write_atomically_makes_the_folder(tmp_path):
    write_atomically(tmp_path / "new" / "deep" / "a.bin", b"\x00")
    assert (tmp_path / "new" / "deep" / "a.bin").read_bytes() == b"\x00"


def test_write_atomically_leaves_nothing_else_behind(tmp_path):
    write_atomically(tmp_path / "a.json", "1")
    write_atomically(tmp_path / "a.json", "2")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_write_atomically_gives_the_usual_permissions(tmp_path):
    (tmp_path / "plain").touch()
    write_atomically(tmp_path / "a.json", "1")
    assert (tmp_path / "a.json").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_write_atomically_gives_the_permissions_that_are_asked_for_from_the_start(tmp_path, monkeypatch):
    modes = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: modes.append(os.fstat(descriptor).st_mode & 0o777))
    (tmp_path / "a.json").touch(0o644)
    write_atomically(tmp_path / "a.json", "1", 0o600)
    assert [*modes, (tmp_path / "a.json").stat().st_mode & 0o777] == [0o600, 0o600]


def test_write_atomically_follows_a_link(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.json").symlink_to(Path("folder") / "real.json")
    for text in ("1", "2"):
        write_atomically(tmp_path / "link.json", text)
        assert (tmp_path / "folder" / "real.json").read_text() == text
    assert (tmp_path / "link.json").is_symlink()
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["real.json"]


def test_what_replaces_the_file_that_is_written_gets_the_usual_permissions(tmp_path):
    (tmp_path / "plain").touch()
    (tmp_path / "private").touch(mode=0o600)
    with replacing(tmp_path / "a.bin") as temporary:
        (tmp_path / "private").replace(temporary)
    assert (tmp_path / "a.bin").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_the_folder_of_a_link_is_the_one_that_is_checked_and_made(tmp_path):
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "new" / "real.json")
    check_writable(link)
    write_atomically(link, "1")
    assert (tmp_path / "new" / "real.json").read_text() == "1"
    (tmp_path / "file").touch()
    link.unlink()
    link.symlink_to(tmp_path / "file" / "real.json")
    with pytest.raises(OutputError, match=r"link\.json"):
        check_writable(link)


def test_write_atomically_leaves_the_umask_alone(tmp_path, monkeypatch):
    """It is that of the whole process: files that other threads make meanwhile would be anybody's to write."""

    def fail(mask: int) -> int:
        raise AssertionError(mask)

    monkeypatch.setattr(os, "umask", fail)
    write_atomically(tmp_path / "a.json", "1")


def test_write_atomically_keeps_the_old_file_when_the_disk_is_full(tmp_path, monkeypatch):
    target = tmp_path / "a.json"
    target.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"a\.json.*No space left on device"):
        write_atomically(target, "new")
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_write_atomically_refuses_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"Cannot write"):
        write_atomically(tmp_path / "file" / "a.json", "1")


def test_remove_removes_a_file_and_what_was_left_of_it_beside_what_a_link_leads_to(tmp_path):
    folder, link = tmp_path / "folder", tmp_path / "link[1].json"
    folder.mkdir()
    link.symlink_to(folder / "real[1].json")
    with replacing(link) as temporary:
        temporary.with_name(f"{temporary.name[:-8]}0123abcd").touch()
    others = [folder / name for name in (".real[1].json.lock", ".real1.json.0123abcd", "real[1].json.0123abcd")]
    for other in others:
        other.touch()
    for _ in range(2):
        remove(link)
        assert sorted(folder.iterdir()) == sorted(others)
    assert link.is_symlink()


def test_remove_takes_what_is_not_there(tmp_path):
    remove(tmp_path / "none" / "a.json")
    assert list(tmp_path.iterdir()) == []


def test_check_writable_leaves_no_trace(tmp_path):
    check_writable(tmp_path / "a.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["n" * 300, "n" * 250, f"{'n' * 300}/a.json"])
def test_check_writable_refuses_a_name_that_is_too_long(tmp_path, name):
    with pytest.raises(OutputError, match=r"Cannot write '.*': File name too long\."):
        check_writable(tmp_path / name)


def test_check_writable_refuses_a_folder(tmp_path):
    with pytest.raises(OutputError, match=r"it is a folder; name a file in it"):
        check_writable(tmp_path)


def test_check_writable_refuses_a_path_below_a_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"Cannot write"):
        check_writable(tmp_path / "file" / "a.json")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder in which nobody can write, /proc")
def test_check_writable_refuses_a_folder_that_takes_no_files():
    with pytest.raises(OutputError, match=r"Cannot write"):
        check_writable(Path("/proc/self/table.json"))


def test_check_writable_refuses_a_read_only_file(tmp_path, monkeypatch):
    target = tmp_path / "a.json"
    target.touch()
    # The superuser may write anything, so the answer of the operating system is given here.
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    with pytest.raises(OutputError, match=r"the file is read-only"):
        check_writable(target)


def test_locked_refuses_a_second_holder(tmp_path):
    with (
        locked(tmp_path / "lock", "building 'x'"),
        pytest.raises(BusyError, match=r"Another process is building 'x'"),
        locked(tmp_path / "lock", "building 'x'"),
    ):
        pass


def test_locked_lets_go_at_the_end(tmp_path):
    with locked(tmp_path / "lock", "at work"):
        pass
    with locked(tmp_path / "lock", "at work"):
        assert (tmp_path / "lock").exists()


def test_locked_leaves_no_file(tmp_path):
    with locked(tmp_path / "lock", "at work"):
        pass
    assert not list(tmp_path.iterdir())


def test_locked_lets_one_process_in_at_a_time(tmp_path):
    code = (
        "import sys; from pathlib import Path; from nni_latency.files import locked\n"
        "folder = Path(sys.argv[1]); count = folder / 'count'\n"
        "for _ in range(200):\n"
        "    with locked(folder / 'lock', 'counting', wait=60):\n"
        "        count.write_text(str(int(count.read_text()) + 1))"
    )
    (tmp_path / "count").write_text("0")
    command = [sys.executable, "-c", code, str(tmp_path)]
    processes = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    assert (tmp_path / "count").read_text() == "800"


def test_locked_lets_go_after_an_error(tmp_path):
    with pytest.raises(KeyError, match=r"stop"), locked(tmp_path / "lock", "at work"):
        raise KeyError("stop")
    with locked(tmp_path / "lock", "at work"):
        assert (tmp_path / "lock").exists()


def test_locked_lets_go_when_the_process_is_killed(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from nni_latency.files import locked\n"
        "with locked(Path(sys.argv[1]), 'at work'):\n    print('held', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(BusyError, match=r"Another process is at work"), locked(tmp_path / "lock", "at work"):
            pass
        process.kill()
        process.wait()
    with locked(tmp_path / "lock", "at work"):
        assert (tmp_path / "lock").exists()


def test_locked_needs_a_folder(tmp_path):
    with pytest.raises(OutputError, match=r"Cannot write"), locked(tmp_path / "nowhere" / "lock", "at work"):
        pass


def test_locked_waits_for_another_holder(tmp_path):
    held = locked(tmp_path / "lock", "at work")
    held.__enter__()
    let_go = threading.Event()

    def let_it_go():
        let_go.set()
        held.__exit__(None, None, None)

    timer = threading.Timer(0.1, let_it_go)
    timer.start()
    with locked(tmp_path / "lock", "at work", wait=60.0):
        assert let_go.is_set()
    timer.join()
    with (
        locked(tmp_path / "lock", "at work"),
        pytest.raises(BusyError, match=r"Another process is at work"),
        locked(tmp_path / "lock", "at work", wait=0.1),
    ):
        pass


def test_reserved_keeps_a_second_process_away_from_a_file(tmp_path):
    target = tmp_path / "new" / "t.json"
    with (
        reserved(target, "building"),
        pytest.raises(BusyError, match=r"Another process is building '.*t\.json'\."),
        reserved(target, "building"),
    ):
        pass
    assert not list(target.parent.iterdir())


def test_reserved_refuses_what_can_not_be_written(tmp_path):
    with pytest.raises(OutputError, match=r"it is a folder"), reserved(tmp_path, "building"):
        pass


def test_cache_folder_is_named_or_the_users_own(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == tmp_path / ".cache" / "nni_latency"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cache_folder() == tmp_path / "cache" / "nni_latency"
    monkeypatch.setenv("NNI_LATENCY_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"


def test_make_private_makes_a_folder_for_its_owner_alone(tmp_path):
    assert make_private(tmp_path / "a" / "b")
    assert make_private(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_make_private_refuses_what_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    assert not make_private(tmp_path / "file" / "folder")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("given", ["a", "a/b"])
def test_make_private_refuses_the_folder_of_another_user(tmp_path, given):
    (tmp_path / "a" / "b").mkdir(parents=True, mode=0o700)
    os.chown(tmp_path / given, 12345, -1)
    assert not make_private(tmp_path / "a" / "b")
