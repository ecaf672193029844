"""The journal of a build: one line a round, so that an interrupted build goes on where it was."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nni_latency.errors import OutputError, TableFormatError
from nni_latency.measurement import Visit

FORMAT = "nni_latency.journal"
VERSION = 2


@dataclass(frozen=True)
class RoundRecord:
    """What one round measured.

    Parameters
    ----------
    index : int
        Number of the round.
    duration : float
        Time it took [s].
    networks : tuple of tuple of int
        The networks visited, an index per layer each, in the order of the visits.
    visits : tuple of Visit
        What was measured at each.
    """

    index: int
    duration: float
    networks: tuple[tuple[int, ...], ...]
    visits: tuple[Visit, ...]

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> RoundRecord:
        """Make one of a line of the journal."""
        return cls(
            content["index"],
            content["duration"],
            tuple(map(tuple, content["networks"])),
            tuple(Visit(**visit) for visit in content["visits"]),
        )


@dataclass(frozen=True)
class Failure:
    """A candidate that can not be measured, by its indices, and why."""

    layer: int
    choice: int
    reason: str


class Journal:
    """An append-only file of rounds and failures behind a header.

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

    def read(self) -> tuple[dict[str, Any], list[RoundRecord], list[Failure]]:
        """Read the header, the whole rounds and the failures.

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
        return header, *_whole_lines(lines[1:-1])

    def start(self) -> None:
        """Begin a new journal, discarding what was there."""
        self._write("wb", self.header)

    def drop_cut_line(self) -> None:
        """Cut off what follows the last whole line, so that the next round begins a line of its own."""
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole != len(content):
            os.truncate(self.path, whole)

    def append(self, record: RoundRecord | Failure) -> None:
        """Write one round or failure; it is on the disk when this returns.

        Raises
        ------
        OutputError
            If it can not be written, the disk being full for example. The rounds before stay.
        """
        self._write("ab", asdict(record))

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


def prior_path(journal: Path) -> Path:
    """Return where the journal of the prior lies, of a runtime that is timed from the outside."""
    return journal.with_name(f"{journal.name}.prior")


def _whole_lines(lines: Sequence[bytes]) -> tuple[list[RoundRecord], list[Failure]]:
    rounds, failures = [], []
    for line in lines:
        try:
            content = json.loads(line)
            if "reason" in content:
                failures.append(Failure(**content))
            else:
                rounds.append(RoundRecord.of(content))
        except (ValueError, TypeError, KeyError):
            # A line that was cut off and written behind by a later run; what stands after it is whole.
            continue
    return rounds, failures
