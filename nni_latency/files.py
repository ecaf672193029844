# SPDX-License-Identifier: Apache-2.0
"""Whole files or none: writing that can be interrupted at any moment, locks that die with their process, the cache."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from nni_latency.errors import (
    BusyError,
    FileFormatError,
    InvalidValueError,
    LatencyError,
    MismatchError,
    MissingEntryError,
    OutputError,
    reason_of,
)

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

#: Names the folder of the cache, where it is not the user's own.
CACHE_VARIABLE = "NNI_LATENCY_CACHE"

#: Letters of what a parser says of a file at most.
_LONGEST_REASON = 300

#: How a file begins that Git has in place of a large one.
_POINTER = b"version https://git-lfs.github.com/spec/"

#: Permissions of a file that are not restricted, except by the umask.
_ANYBODY = 0o666

#: How often a lock is tried again while it is waited for [s].
_PATIENCE = 0.05


@contextlib.contextmanager
def readable(path: str | Path, what: str, error: type[LatencyError] = FileFormatError) -> Iterator[None]:
    """Turn whatever a parser raises about a file into one sentence that names the file.

    Errors of this package pass: they are sentences already. Of a Git LFS pointer nothing else is said.

    Parameters
    ----------
    path : str or Path
        The file, as it was named.
    what : str
        What it should be, with an article.
    error : type of LatencyError, default=FileFormatError
        What is raised.

    Raises
    ------
    LatencyError
        Of that type, if this is no path, or anything inside fails.

    Examples
    --------
    >>> with readable("table.json", "a lookup table"):
    ...     {}["entries"]
    Traceback (most recent call last):
    ...
    nni_latency.errors.FileFormatError: Cannot read 'table.json' as a lookup table: KeyError: 'entries'.
    """
    if not isinstance(path, (str, os.PathLike)):
        # Its content may be megabytes.
        raise error(
            f"{what[0].upper()}{what[1:]} is read by its path, but this is {type(path).__name__!r}. Save it to a file, "
            "and pass the path of that."
        )
    try:
        yield
    except Exception as cause:  # parsers raise anything about a damaged file
        if _is_pointer(path):
            raise error(f"{str(path)!r} is a Git LFS pointer, not the file itself. Run: git lfs pull") from cause
        if isinstance(cause, LatencyError):
            raise
        if isinstance(cause, OSError):
            raise error(f"Cannot read {str(path)!r}: {cause.strerror or cause}.") from cause
        reason = reason_of(cause)[:_LONGEST_REASON].rstrip(".")
        raise error(f"Cannot read {str(path)!r} as {what}: {reason}.") from cause


def _is_pointer(path: str | Path) -> bool:
    """Whether a file is what Git has in place of a large one."""
    if not is_file(path):
        return False
    try:
        with Path(path).open("rb") as file:
            return file.read(len(_POINTER)) == _POINTER
    except OSError:
        return False


@contextlib.contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Name a file in what is said of a value that came from it.

    Parameters
    ----------
    path : str or Path
        The file, as it was named.

    Raises
    ------
    InvalidValueError, MismatchError, MissingEntryError, FileFormatError
        What is raised inside, with the file in front unless it is named.

    Examples
    --------
    >>> with naming("sample.json"):
    ...     raise InvalidValueError("There is no choice for 'layer1'.")
    Traceback (most recent call last):
    ...
    nni_latency.errors.InvalidValueError: In 'sample.json': There is no choice for 'layer1'.
    """
    try:
        yield
    except (InvalidValueError, MismatchError, MissingEntryError, FileFormatError) as error:
        if str(path) in str(error):
            raise
        raise type(error)(f"In {str(path)!r}: {error}") from error


