"""``nni-latency database``."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from nni_latency.cli._console import results
from nni_latency.cli._option import DURATION, grouped, option, parsed
from nni_latency.cli._outputs import OutputDatabase, OutputFile, WritingCommand
from nni_latency.database import (
    DATABASE_VARIABLE,
    MEMORY,
    Copied,
    Database,
    DatabaseStore,
    StaleCampaign,
    SubjectOverview,
    copy_database,
    copy_memo,
    default_location,
    export_samples,
    find_subjects,
    remove_campaigns,
    stale_campaigns,
    summarise,
)
from nni_latency.errors import InvalidValueError
from nni_latency.files import replacing
from nni_latency.units import format_count, format_seconds, parse_duration

_SQLITE = b"SQLite format 3\0"

#: Rows that are shown of a list of any length.
_SHOWN = 50


def _parse_moment(text: str) -> float:
    """Return a date such as ``2026-11-01``, or how long ago, such as ``7d``, in seconds since 1970."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return time.time() - parse_duration(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


@dataclass(frozen=True)
class _FilterOptions:
    """Which campaigns are meant."""

    platform: str | None = option("Only this platform, such as epyc-7763.torch.fp32.t1.", metavar="ID")
    kind: str | None = option("Only campaigns of this kind, such as layers.", metavar="NAME")


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


_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group("database")
@click.option(
    "--database",
    "location",
    metavar="FILE|URL",
    help=f"A SQLite file or the URL of a server.  [default: {DATABASE_VARIABLE}, or the file in your data folder]",
)
@click.pass_context
def command(context: click.Context, location: str | None) -> None:
    """Inspect, share and clean up the database of measurements.

    It holds everything that was measured on this machine, with all raw samples.
    """
    context.obj = location or default_location()


@command.command("info", cls=WritingCommand)
@_as_json
@click.pass_obj
def info(location: str, as_json: bool) -> None:
    """Summarise the database by platform and kind."""
    with _opened(location) as database:
        found = summarise(database)
        size = database.size
        name = database.name
    if as_json:
        click.echo(json.dumps({"database": name, "size": size, "kinds": [asdict(item) for item in found]}))
        return
    console = results()
    console.print(f"{escape(name)}: {size / 2**20:.1f} MiB", soft_wrap=True)
    columns = ("platform", "kind", "campaigns", "subjects", "records", "samples", "failures", "first", "last")
    table = _table(columns, n_text=2)
    for item in found:
        counts = (item.campaigns, item.subjects, item.records, item.samples, item.failures)
        dates = (_date(item.first), _date(item.last))
        table.add_row(escape(item.platform), escape(item.kind), *map(format_count, counts), *dates)
    _print_table(console, table, len(found), "Nothing has been measured yet.")


@command.command("query", cls=WritingCommand)
@_as_json
@click.pass_obj
@grouped()
def query(location: str, wanted: _QueryOptions, as_json: bool) -> None:
    """List the subjects of every campaign."""
    with _opened(location) as database:
        found = find_subjects(
            database, platform=wanted.platform, kind=wanted.kind, text=wanted.text, since=wanted.since
        )
        if as_json:
            for item in found:
                click.echo(json.dumps(asdict(item)))
            return
        columns = ("campaign", "platform", "kind", "subject", "records", "latency", "last")
        table = _table(columns, n_text=4)
        n_found = 0
        for n_found, item in enumerate(found, start=1):
            if n_found <= _SHOWN:
                table.add_row(*_subject_row(item))
    _print_table(results(), table, n_found, "Nothing was found.")


@command.command("export", cls=WritingCommand)
@click.argument("out", type=OutputFile())
@click.pass_obj
@grouped()
def export(location: str, out: Path, wanted: _FilterOptions) -> None:
    """Write the raw samples to the .parquet or .csv file OUT, one row per sample."""
    with _opened(location) as database:
        n_samples = export_samples(database, out, platform=wanted.platform, kind=wanted.kind)
    results().print(f"Wrote {escape(str(out))}: {n_samples} samples", soft_wrap=True)


@command.command("import", cls=WritingCommand)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.pass_obj
def import_(location: str, sources: tuple[str, ...]) -> None:
    """Add the records of other databases, or of memo files of older versions.

    A SOURCE is a SQLite file, the URL of a server, or a memo file (.jsonl). Duplicates are skipped.
    """
    with _opened(location, create=True) as database:
        for source in sources:
            _report(source, _take_over(source, database))


