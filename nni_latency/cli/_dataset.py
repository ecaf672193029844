# SPDX-License-Identifier: Apache-2.0
"""``nni-latency dataset``: networks of families, and data sets of their latencies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
from rich.markup import escape

import nni_latency.datasets as datasets
import nni_latency.graphs as graphs
from nni_latency.cli._console import Part, interrupted, progress, remarks, results
from nni_latency.cli._dataset_measure import generating_jobs, measure
from nni_latency.cli._estimator_options import PredictorOptions
from nni_latency.cli._option import OutputOptions, grouped, names_option, option
from nni_latency.cli._outputs import OutputFolder, WritingCommand, outputs
from nni_latency.cli._report import Column, Grid, Report, ReportingCommand, print_report
from nni_latency.errors import InvalidValueError, OutputError
from nni_latency.units import number_of

#: Where networks go; the file is there until all of them are written.
_FOLDER = OutputFolder((), "unfinished")


@dataclass(frozen=True)
class _GenerateOptions:
    """Which networks are written, and where."""

    family: tuple[str, ...] = names_option("Family, all, or blocks; repeat for several.", "--family", default=("all",))
    per_family: int = option("Networks of each family.", type=click.IntRange(1), default=10)
    seed: int = option(
        "Seed of the first network; 0 is the published one.", type=click.IntRange(0), default=1, rare=True
    )
    batch_size: int = option("Inputs of a run.", type=click.IntRange(1), default=1)
    out: Path = option("Folder of the ONNX files.", "-o", "--out", type=_FOLDER, default=Path("onnx"))


@click.group("dataset")
def command() -> None:
    """Write networks as ONNX files, and measure them: data sets to learn from."""


command.add_command(measure)


@command.command("families", cls=ReportingCommand)
def list_families() -> None:
    """List families of networks, each with the published one."""
    rows = [
        {"family": family.name, "input": "x".join(map(str, family.input_shape)), "published network": family.summary}
        for family in graphs.families().values()
    ]
    rows += [
        {"family": family.name, "input": "any", "published network": family.summary}
        for family in graphs.block_families().values()
    ]
    grid = Grid(rows, [Column(name, name) for name in ("family", "input", "published network")], "Families of networks")
    print_report(Report(grid, {"families": rows}))


@command.command("generate", cls=WritingCommand)
@grouped()
def generate(asked: _GenerateOptions) -> None:
    """Write random members of families as ONNX files.

    Sizes, windows and depths vary around those of the published network; a seed decides. Files are named
    FAMILY-SEED.onnx and hold no weights, so they are some kB each. What measures them fills in random ones.

    An interrupted run can be resumed: run the same command again.
    """
    chosen = graphs.find_families(asked.family)
    unfinished = asked.out / _FOLDER.unfinished
    if outputs().overwrite and not unfinished.is_file():
        for path in graphs.generated_files(asked.out):
            path.unlink()
    try:
        asked.out.mkdir(parents=True, exist_ok=True)
        unfinished.touch()
    except OSError as error:
        raise OutputError(f"Cannot write to the folder {str(asked.out)!r}: {error.strerror or error}.") from error
    total = len(chosen) * asked.per_family
    try:
        with progress(remarks()) as bar:
            part = Part(bar, "networks")
            members = graphs.members_in_turn(chosen, asked.per_family, asked.seed)
            files = graphs.generate_onnx(members, asked.out, batch_size=asked.batch_size, n_jobs=generating_jobs(total))
            for number, _ in enumerate(files, 1):
                part(number / total, f"{number} of {number_of(total, 'network')}")
    except KeyboardInterrupt:
        raise interrupted("Run the same command again to resume.") from None
    unfinished.unlink()
    results().print(
        f"Wrote {number_of(total, 'network')} of {number_of(len(chosen), 'family', 'families')} to {asked.out}",
        markup=False,
    )


@dataclass(frozen=True)
class _SuggestOptions:
    """How many networks are suggested."""

    samples: int = option("Number of networks to measure.", type=click.IntRange(1), default=32)


@command.command("suggest", cls=ReportingCommand)
@click.argument("folder", type=click.Path(path_type=Path))
@grouped()
def suggest(folder: Path, asked: _SuggestOptions, predictor: PredictorOptions) -> None:
    """Say which networks to measure on a new platform.

    They are those that together tell the most about it. FOLDER holds ONNX files, such as 'nni-latency dataset generate'
    writes.
    """
    files = sorted(folder.glob("*.onnx"))
    if not files:
        raise InvalidValueError(f"There is no ONNX file in {str(folder)!r}.")
    known = predictor.load()
    chosen = known.suggest([graphs.graph_of(path) for path in files], asked.samples)
    rows = [{"network": str(files[number])} for number in chosen]
    print_report(Report(Grid(rows, [Column("network", "network")], "Networks to measure"), {"networks": rows}))


@dataclass(frozen=True)
class _MergeOptions:
    """How data sets are merged."""

    conflict: Literal["error", "first", "last", "mean"] = option(
        "Which latency to keep where data sets disagree.", default="error"
    )
    align_speed: bool = option(
        "Bring each data set to the speed of those before it, by the networks that they share.", default=False
    )


@command.command("merge", cls=WritingCommand)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@grouped(out={"required": True})
def merge(files: tuple[str, ...], merging: _MergeOptions, output: OutputOptions) -> None:
    """Merge data sets, or convert one to or from NNLQP's layout.

    FILEs are data sets of 'nni-latency dataset measure', of any platforms. A single one is converted: a gt.txt of
    NNLQP's layout to a data set, or a data set to that layout, a folder whose gt.txt --out names.
    """
    out = output.path()
    if len(files) == 1:
        found = _convert(files[0], out)
    else:
        foreign = next((name for name in [*files, str(out)] if _is_nnlqp(name)), None)
        if foreign is not None:
            raise InvalidValueError(f"{foreign!r} is in NNLQP's layout. Convert it alone, and merge the data sets.")
        sets = [datasets.load_networks(name) for name in files]
        found = datasets.merge_networks(sets, out, conflict=merging.conflict, align_speed=merging.align_speed)
    latencies, platforms = number_of(len(found), "latency", "latencies"), number_of(len(found.platforms), "platform")
    results().print(escape(f"Wrote {out}: {latencies} on {platforms}"))


def _is_nnlqp(name: str) -> bool:
    return Path(name).name == graphs.GROUND_TRUTH


def _convert(name: str, out: Path) -> datasets.NetworkSet:
    """Write a data set of NNLQP's layout as one of ours, or the other way round."""
    if _is_nnlqp(name):
        return datasets.import_nnlqp(Path(name).parent, out)
    networks = datasets.load_networks(name)
    if not _is_nnlqp(str(out)):
        raise InvalidValueError(
            f"{name!r} is one data set: name another one to merge, or give --out FOLDER/{graphs.GROUND_TRUTH} to write "
            f"NNLQP's layout. Got --out {str(out)!r}."
        )
    files = (out.parent / "onnx" / f"{entry.name}.onnx" for entry in networks)
    existing = None if outputs().overwrite else next((file for file in files if file.exists()), None)
    if existing is not None:
        raise InvalidValueError(f"{str(existing)!r} exists. Choose another folder, or replace it with --overwrite.")
    datasets.export_nnlqp(networks, out.parent)
    return networks