def write_atomically(path: Path, content: str | bytes, mode: int = _ANYBODY) -> None:
    """Write a file whole or not at all: beside its place first, then moved over it.

    Parameters
    ----------
    path : Path
        Where the file belongs. Its folder is made if need be.
    content : str or bytes
        What it holds; text is UTF-8.
    mode : int, default=0o666
        Permissions, without those that the umask of the process takes away; never wider, not even while it is written.

    Raises
    ------
    OutputError
        If the folder or the file cannot be written. An older file then stays as it was.
    """
    data = content.encode() if isinstance(content, str) else content
    with replacing(path, mode) as temporary:
        temporary.write_bytes(data)


@contextlib.contextmanager
def replacing(path: Path, mode: int = _ANYBODY) -> Iterator[Path]:
    """Write a file of any size whole or not at all: what is yielded is moved over it in the end, unless it fails.

    Parameters
    ----------
    path : Path
        Where the file belongs. Its folder is made if need be.
    mode : int, default=0o666
        As for `write_atomically`.

    Yields
    ------
    Path
        An empty file beside it, to be written.

    Raises
    ------
    OutputError
        If the folder or the file cannot be made. An older file then stays as it was.
    """
    temporary = None
    try:
        # A link is followed, and stays one.
        real = Path(os.path.realpath(path))
        real.parent.mkdir(parents=True, exist_ok=True)
        temporary = _new_beside(real, mode)
        given = stat.S_IMODE(temporary.stat().st_mode)
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        # What wrote it may have put a file of its own in its place, as safetensors does.
        temporary.chmod(given)
        temporary.replace(real)
    except LatencyError:
        raise
    except OSError as error:
        raise OutputError(f"Cannot write {str(path)!r}: {error.strerror or error}.") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Remove a file, and what an interrupted writing of it left beside it.

    Parameters
    ----------
    path : Path
        The file, which need not exist. A link is followed, and stays one.
    """
    real = Path(os.path.realpath(path))
    for file in (real, *real.parent.glob(f".{glob.escape(real.name)}.{'[0-9a-f]' * 8}")):
        file.unlink(missing_ok=True)


def is_file(path: str | os.PathLike[str]) -> bool:
    r"""Whether there is a file of that name; no for what can be no name, such as a text that is too long or has a NUL.

    Examples
    --------
    >>> is_file(__file__), is_file("1," * 9999), is_file("a\0b")
    (True, False, False)
    """
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def split_sources(text: str, most: int = -1) -> list[str]:
    """Split names that are separated by commas; a path that exists stays whole, whatever commas it has.

    Parameters
    ----------
    text : str
        Files and names. A file may follow the name of an estimator and a colon, or a weight and an asterisk.
    most : int, default=-1
        Parts at most, of which the last holds the rest; -1 for all.

    Returns
    -------
    list of str
        Without blanks around them.

    Examples
    --------
    >>> split_sources("a.json, 2*b.json,c"), split_sources("a.json,b,c", 2)
    (['a.json', '2*b.json', 'c'], ['a.json', 'b,c'])
    """
    parts, found = text.split(","), list[str]()
    while parts and len(found) != most - 1:
        lengths = range(len(parts), 1, -1)
        taken = next((length for length in lengths if _names_file(",".join(parts[:length]))), 1)
        found.append(",".join(parts[:taken]).strip())
        parts = parts[taken:]
    return [*found, ",".join(parts).strip()] if parts else found


def _names_file(text: str) -> bool:
    """Whether a text is a file, or one behind the name of an estimator or a weight."""
    starts = [0, *(match.end() for match in re.finditer("[:*]", text.partition(",")[0]))]
    return any(is_file(text[start:].strip()) for start in starts)


def cache_folder() -> Path:
    """Return the cache's folder: `CACHE_VARIABLE`, ``$XDG_CACHE_HOME/nni_latency`` or ``~/.cache/nni_latency``."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named) if named else user_folder("XDG_CACHE_HOME", ".cache")


def user_folder(variable: str, usual: str) -> Path:
    """Return the package's own folder in the one that a variable of XDG names, or in the usual one of the home."""
    named = os.environ.get(variable)
    # The specification of XDG asks to ignore what is not absolute.
    return (Path(named) if named and Path(named).is_absolute() else Path.home() / usual) / "nni_latency"