@command.command("merge", cls=WritingCommand)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--out", required=True, type=OutputDatabase(), metavar="FILE|URL", help="The new database.")
def merge(sources: tuple[str, ...], out: str) -> None:
    """Merge several databases into a new one, without duplicates. The sources are not changed."""
    with _made(out) as database:
        for source in sources:
            with _opened(source) as opened:
                _report(source, copy_database(opened, database))
    results().print(f"Wrote {escape(out)}", soft_wrap=True)


@command.command("prune", cls=WritingCommand)
@click.pass_obj
@grouped()
def prune(location: str, wanted: _PruneOptions) -> None:
    """Remove the campaigns that meet all conditions, with all their samples."""
    if (wanted.platform, wanted.kind, wanted.older_than, wanted.keep_latest) == (None,) * 4:
        raise InvalidValueError("Say what to remove, with --older-than, --keep-latest, --platform or --kind.")
    with _opened(location) as database:
        stale = stale_campaigns(
            database,
            written_before=None if wanted.older_than is None else time.time() - wanted.older_than,
            platform=wanted.platform,
            kind=wanted.kind,
            keep_latest=wanted.keep_latest or 0,
        )
        _list_stale(stale)
        if not stale or wanted.dry_run or not (wanted.yes or click.confirm(f"Remove {len(stale)} campaigns?")):
            return
        n_removed, kept = remove_campaigns(database, stale)
    console = results()
    console.print(f"Removed {n_removed} campaigns.")
    for item in kept:
        console.print(f"{escape(item.identifier)} is being measured and was kept.", soft_wrap=True)


@contextlib.contextmanager
def _opened(location: str, *, create: bool = False) -> Iterator[Database]:
    if location == MEMORY:
        raise InvalidValueError(f"The store {MEMORY!r} is gone with its process. Name a file or a URL with --database.")
    store = DatabaseStore(location, create=create)
    try:
        yield store.database
    finally:
        store.close()


@contextlib.contextmanager
def _made(out: str) -> Iterator[Database]:
    """Make a database: a file whole or not at all, beside its place first."""
    if "://" in out:
        with _opened(out, create=True) as database:
            yield database
        return
    with replacing(Path(out)) as temporary, _opened(str(temporary)) as database:
        yield database


def _take_over(source: str, database: Database) -> Copied:
    path = Path(source)
    if "://" not in source and path.is_file():
        with path.open("rb") as file:
            is_memo = file.read(len(_SQLITE)) != _SQLITE
        if is_memo:
            return copy_memo(path, database)
    with _opened(source) as opened:
        return copy_database(opened, database)


def _report(source: str, copied: Copied) -> None:
    results().print(
        f"{escape(source)}: {copied.records} records of {copied.campaigns} campaigns were added, "
        f"{copied.doubles} were there already.",
        soft_wrap=True,
    )


def _list_stale(stale: Sequence[StaleCampaign]) -> None:
    table = _table(("campaign", "platform", "kind", "records", "samples", "last"), n_text=3)
    for item in stale[:_SHOWN]:
        counts = (format_count(item.n_records), format_count(item.n_samples))
        table.add_row(item.identifier, escape(item.platform), escape(item.kind), *counts, _date(item.written))
    _print_table(results(), table, len(stale), "No campaign meets the conditions.")
    samples = sum(item.n_samples for item in stale)
    if stale:
        results().print(f"{len(stale)} campaigns with {format_count(samples)} samples.")


def _subject_row(item: SubjectOverview) -> tuple[str, ...]:
    latency = "" if item.latency is None else format_seconds(item.latency)
    names = (item.campaign, item.platform, item.kind, item.subject)
    return (*map(escape, names), format_count(item.records), latency, _date(item.last))


def _table(columns: Sequence[str], *, n_text: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < n_text else "right", overflow="fold")
    return table


def _print_table(console: Console, table: Table, n_rows: int, nothing: str) -> None:
    if not n_rows:
        console.print(nothing)
        return
    console.print(table)
    if n_rows > _SHOWN:
        console.print(f"and {n_rows - _SHOWN} more")


def _date(seconds: float) -> str:
    """Return a day and time (UTC); nothing where it is not known."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M") if seconds else ""
