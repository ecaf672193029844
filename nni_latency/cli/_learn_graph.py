"""``nni-latency learn graph``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import click

import nni_latency.datasets as datasets
import nni_latency.graphs as graphs
from nni_latency.cli._console import progress, remarks
from nni_latency.cli._graph_report import graph_report
from nni_latency.cli._learn_versions import VersionOptions, learn_versions
from nni_latency.cli._option import grouped, option, refuse_given
from nni_latency.cli._output_options import OutputOptions
from nni_latency.cli._predictor_options import load_predictor
from nni_latency.cli._remote_options import FitRemoteOptions
from nni_latency.cli._report import ReportingCommand, print_report
from nni_latency.errors import InvalidValueError, listed
from nni_latency.platforms import Platform
from nni_latency.units import format_seconds


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
    platform: str | None = option("Platform to learn.  [default: all of the data]", metavar="DEVICE|ID")
    epochs: int = option("Times that every network is seen at most.", type=click.IntRange(1), default=40)
    members: int = option("Graph networks that are averaged.", type=click.IntRange(1), default=3)
    seed: int = option("Random seed.", type=click.IntRange(0), default=0)
    jobs: int | None = option(
        "Processes of this machine that learn side by side.  [default: 1]", type=click.IntRange(1)
    )


@click.command("graph", cls=ReportingCommand)
@grouped(out={"help": "File of the predictor.  [default: graph.safetensors; none with --from-database]"})
def learn_graph(fit: _GraphOptions, versions: VersionOptions, output: OutputOptions, where: FitRemoteOptions) -> None:
    """Learn to predict whole networks, for all platforms at once.

    With --from, one platform is added to a predictor, from a few networks; 'nni-latency dataset suggest' says which
    to measure. With --from-database, new versions of predictors are fitted to what was measured since the last one; a
    version answers only if it is no worse on networks that none has learned from.
    """
    if versions.from_database:
        refuse_given(("data", "start", "platform", "members", "seed", "jobs"), "with --from-database")
        learn_versions(versions, output.out, where, fit.epochs)
        return
    refuse_given(("database", "name", "at_least", "show", "take", "plot"), "without --from-database")
    if not fit.data:
        raise click.UsageError("Missing option '--dataset', or '--from-database'.")
    if fit.jobs is not None and where.remote is not None:
        raise InvalidValueError("--jobs is for this machine, and --remote for others. Omit one of them.")
    out = output.path("graph.safetensors")
    networks = _of_platform([item for folder in fit.data for item in datasets.measured_networks(folder)], fit)
    with where.fitting(), progress(remarks()) as bar:
        task = bar.add_task("learning", total=1.0, left="")
        begin = time.monotonic()

        def watch(done: int, total: int) -> None:
            left = (time.monotonic() - begin) / done * (total - done)
            bar.update(task, completed=done, total=total, left=f"{format_seconds(left) if left else '0 s'} left")

        found = _fitted(fit, networks, watch)
    found.save(out)
    print_report(graph_report(found, after=[f"Wrote {out}"]))


def _fitted(
    fit: _GraphOptions, networks: list[graphs.MeasuredNetwork], watch: Callable[[int, int], None]
) -> graphs.GraphPredictor:
    if fit.start is not None:
        return load_predictor(fit.start).adapt(networks, watch)
    predictor = graphs.GraphPredictor(epochs=fit.epochs, n_members=fit.members, random_state=fit.seed, n_jobs=fit.jobs)
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
