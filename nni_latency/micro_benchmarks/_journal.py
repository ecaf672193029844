"""The journal of micro-benchmarks: one line a point found or a round, so that an interrupted run goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nni_latency.errors import MismatchError, OutputError, TableFormatError
from nni_latency.platforms import Platform, check_same_platform

FORMAT = "nni_latency.benchmark_journal"
VERSION = 1


@dataclass(frozen=True)
class Found:
    """A point that can be measured: number of the block, batch size, time of its first run and of finding it [s]."""

    block: int
    batch: int
    seconds: float
    duration: float


@dataclass(frozen=True)
class Ended:
    """A block of which no larger batch size is measured, or a point that failed later on; and why."""

    block: int
    batch: int
    reason: str


@dataclass(frozen=True)
class Round:
    """What one round measured.

    Parameters
    ----------
    duration : float
        Time it took [s].
    points : list of (int, int, float)
        Number of the block, batch size and latency [s].
    reference : float
        Median time of the reference operator [s].
    """

    duration: float
    points: list[tuple[int, int, float]]
    reference: float


Line = Found | Ended | Round

_KINDS: dict[str, type[Line]] = {"found": Found, "ended": Ended, "round": Round}


class BenchmarkJournal:
    """An append-only file of lines behind a header.

    Every line reaches the disk before `append` returns; a line cut off by a crash is dropped when read.

    Parameters
    ----------
    path : Path
        The file.
    header : mapping
        What the lines belong to: ``blocks``, ``platform`` and ``protocol``.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        self.header = json.loads(json.dumps({"format": FORMAT, "version": VERSION, **header}))

    def open(self, *, resume: bool) -> list[Line]:
        """Return the lines of earlier runs, and leave the file ready for the next one.

        Raises
        ------
        MismatchError
            If they belong to other blocks, another platform or protocol.
        TableFormatError
            If the file is no journal of this version.
        """
        if not (resume and self.path.exists() and b"\n" in self.path.read_bytes()):
            self._write("wb", self.header)
            return []
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        first, *rest = content[:whole].splitlines()
        self._check(first)
        if whole != len(content):
            os.truncate(self.path, whole)
        return [line for line in map(_parse, rest) if line is not None]

    def append(self, line: Line) -> None:
        """Write one line; it is on the disk when this returns."""
        kind = next(name for name, made in _KINDS.items() if isinstance(line, made))
        self._write("ab", {kind: asdict(line)})

    def remove(self) -> None:
        """Remove the file; the points are written."""
        self.path.unlink(missing_ok=True)

    def _check(self, first: bytes) -> None:
        remedy = "Start over with --no-resume, which discards it, or choose another output file."
        try:
            header = json.loads(first)
        except ValueError:
            header = None
        if not isinstance(header, dict) or (header.get("format"), header.get("version")) != (FORMAT, VERSION):
            raise TableFormatError(
                f"{str(self.path)!r} is not a journal that this version can go on with. "
                "Start over with --no-resume, which discards it."
            )
        what = f"Going on with the journal {str(self.path)!r}"
        try:
            before, here = (Platform(**content["platform"]) for content in (header, self.header))
        except (KeyError, TypeError) as error:
            raise MismatchError(f"{what} is not possible: its header lacks {error}. {remedy}") from error
        check_same_platform(before, here, what)
        for key in ("blocks", "protocol"):
            if header.get(key) != self.header[key]:
                raise MismatchError(f"{what} would mix two runs: they differ in the {key}. {remedy}")

    def _write(self, mode: str, content: Mapping[str, Any]) -> None:
        line = json.dumps(dict(content), separators=(",", ":"), allow_nan=False).encode() + b"\n"
        try:
            with self.path.open(mode) as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OutputError(
                f"Can not write the journal {str(self.path)!r}: {error.strerror or error}. "
                "The lines before this one are kept; the same command goes on with them."
            ) from error


def _parse(line: bytes) -> Line | None:
    """Read a line; None for one that was cut off and written behind by a later run."""
    try:
        ((kind, content),) = json.loads(line).items()
        return _KINDS[kind](**content)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
