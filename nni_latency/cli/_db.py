# SPDX-License-Identifier: Apache-2.0
"""``nni-latency db``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.markup import escape

import nni_latency.database as database
from nni_latency.cli._console import results
from nni_latency.cli._option import DURATION, grouped, option, parsed
from nni_latency.cli._outputs import OutputDatabase, OutputFile, WritingCommand
from nni_latency.cli._report import Column, Grid, Report, ReportingCommand, print_report
from nni_latency.errors import FileFormatError, InvalidValueError, LatencyError, UnknownNameError
from nni_latency.files import is_file, replacing
from nni_latency.units import format_count, number_of, parse_duration

if TYPE_CHECKING:
    from nni_latency.database import Database

#: Rows that are shown of a list of any length.
_SHOWN = 50

#: From this width on there is room for all columns beside names that are not broken.
_WIDE = 110


def _parse_moment(text: str) -> float:
    """Return a date such as ``2026-11-01``, or how long ago, such as ``7d``, in seconds since 1970."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return time.time() - _parse_ago(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _parse_ago(text: str) -> float:
    try:
        return parse_duration(text)
    except LatencyError as error:
        raise InvalidValueError(
            f"A moment must be a date such as 2026-11-01, or a duration such as 7d for how long ago. Got {text!r}."
        ) from error


@dataclass(frozen=True)
class _DatabaseOptions:
    """Which database is meant."""

    database: str | None = option(
        f"A SQLite file or the URL of a server.  [default: {database.DATABASE_VARIABLE}, or that of your data folder]",
        metavar="URL|FILE",
        rare=True,
    )


@dataclass(frozen=True)
class _FilterOptions(_DatabaseOptions):
    """Which campaigns are meant."""

    platform: str | None = option("Only this platform, such as epyc-7763.torch.fp32.t1.", metavar="ID")
    kind: str | None = option("Only campaigns of this kind, such as layers.", metavar="NAME")

    def check(self, opened: Database) -> None:
        """Raise `UnknownNameError` for a platform of which the database has nothing, unless it is empty."""
        if self.platform is None:
            return
        known = [platform.id for platform in database.latest_platforms(opened)]
        if known and self.platform not in known:
            raise UnknownNameError.of("platform", self.platform, known)


@dataclass(frozen=True)
class _QueryOptions(_FilterOptions):
    text: str | None = option("Only subjects whose key or digest contains this text.", "--subject", metavar="TEXT")
    since: float | None = option(
        "Only records since a date, or within a duration such as 7d.", type=parsed("date|duration", _parse_moment)
    )


@dataclass(frozen=True)
class _PruneOptions(_FilterOptions):
    older_than: float | None = option("Only campaigns not written to for this long, such as 90d.", type=DURATION)
    keep_latest: int | None = option(
        "Keep the latest N campaigns that measure the same.", type=click.IntRange(1), metavar="N"
    )
    dry_run: bool = option("List what would be removed, and stop.", default=False)
    yes: bool = option("Do not ask for confirmation.", default=False)


@click.group("db")
def command() -> None:
    """Inspect, share and clean up the database of measurements.

    It holds everything that was measured on this machine, with all raw samples.
    """


@command.command("info", cls=ReportingCommand)
@grouped()
def info(where: _DatabaseOptions) -> None:
    """Summarise the database by platform and kind."""
    with _opened(where.database) as opened:
        found = database.summarise(opened)
        size = opened.size
        name = opened.name
    # With all that JSON holds, a row would not fit a narrow screen.
    counts = ("campaigns", "records", "samples", "failures") if _is_wide() else ("records", "failures")
    columns = [_PLATFORM, _KIND, *(Column(name, name, metric="count") for name in counts)]
    columns.append(_DAY)
    rows = [asdict(item) for item in found]
    grid = Grid(rows, columns, nothing="Nothing has been measured yet.")
    content = {"database": name, "size": size, "kinds": rows}
    print_report(Report(grid, content, before=[f"{name}: {size / 2**20:.1f} MiB"]))


@command.command("query", cls=ReportingCommand)
@grouped()
def query(wanted: _QueryOptions) -> None:
    """List the subjects of every campaign."""
    with _opened(wanted.database) as opened:
        wanted.check(opened)
        found = database.find_subjects(
            opened, platform=wanted.platform, kind=wanted.kind, text=wanted.text, since=wanted.since
        )
        rows = [asdict(item) for item in found]
    columns = [Column("subject", "subject"), _PLATFORM]
    if _is_wide():
        columns = [Column("campaign", "campaign"), *columns, _KIND]
    columns += [Column("records", "records", metric="count"), Column("latency", "latency", metric="latency")]
    columns.append(_LAST if _is_wide() else _DAY)
    print_report(Report(Grid(rows, columns, most=_SHOWN, nothing="Nothing was found.")))


