"""The journal of a build: one line a round, so that an interrupted build goes on where it was."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nni_latency.errors import OutputError, TableFormatError

FORMAT = "nni_latency.journal"
VERSION = 1


@dataclass(frozen=True)
class RoundRecord:
    """What one round measured.

    Parameters
    ----------
    index : int
        Number of the round; the networks follow from it.
    duration : float
        Time it took [s].
    samples : list of list of list of float
        Times [s] by network, timed run and layer.
    """

    index: int
    duration: float
    samples: list[list[list[float]]]


class Journal:
    """An append-only file of rounds behind a header.

    Every line reaches the disk before `append` returns; a line cut off by a crash is dropped when read.

    Parameters
    ----------
    path : Path
        The file.
    header : mapping
        What the rounds belong to; must be equal when a build goes on.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        self.header = {"format": FORMAT, "version": VERSION, **header}

    def exists(self) -> bool:
        """Whether there is a journal to go on with; one whose header was cut off holds nothing."""
        return self.path.exists() and b"\n" in self.path.read_bytes()

    def read(self) -> tuple[dict[str, Any], list[RoundRecord]]:
        """Read the header and the whole rounds.

        Raises
        ------
        TableFormatError
            If it is no journal of this version.
        """
        lines = self.path.read_bytes().split(b"\n")
        try:
            header = json.loads(lines[0])
        except ValueError:
            header = None
        if not isinstance(header, dict) or header.get("format") != FORMAT or header.get("version") != VERSION:
            raise TableFormatError(
                f"{str(self.path)!r} is not a journal that this version can go on with. "
                "Start over with --no-resume, which discards it."
            )
        return header, _whole_rounds(lines[1:-1])

    def start(self) -> None:
        """Begin a new journal, discarding what was there."""
        self._write("wb", self.header)

    def drop_cut_line(self) -> None:
        """Cut off what follows the last whole line, so that the next round begins a line of its own."""
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole != len(content):
            os.truncate(self.path, whole)

    def append(self, record: RoundRecord) -> None:
        """Write one round; it is on the disk when this returns.

        Raises
        ------
        OutputError
            If it can not be written, the disk being full for example. The rounds before stay.
        """
        self._write("ab", vars(record))

    def remove(self) -> None:
        """Remove the file; the table is done."""
        self.path.unlink(missing_ok=True)

    def _write(self, mode: str, content: Mapping[str, Any]) -> None:
        line = json.dumps(dict(content), separators=(",", ":")).encode() + b"\n"
        try:
            with self.path.open(mode) as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OutputError(
                f"Can not write the journal {str(self.path)!r}: {error.strerror or error}. "
                "The rounds before this one are kept; the same command goes on with them."
            ) from error


def _whole_rounds(lines: list[bytes]) -> list[RoundRecord]:
    rounds = []
    for line in lines:
        try:
            rounds.append(RoundRecord(**json.loads(line)))
        except (ValueError, TypeError):
            # A line that was cut off and written behind by a later run; what stands after it is whole.
            continue
    return rounds
