"""The journal of a build: one line a round, so that an interrupted build goes on where it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nni_latency.json_lines import JournalFile
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
    """A candidate that cannot be measured, by its indices, and why."""

    layer: int
    choice: int
    reason: str


class Journal(JournalFile):
    """Rounds and failures behind a header, appended one by one.

    Parameters
    ----------
    path : Path
        The file.
    header : mapping
        What the rounds belong to; must be equal when a build goes on.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        super().__init__(path, {"format": FORMAT, "version": VERSION, **header})

    def read(self) -> tuple[dict[str, Any], list[RoundRecord], list[Failure]]:
        """Read the header, the whole rounds and the failures.

        Raises
        ------
        FileFormatError
            If it is no journal of this version.
        """
        header, lines = self.read_lines()
        records = [record for record in map(_record, lines) if record is not None]
        rounds = [record for record in records if isinstance(record, RoundRecord)]
        return header, rounds, [record for record in records if isinstance(record, Failure)]

    def append(self, record: RoundRecord | Failure) -> None:
        """Write one round or failure; it is on the disk when this returns.

        Raises
        ------
        OutputError
            If it cannot be written, the disk being full for example. The rounds before stay.
        """
        self.append_line(asdict(record))


def prior_path(journal: Path) -> Path:
    """Return where the journal of the prior lies, of a runtime that is timed from the outside."""
    return journal.with_name(f"{journal.name}.prior")


def _record(content: Any) -> RoundRecord | Failure | None:
    """Make what a line holds; None for what was cut off in the middle of the file, by a crash and a later run."""
    try:
        return Failure(**content) if "reason" in content else RoundRecord.of(content)
    except (ValueError, TypeError, KeyError):
        return None