@command.command("export", cls=WritingCommand)
@click.option("-o", "--out", required=True, type=OutputFile(), help="A .parquet or .csv file.")
@grouped()
def export(out: Path, wanted: _FilterOptions) -> None:
    """Write the raw samples to a .parquet or .csv file, a row each."""
    with _opened(wanted.database) as opened:
        wanted.check(opened)
        n_samples = database.export_samples(opened, out, platform=wanted.platform, kind=wanted.kind)
    results().print(f"Wrote {escape(str(out))}: {number_of(n_samples, 'sample')}")


@command.command("import", cls=WritingCommand)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@grouped()
def import_(sources: tuple[str, ...], into: _DatabaseOptions) -> None:
    """Add the records of other databases.

    A SOURCE is a SQLite file or the URL of a server. Duplicates are skipped.
    """
    with _opened(into.database, create=True) as opened:
        for source in sources:
            with _opened(source) as other:
                _report(source, database.copy_database(other, opened))


@command.command("merge", cls=WritingCommand)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("-o", "--out", required=True, type=OutputDatabase(), metavar="FILE|URL", help="The new database.")
def merge(sources: tuple[str, ...], out: str) -> None:
    """Merge several databases into a new one, without duplicates. The sources are not changed."""
    with _made(out) as made:
        for source in sources:
            with _opened(source) as opened:
                _report(source, database.copy_database(opened, made))
    results().print(f"Wrote {escape(out)}")


@command.command("prune", cls=ReportingCommand)
@grouped()
def prune(wanted: _PruneOptions) -> None:
    """Remove the campaigns that meet all conditions, with all their samples."""
    if (wanted.platform, wanted.kind, wanted.older_than, wanted.keep_latest) == (None,) * 4:
        raise InvalidValueError("Say what to remove, with --older-than, --keep-latest, --platform or --kind.")
    with _opened(wanted.database) as opened:
        wanted.check(opened)
        stale = database.stale_campaigns(
            opened,
            written_before=None if wanted.older_than is None else time.time() - wanted.older_than,
            platform=wanted.platform,
            kind=wanted.kind,
            keep_latest=wanted.keep_latest or 0,
        )
        _list_stale(stale)
        if (
            not stale
            or wanted.dry_run
            or not (wanted.yes or click.confirm(f"Remove {number_of(len(stale), 'campaign')}?"))
        ):
            return
        n_removed, kept = database.remove_campaigns(opened, stale)
    console = results()
    console.print(f"Removed {number_of(n_removed, 'campaign')}.")
    for item in kept:
        console.print(f"{escape(item.identifier)} is being measured and was kept.")


@contextlib.contextmanager
def _opened(named: str | None, *, create: bool = False) -> Iterator[Database]:
    location = named or database.default_location()
    if location == database.MEMORY:
        raise InvalidValueError(
            f"The store {database.MEMORY!r} is gone with its process. Name a file or a URL with --database."
        )
    path = Path(location)
    if not create and "://" not in location and is_file(path) and not path.stat().st_size:
        raise FileFormatError(f"{location!r} is not a database: the file is empty. Name another one.")
    store = database.DatabaseStore(location, create=create)
    try:
        yield store.database
    finally:
        store.close()


@contextlib.contextmanager
def _made(out: str) -> Iterator[Database]:
    """Make a database: a file whole or not at all, beside its place first."""
    if "://" in out:
        with _opened(out, create=True) as opened:
            yield opened
        return
    with replacing(Path(out)) as temporary, _opened(str(temporary), create=True) as opened:
        yield opened
    for ending in ("-wal", "-shm", "-journal"):
        # What a killed process left of the database that was there: SQLite would apply it to the new one.
        Path(f"{Path(out).resolve()}{ending}").unlink(missing_ok=True)


def _report(source: str, copied: database.Copied) -> None:
    predictors = f" Versions of predictors that were added: {copied.predictors}." if copied.predictors else ""
    added = f"{number_of(copied.records, 'record')} of {number_of(copied.campaigns, 'campaign')}"
    results().print(f"{escape(source)}: added {added}; already there: {copied.doubles}.{predictors}")


def _list_stale(stale: Sequence[database.StaleCampaign]) -> None:
    rows = [asdict(item) for item in stale]
    columns = [Column("campaign", "identifier"), _PLATFORM, _KIND]
    columns += [Column("records", "n_records", metric="count"), Column("samples", "n_samples", metric="count")]
    columns.append(Column("last", "written", _date))
    total = f"{number_of(len(stale), 'campaign')} with {format_count(sum(item.n_samples for item in stale))} samples."
    grid = Grid(rows, columns, most=_SHOWN, nothing="No campaign meets the conditions.")
    print_report(Report(grid, after=[total] if stale else []))


def _date(seconds: float) -> str:
    """Return a day and time (UTC); nothing where it is not known."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M") if seconds else ""


def _is_wide() -> bool:
    return results().width >= _WIDE


_PLATFORM, _KIND, _LAST = Column("platform", "platform"), Column("kind", "kind"), Column("last", "last", _date)
_DAY = Column("last", "last", lambda seconds: _date(seconds).partition(" ")[0])
