"""``nni-latency evolve``."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import click

import nni_latency.database as database
import nni_latency.graphs as graphs
import nni_latency.plots as plots
import nni_latency.query as query
from nni_latency.cli._console import progress, remarks
from nni_latency.cli._option import grouped, option, output_option
from nni_latency.cli._report import Column, Grid, Report, ReportingCommand, print_report
from nni_latency.errors import InvalidValueError
from nni_latency.units import format_count, format_percent, format_seconds


@dataclass(frozen=True)
class _EvolveOptions:
    """What is learned from, and when."""

    database: str | None = option(
        "Where records are and versions are kept.  [default: the user's own database]",
        metavar="URL|FILE",
        envvar=database.DATABASE_VARIABLE,
    )
    name: str = option("Name of the predictor.", default="evolving")
    at_least: int = option("Latencies that must be new.", type=click.IntRange(1), default=20)
    epochs: int = option("Times that every network is seen at most.", type=click.IntRange(1), default=40)


@dataclass(frozen=True)
class _InsteadOptions:
    """What is done instead of learning."""

    show: bool = option("List the versions, and stop.", "--list", default=False, is_flag=True)
    take: int | None = option("Let this version answer, an older one for instance, and stop.", metavar="NUMBER")


@dataclass(frozen=True)
class _PictureOptions:
    """The picture."""

    plot: Path | None = output_option("Draw the errors of all versions against records and time (PNG).")


@click.command("evolve", cls=ReportingCommand)
@grouped()
def command(learning: _EvolveOptions, instead: _InsteadOptions, drawing: _PictureOptions) -> None:
    """Learn from what the database has got to know since the last time.

    A new version of the predictor answers only if it is no worse on networks that no version has learned from. All
    versions are kept.
    """
    store = database.open_store(learning.database)
    if not isinstance(store, database.DatabaseStore):
        raise InvalidValueError("Versions are kept in a database. Name a file or a URL with --database.")
    try:
        said = _done(store, learning, instead)
        versions = database.predictor_versions(store.database, learning.name)
        if drawing.plot is not None:
            plots.draw_evolution(versions, drawing.plot)
            said.append(f"Wrote {drawing.plot}")
    finally:
        store.close()
    rows = [
        {**asdict(item), "error": item.errors.get("all"), "before": item.errors.get("before"), "current": _mark(item)}
        for item in versions
    ]
    grid = Grid(rows, _COLUMNS, f"Versions of {learning.name}", nothing="There is no version yet.")
    print_report(Report(grid, {"versions": rows, "said": said}, after=said))


def _done(store: database.DatabaseStore, learning: _EvolveOptions, instead: _InsteadOptions) -> list[str]:
    if instead.take is not None:
        taken = database.take_predictor(store.database, learning.name, instead.take)
        return [f"Version {taken.number} answers from now on."]
    if instead.show:
        return []
    with progress(remarks()) as bar:
        task = bar.add_task("learning", total=1.0, left="")
        begin = time.monotonic()

        def watch(done: int, total: int) -> None:
            left = (time.monotonic() - begin) / done * (total - done)
            bar.update(task, completed=done, total=total, left=f"{format_seconds(left) if left else '0 s'} left")

        make = partial(graphs.GraphPredictor, epochs=learning.epochs)
        found = query.evolve(store, name=learning.name, at_least=learning.at_least, make=make, watch=watch)
    return [found.reason]


def _mark(version: database.PredictorVersion) -> str:
    return "yes" if version.is_current else "no"


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


_COLUMNS = [
    Column("version", "number", str),
    Column("answers", "current"),
    Column("fitted", "at", _date),
    Column("learned from", "n_networks", format_count),
    Column("held out", "n_held_out", format_count),
    Column("error", "error", format_percent, absent="-"),
    Column("version before", "before", format_percent, absent="-"),
]
