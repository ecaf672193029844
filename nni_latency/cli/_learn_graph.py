# SPDX-License-Identifier: Apache-2.0
"""``nni-latency learn graph``: from this machine, from a data set, or from the records of the database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

import nni_latency.database as database
import nni_latency.datasets as datasets
import nni_latency.graphs as graphs
import nni_latency.learning as learn
import nni_latency.plots as plots
from nni_latency.cli._console import Part, progress, remarks
from nni_latency.cli._estimator_options import load_predictor
from nni_latency.cli._estimator_report import graph_report
from nni_latency.cli._learn_machine import MACHINE_FIELDS, MachineOptions, learn_this_machine
from nni_latency.cli._option import OutputOptions, grouped, option, output_option, refuse_given
from nni_latency.cli._remote_options import FitRemoteOptions
from nni_latency.cli._report import Column, Grid, Report, ReportingCommand, print_report
from nni_latency.cli._training import check_whole, training_of, training_option
from nni_latency.errors import InvalidValueError, UnknownNameError, listed
from nni_latency.files import write_atomically
from nni_latency.platforms import Platform
from nni_latency.units import format_percent


@dataclass(frozen=True)
class _Training:
    """How predictors learn: the fields of ``--training``.

    Parameters
    ----------
    epochs : int
        Times that every network is seen.
    members : int
        Graph networks that are averaged.
    seed : int
        Random seed.
    at_least : int
        Latencies that must be new in the database.
    """

    epochs: int = 24
    members: int = 3
    seed: int = 0
    at_least: int = 20

    def __post_init__(self) -> None:
        check_whole(self, epochs=1, members=1, seed=0, at_least=1)


@dataclass(frozen=True)
class VersionOptions:
    """Learning from the database, which keeps the versions of predictors."""

    from_database: bool = option(
        "Learn networks, and kernels of each platform, from the records of the database, and keep versions there.",
        default=False,
    )
    database: str | None = option(
        "Where records and versions are kept.  [default: the user's own database]",
        metavar="URL|FILE",
        envvar=database.DATABASE_VARIABLE,
        rare=True,
    )
    show: bool = option("List the versions instead of learning.", "--list", default=False, is_flag=True, rare=True)
    take: int | None = option(
        "Let this version answer instead of learning, an older one for instance.", metavar="NUMBER", rare=True
    )
    plot: Path | None = output_option("PNG file of the errors of all versions against records and time.", rare=True)


def learn_versions(
    asked: VersionOptions, platform: str | None, out: Path | None, where: FitRemoteOptions, training: _Training
) -> None:
    """Fit new versions of predictors to the records of the database, and list all versions.

    One predictor learns networks; others learn kernels, one for each platform on which kernels were measured. A new
    version answers only if it is no worse on networks, or kernels, that no version has learned from.

    Parameters
    ----------
    asked : VersionOptions
        Whether anything is learned.
    platform : str or None
        Platform of the predictor of kernels; by default all predictors.
    out : Path or None
        Where the version that answers is written.
    where : FitRemoteOptions
        Where predictors are fitted.
    training : _Training
        How they are fitted, and from how many new latencies on.

    Raises
    ------
    InvalidValueError
        If the store is not a database.
    UnknownNameError
        If there is no such version.
    """
    store = database.open_store(asked.database)
    if not isinstance(store, database.DatabaseStore):
        raise InvalidValueError("Versions are kept in a database. Name a file or a URL with --database.")
    name = learn.EVOLVING if platform is None else f"{learn.EVOLVING}:{platform}"
    try:
        said = []
        if asked.take is not None:
            said.append(_take_version(store, name, asked.take))
        elif not asked.show:
            with where.fitting():
                said += _learn_next(store, name, training)
        if out is not None:
            said.append(_save_version(store, name, out))
        versions = _versions(store, name)
        if asked.plot is not None:
            plots.draw_evolution(versions, asked.plot)
            said.append(f"Wrote {asked.plot}")
    finally:
        store.close()
    rows = [
        {**asdict(item), "error": item.errors.get("all"), "before": item.errors.get("before"), "current": _mark(item)}
        for item in versions
    ]
    grid = Grid(rows, _VERSION_COLUMNS, f"Versions of {name}", nothing="There is no version yet.")
    print_report(Report(grid, {"versions": rows, "said": said}, after=said))


def _versions(store: database.DatabaseStore, name: str) -> list[database.PredictorVersion]:
    """Return the versions of the predictor of networks and of those of kernels, by predictor, the oldest first."""
    found = [item for item in database.predictor_versions(store.database) if learn.is_named(item.name, name)]
    return sorted(found, key=lambda item: (item.name, item.number))


def _take_version(store: database.DatabaseStore, name: str, number: int) -> str:
    versions = {item.number: item.name for item in _versions(store, name)}
    if number not in versions:
        raise UnknownNameError.of(f"version of {name!r}", str(number), list(map(str, sorted(versions))))
    taken = database.take_predictor(store.database, versions[number], number)
    return f"Version {taken.number} answers from now on."


def _save_version(store: database.DatabaseStore, name: str, path: Path) -> str:
    current = next((item for item in _versions(store, name) if item.name == name and item.is_current), None)
    if current is None:
        known = sorted({item.name for item in _versions(store, name)})
        raise UnknownNameError.of("predictor with a version", name, known)
    write_atomically(path, database.predictor_content(store.database, current.number))
    return f"Wrote version {current.number} to {path}"


def _learn_next(store: database.DatabaseStore, name: str, training: _Training) -> list[str]:
    bar = progress(remarks())
    parts: dict[str, Part] = {}

    def watch(predictor: str, done: int, total: int) -> None:
        if not parts:
            bar.start()
        if predictor not in parts:
            parts[predictor] = Part(bar, f"learning {predictor}", is_next=True)
        parts[predictor](done / total)

    make = partial(
        graphs.GraphPredictor, epochs=training.epochs, n_members=training.members, random_state=training.seed
    )
    try:
        found = learn.evolve(store, name=name, at_least=training.at_least, make=make, watch=watch)
    finally:
        if parts:
            bar.stop()
    # With the name where there are several.
    return [f"{item.name}: {item.reason}" if len(found) > 1 else item.reason for item in found]


def _mark(version: database.PredictorVersion) -> str:
    return "yes" if version.is_current else "no"


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


_VERSION_COLUMNS = [
    Column("predictor", "name"),
    Column("version", "number", str),
    Column("answers", "current"),
    Column("fitted", "at", _date),
    Column("learned from", "n_networks", metric="count"),
    Column("held out", "n_held_out", metric="count"),
    Column("error", "error", format_percent, absent="-"),
    Column("version before", "before", format_percent, absent="-"),
]


@dataclass(frozen=True)
class _GraphOptions:
    """What is learned from, and how."""

    data: tuple[Path, ...] = option(
        "Data set: a file of 'dataset measure', a folder in NNLQP's layout, or shipped; repeat for several.",
        "--dataset",
        multiple=True,
        type=click.Path(path_type=Path),
    )
    start: str | None = option(
        "Predictor whose knowledge of operators stays, and which gets one platform more: its file, or "
        f"{graphs.PRETRAINED}.",
        "--from", metavar="FILE",
    )  # fmt: skip
    platform: str | None = option(
        "Platform to learn, of data or, with --from-database, of kernels.  [default: all]", metavar="DEVICE|ID"
    )
    training_fields: tuple[tuple[str, Any], ...] = training_option(
        "How predictors learn, such as epochs=20, or at_least=10 new latencies with --from-database", _Training
    )
    jobs: int | None = option(
        "Processes of this machine that learn side by side.  [default: 1]", type=click.IntRange(1), rare=True
    )


@click.command("graph", cls=ReportingCommand)
@grouped(
    out={
        "help": "File of the predictor.  [default: graph.safetensors; without data your own predictor, which predict "
        "asks; none with --from-database]"
    }
)
def learn_graph(
    fit: _GraphOptions,
    machine: MachineOptions,
    versions: VersionOptions,
    output: OutputOptions,
    where: FitRemoteOptions,
) -> None:
    """Learn to predict whole networks on this or other machines.

    Without data, networks that ship are measured on this machine for three minutes, and its platform is added to the
    predictor that ships; 'nni-latency predict' asks the result from then on. An interrupted run can be resumed: run
    the same command again.

    With --dataset, a predictor is fitted to a data set, or with --from one platform is added to a predictor. With
    --from-database, new versions of predictors are fitted to what was measured since the last one; a version answers
    only if it is no worse on networks that none has learned from.
    """
    training = training_of(_Training(), fit.training_fields)
    if versions.from_database:
        refuse_given(("data", "start", "jobs", *MACHINE_FIELDS), "with --from-database")
        learn_versions(versions, fit.platform, output.out, where, training)
        return
    refuse_given(("show", "take", "plot"), "without --from-database")
    if not fit.data:
        refuse_given(("start", "platform", "training_fields", "jobs", "remote"), "without --dataset")
        learn_this_machine(machine, versions.database, output.out)
        return
    refuse_given(MACHINE_FIELDS, "with --dataset: nothing is measured")
    refuse_given(("database",), "with --dataset")
    if any("at_least" in part for part in fit.training_fields):
        raise InvalidValueError("--training at_least has no effect without --from-database. Omit it.")
    if fit.start is not None:
        refuse_given(("training_fields", "jobs"), "with --from: the predictor keeps its settings")
    if fit.jobs is not None and where.remote is not None:
        raise InvalidValueError("--jobs is for this machine, and --remote for others. Omit one of them.")
    out = output.path("graph.safetensors")
    networks = _of_platform([item for folder in fit.data for item in datasets.measured_networks(folder)], fit)
    with where.fitting(), progress(remarks()) as bar:
        part = Part(bar, "learning")
        found = _fitted(fit, training, networks, lambda done, total: part(done / total))
    found.save(out)
    print_report(graph_report(found, after=[f"Wrote {out}"]))


def _fitted(
    fit: _GraphOptions,
    training: _Training,
    networks: list[graphs.MeasuredNetwork],
    watch: Callable[[int, int], None],
) -> graphs.GraphPredictor:
    if fit.start is not None:
        return load_predictor(fit.start).adapt(networks, watch)
    predictor = graphs.GraphPredictor(
        epochs=training.epochs, n_members=training.members, random_state=training.seed, n_jobs=fit.jobs
    )
    return predictor.fit(networks, watch)


def _of_platform(networks: list[graphs.MeasuredNetwork], fit: _GraphOptions) -> list[graphs.MeasuredNetwork]:
    """Return the networks of the platform that is asked for; data of one platform may be given another name."""
    if fit.platform is None:
        return networks
    ids = sorted({item.platform.id for item in networks})
    wanted = Platform.parse(fit.platform)
    if wanted.id in ids:
        return [item for item in networks if item.platform.id == wanted.id]
    if len(ids) > 1:
        raise InvalidValueError(
            f"The data is of {listed(ids)}, and none of them is {wanted.id!r}. Name one of them with --platform."
        )
    return [replace(item, platform=wanted) for item in networks]