def make_private(folder: Path) -> bool:
    """Make a folder that nobody but the user can read or write, and return whether it is one.

    An older folder is left as it is. False if it belongs to another user, or others have access to it, may replace it,
    or if the operating system does not say.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     make_private(Path(parent) / "new")
    True
    """
    if sys.platform == "win32":
        return False
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        own, above = folder.lstat(), folder.parent.stat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(own.st_mode)
        and own.st_uid == os.getuid()
        and not own.st_mode & 0o077
        and above.st_uid in (0, os.getuid())
        and not above.st_mode & 0o022
    )


def check_writable(path: Path) -> None:
    """Raise `OutputError` if `path` could not be written, before hours of work find out.

    Parameters
    ----------
    path : Path
        The file to be written later. Nothing is changed; its folder need not exist yet.
    """
    real = Path(os.path.realpath(path))
    try:
        is_folder = real.is_dir()
        if not is_folder:
            first_new = next(part for part, folder in pairwise((real, *real.parents)) if folder.exists())
            _new_beside(first_new, _ANYBODY).unlink()
    except OSError as error:
        raise OutputError(f"Cannot write {str(path)!r}: {error.strerror or error}.") from error
    if is_folder:
        raise OutputError(f"Cannot write {str(path)!r}: it is a folder; name a file in it.")
    if path.exists() and not os.access(path, os.W_OK):
        raise OutputError(f"Cannot write {str(path)!r}: the file is read-only.")


@contextlib.contextmanager
def locked(path: Path, what: str, *, wait: float = 0.0, remedy: str = "choose another output file") -> Iterator[None]:
    """Hold the lock file `path`; the operating system lets go of it even after ``kill -9``.

    Parameters
    ----------
    path : Path
        The lock file; made if need be, and removed at the end where the operating system removes open files.
    what : str
        What is being done, for the message.
    wait : float, default=0.0
        How long to wait for another process that holds it [s].
    remedy : str
        What else can be done, for the message.

    Raises
    ------
    BusyError
        If another process holds it.
    OutputError
        If the lock file cannot be made.
    """
    end = time.monotonic() + wait
    while (file := _held(path)) is None:
        if time.monotonic() >= end:
            raise BusyError(f"Another process is {what}. Wait for it to end, stop it, or {remedy}.")
        time.sleep(_PATIENCE)
    with file:
        try:
            yield
        finally:
            # Who holds it removes it, and who gets hold of a removed one begins again, so there is no race.
            with contextlib.suppress(OSError):
                path.unlink()


@contextlib.contextmanager
def reserved(path: Path, doing: str, *, wait: float = 0.0) -> Iterator[None]:
    """Be the only process that works on the file `path`, and know that it can be written.

    Parameters
    ----------
    path : Path
        The file that is written in the end. Its lock file lies beside it.
    doing : str
        What is done with it, for the message, such as ``building``.
    wait : float, default=0.0
        How long to wait for another process that works on it [s].

    Raises
    ------
    BusyError
        If another process works on it.
    OutputError
        If it could not be written.
    """
    check_writable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f".{path.name}.lock"), f"{doing} {str(path)!r}", wait=wait):
        yield


def _held(path: Path) -> BinaryIO | None:
    """Open a lock file and get hold of it; None if another process has it."""
    while True:
        try:
            file = path.open("a+b")
        except OSError as error:
            raise OutputError(f"Cannot write {str(path)!r}: {error.strerror or error}.") from error
        if not _try_lock(file.fileno()):
            file.close()
            return None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        # It was removed by its last holder after it was opened here.
        file.close()


def _try_lock(descriptor: int) -> bool:
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _new_beside(path: Path, mode: int) -> Path:
    """Make an empty file beside another one."""
    while True:
        made = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        with contextlib.suppress(FileExistsError):
            made.touch(mode, exist_ok=False)
            return made
