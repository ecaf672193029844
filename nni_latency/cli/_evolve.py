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
import nni_latency.learning as learn
import nni_latency.plots as plots
from nni_latency.cli._console import progress, remarks
from nni_latency.cli._option import grouped, option, output_option
from nni_latency.cli._remote_options import FitRemoteOptions
from nni_latency.cli._report import Column, Grid, Report, ReportingCommand, print_report
from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.files import write_atomically
from nni_latency.units import format_percent, format_seconds


@dataclass(frozen=True)
class _EvolveOptions:
    """What is learned from, and when."""

    database: str | None = option(
        "Where records are and versions are kept.  [default: the user's own database]",
        metavar="URL|FILE",
        envvar=database.DATABASE_VARIABLE,
    )
    name: str = option(
        "Name of the predictor of networks; those of kernels are NAME:PLATFORM, and one of them can be named alone.",
        default="evolving",
    )
    at_least: int = option("Latencies that must be new.", type=click.IntRange(1), default=20)
    epochs: int = option(
        "Times that every network is seen at most by the predictor of networks.", type=click.IntRange(1), default=40
    )


@dataclass(frozen=True)
class _InsteadOptions:
    """What is done instead of learning."""

    show: bool = option("List the versions, and stop.", "--list", default=False, is_flag=True)
    take: int | None = option("Let this version answer, an older one for instance, and stop.", metavar="NUMBER")


@dataclass(frozen=True)
class _FileOptions:
    """What is written."""

    save: Path | None = output_option("Write the file of the predictor of this name that answers, and stop.")
    plot: Path | None = output_option("Draw the errors of all versions against records and time (PNG).")


@click.command("evolve", cls=ReportingCommand)
@grouped()
def command(learning: _EvolveOptions, instead: _InsteadOptions, files: _FileOptions, where: FitRemoteOptions) -> None:
    """Learn from what the database has got to know since the last time.

    One predictor learns networks; others learn kernels, one for each platform on which kernels were measured. A new
    version answers only if it is no worse on networks, or kernels, that no version has learned from. All versions are
    kept.
    """
    store = database.open_store(learning.database)
    if not isinstance(store, database.DatabaseStore):
        raise InvalidValueError("Versions are kept in a database. Name a file or a URL with --database.")
    try:
        said = _instead(store, learning.name, instead, files.save)
        if said is None:
            with where.fitting():
                said = _learn(store, learning)
        versions = _versions(store, learning.name)
        if files.plot is not None:
            plots.draw_evolution(versions, files.plot)
            said.append(f"Wrote {files.plot}")
    finally:
        store.close()
    rows = [
        {**asdict(item), "error": item.errors.get("all"), "before": item.errors.get("before"), "current": _mark(item)}
        for item in versions
    ]
    grid = Grid(rows, _COLUMNS, f"Versions of {learning.name}", nothing="There is no version yet.")
    print_report(Report(grid, {"versions": rows, "said": said}, after=said))


def _versions(store: database.DatabaseStore, name: str) -> list[database.PredictorVersion]:
    """Return the versions of the predictor of networks and of those of kernels, by predictor, the oldest first."""
    found = [item for item in database.predictor_versions(store.database) if learn.is_named(item.name, name)]
    return sorted(found, key=lambda item: (item.name, item.number))


def _instead(store: database.DatabaseStore, name: str, instead: _InsteadOptions, save: Path | None) -> list[str] | None:
    """Do what is asked for instead of learning, and say so; None if nothing is."""
    said = []
    if instead.take is not None:
        said.append(_take(store, name, instead.take))
    if save is not None:
        said.append(_save(store, name, save))
    return said if said or instead.show else None


def _take(store: database.DatabaseStore, name: str, number: int) -> str:
    versions = {item.number: item.name for item in _versions(store, name)}
    if number not in versions:
        raise UnknownNameError.of(f"version of {name!r}", str(number), list(map(str, sorted(versions))))
    taken = database.take_predictor(store.database, versions[number], number)
    return f"Version {taken.number} answers from now on."


def _save(store: database.DatabaseStore, name: str, path: Path) -> str:
    current = next((item for item in _versions(store, name) if item.name == name and item.is_current), None)
    if current is None:
        known = sorted({item.name for item in _versions(store, name)})
        raise UnknownNameError.of("predictor with a version", name, known)
    write_atomically(path, database.predictor_content(store.database, current.number))
    return f"Wrote version {current.number} to {path}"


def _learn(store: database.DatabaseStore, learning: _EvolveOptions) -> list[str]:
    bar = progress(remarks())
    task = bar.add_task("learning", total=1.0, left="")
    begun: dict[str, float] = {}

    def watch(name: str, done: int, total: int) -> None:
        if not begun:
            bar.start()
        now = time.monotonic()
        left = (now - begun.setdefault(name, now)) / done * (total - done)
        told = f"{format_seconds(left)} left" if left else ""
        bar.update(task, description=f"learning {name}", completed=done, total=total, left=told)

    make = partial(graphs.GraphPredictor, epochs=learning.epochs)
    try:
        found = learn.evolve(store, name=learning.name, at_least=learning.at_least, make=make, watch=watch)
    finally:
        if begun:
            bar.stop()
    # With the name where there are several.
    return [f"{item.name}: {item.reason}" if len(found) > 1 else item.reason for item in found]


def _mark(version: database.PredictorVersion) -> str:
    return "yes" if version.is_current else "no"


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


_COLUMNS = [
    Column("predictor", "name"),
    Column("version", "number", str),
    Column("answers", "current"),
    Column("fitted", "at", _date),
    Column("learned from", "n_networks", metric="count"),
    Column("held out", "n_held_out", metric="count"),
    Column("error", "error", format_percent, absent="-"),
    Column("version before", "before", format_percent, absent="-"),
]
