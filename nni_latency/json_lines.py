"""Files of JSON lines that only ever grow: each line is on the disk before work goes on, and a cut one is dropped.

A process may die, and a disk may be full, in the middle of a line. Whatever stands behind the last end of a line is
never read, and cut off before something is appended.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nni_latency.errors import FileFormatError, OutputError

#: What to do about a journal that cannot be gone on with.
START_OVER = "Start over with --no-resume, which discards it, or choose another output file."


def whole_part(content: bytes) -> bytes:
    r"""Return the lines that have an end; what a crash has left of the last one is not among them.

    >>> whole_part(b'{"a":1}\n{"a":2}\n{"a"')
    b'{"a":1}\n{"a":2}\n'
    """
    return content[: content.rfind(b"\n") + 1]


def append_lines(path: Path, values: Iterable[Any], *, what: str, after: int | None = None) -> None:
    """Append values to a file, one a line; they are on the disk when this returns.

    Parameters
    ----------
    path : Path
        The file; made if need be.
    values : iterable
        What JSON can hold; numbers are finite.
    what : str
        What the file is, for the message.
    after : int or None
        How much of the file stays [byte]; what stands behind it is cut off first. None for all of it.

    Raises
    ------
    OutputError
        If they cannot be written, the disk being full for example. The lines before stay.
    """
    text = b"".join(json.dumps(value, separators=(",", ":"), allow_nan=False).encode() + b"\n" for value in values)
    try:
        with path.open("ab") as file:
            if after is not None:
                file.truncate(after)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OutputError(
            f"Cannot write the {what} {str(path)!r}: {error.strerror or error}. "
            "What was measured before is kept; the same command goes on with it."
        ) from error


class JournalFile:
    """What was done so far: lines behind a header that says what they belong to.

    Parameters
    ----------
    path : Path
        The file.
    header : mapping
        Its ``format`` and ``version``, and what the lines belong to.

    Attributes
    ----------
    header : dict
        As it is read again: JSON has no tuples.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        self.header: dict[str, Any] = json.loads(json.dumps(dict(header)))

    def exists(self) -> bool:
        """Whether there is a journal to go on with; one whose header was cut off holds nothing."""
        return self.path.exists() and b"\n" in self.path.read_bytes()

    def is_left_behind(self, result: Path) -> bool:
        """Whether the result is newer: who wrote it was killed before the journal was removed."""
        return result.exists() and self.exists() and self.path.stat().st_mtime <= result.stat().st_mtime

    def start(self) -> None:
        """Begin a new journal, discarding what was there.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        append_lines(self.path, [self.header], what="journal", after=0)

    def append_line(self, content: Mapping[str, Any]) -> None:
        """Write one line; it is on the disk when this returns.

        Raises
        ------
        OutputError
            If it cannot be written, the disk being full for example. The lines before stay.
        """
        append_lines(self.path, [dict(content)], what="journal")

    def read_lines(self) -> tuple[dict[str, Any], list[Any]]:
        """Read the header and what stands in the whole lines behind it; a line that is no JSON is passed over.

        Raises
        ------
        FileFormatError
            If the header is not that of a journal of this format and version.
        """
        first, *rest = whole_part(self.path.read_bytes()).split(b"\n")[:-1] or [b""]
        (header,) = _values([first]) or [None]
        if not isinstance(header, dict) or any(header.get(key) != self.header[key] for key in ("format", "version")):
            raise FileFormatError(f"{str(self.path)!r} is not a journal that this version can go on with. {START_OVER}")
        return header, _values(rest)

    def drop_cut_line(self) -> None:
        """Cut off what follows the last whole line, so that the next one begins a line of its own."""
        content = self.path.read_bytes()
        whole = len(whole_part(content))
        if whole != len(content):
            os.truncate(self.path, whole)

    def remove(self) -> None:
        """Remove the file; what it was kept for is done."""
        self.path.unlink(missing_ok=True)


def _values(lines: Iterable[bytes]) -> list[Any]:
    """Read lines; one that was cut off and written behind is left out."""
    values = []
    for line in lines:
        try:
            values.append(json.loads(line))
        except (ValueError, RecursionError):
            continue
    return values
