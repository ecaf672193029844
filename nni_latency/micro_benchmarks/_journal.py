"""The journal of micro-benchmarks: one line a point found or a round, so that an interrupted run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nni_latency.errors import MismatchError
from nni_latency.json_lines import START_OVER, JournalFile
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


class BenchmarkJournal(JournalFile):
    """Points found, points ended and rounds behind a header, appended one by one.

    Parameters
    ----------
    path : Path
        The file.
    header : mapping
        What the lines belong to: ``blocks``, ``platform`` and ``protocol``.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        super().__init__(path, {"format": FORMAT, "version": VERSION, **header})

    def open(self, *, resume: bool) -> list[Line]:
        """Return the lines of earlier runs, and leave the file ready for the next one.

        Raises
        ------
        MismatchError
            If they belong to other blocks, another platform or protocol.
        FileFormatError
            If the file is no journal of this version.
        """
        if not (resume and self.exists()):
            self.start()
            return []
        header, lines = self.read_lines()
        self._check(header)
        self.drop_cut_line()
        return [line for line in map(_parse, lines) if line is not None]

    def append(self, line: Line) -> None:
        """Write one line; it is on the disk when this returns."""
        kind = next(name for name, made in _KINDS.items() if isinstance(line, made))
        self.append_line({kind: asdict(line)})

    def _check(self, header: Mapping[str, Any]) -> None:
        what = f"Going on with the journal {str(self.path)!r}"
        try:
            before, here = (Platform(**content["platform"]) for content in (header, self.header))
        except (KeyError, TypeError) as error:
            raise MismatchError(f"{what} is not possible: its header lacks {error}. {START_OVER}") from error
        check_same_platform(before, here, what)
        for key in ("blocks", "protocol"):
            if header.get(key) != self.header[key]:
                raise MismatchError(f"{what} would mix two runs: they differ in the {key}. {START_OVER}")


def _parse(content: Any) -> Line | None:
    """Make what a line holds; None for what was cut off in the middle of the file, by a crash and a later run."""
    try:
        ((kind, fields),) = content.items()
        return _KINDS[kind](**fields)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
