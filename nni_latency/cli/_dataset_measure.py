# SPDX-License-Identifier: Apache-2.0
"""``nni-latency dataset measure``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

import nni_latency.datasets as datasets
import nni_latency.graphs as graphs
import nni_latency.loading as loading
import nni_latency.measurement as measurement
import nni_latency.measurement.runtimes as runtimes
import nni_latency.platforms as platforms
from nni_latency.cli._console import Part, interrupted, named, progress, remarks
from nni_latency.cli._measuring import (
    Measuring,
    PlatformOptions,
    ProtocolOptions,
    StoreOptions,
    device_option,
    speeds_of,
    threads_option,
)
from nni_latency.cli._option import BATCH_SIZES, OutputOptions, grouped, names_option, option
from nni_latency.cli._remote_options import RemoteOptions
from nni_latency.cli._report import Column, Grid, Report, ReportingCommand, print_report
from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.units import format_percent, number_of, whole_number

#: A budget that is left and smaller is not spent: starting a process takes longer [s].
_LEAST_BUDGET = 5.0

#: From so many networks on they are written in several processes, each of which takes seconds to start.
_MANY_NETWORKS = 24


@dataclass(frozen=True)
class _NetworkOptions:
    """Which networks are measured."""

    families: tuple[str, ...] = names_option(
        "Family, all, or blocks, with a number of networks if it is not that of --per-family, such as mixed:200; "
        "repeat for several.  [default: all, where no file is given]",
        "--family",
        metavar="NAME[:N]",
        rare=True,
    )
    per_family: int = option("Networks of each family.", type=click.IntRange(1), default=20)
    seed: int = option(
        "Seed of the first network of a family; 0 is the published one.", type=click.IntRange(0), default=0, rare=True
    )
    batch_sizes: tuple[int, ...] = option(
        "Inputs of a run; several, such as 1,8, are measured one after another.",
        "--batch-size",
        type=BATCH_SIZES,
        default="1",
    )


@dataclass(frozen=True)
class _PlatformsOptions:
    """Where they are measured."""

    platforms: tuple[str, ...] = names_option(
        "Runtime, with a precision if it is not fp32, such as openvino:bf16; repeat for several.",
        "--platform",
        default=("torch",),
        metavar="NAME[:PRECISION]",
    )
    device: str = device_option()
    threads: int = threads_option(rare=True)

    def make(self, where: RemoteOptions) -> list[runtimes.Runtime]:
        """Make the runtimes, all of them before anything is measured."""
        return [self._make(text, where) for text in self.platforms]

    def speeds(self, where: RemoteOptions, runtime: runtimes.Runtime) -> Mapping[str, float]:
        """Measure what the device computes and moves; machines of a farm are not measured."""
        return speeds_of(runtime, self.device) if where.remote is None else {}

    def _make(self, text: str, where: RemoteOptions) -> runtimes.Runtime:
        runtime, precision = loading.split_runtime(text)
        return where.runtime(PlatformOptions(self.device, runtime, (), precision, self.threads))


@click.command("measure", cls=ReportingCommand)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@grouped(
    budget={
        "help": "Maximum time spent measuring on all platforms together, loading of networks included.",
        "default": "1h",
    },
    out={"help": "File of the data set.", "default": "networks.zip"},
)
def measure(
    files: tuple[Path, ...],
    wanted: _NetworkOptions,
    where: _PlatformsOptions,
    ending: ProtocolOptions,
    output: OutputOptions,
    store: StoreOptions,
    remote: RemoteOptions,
) -> None:
    """Measure many networks on several platforms: a data set.

    Networks are random members of families, or the ONNX FILES and folders that are given, of which every subfolder is a
    family. They are measured in batches, each network in several rounds over its batch; a few networks that are in
    every batch tell how fast the machine is. A network that a platform cannot run is named, and the others go on.

    An interrupted run can be resumed: run the same command again.
    """
    made = where.make(remote)
    out = output.path()
    networks = _prepare(files, wanted)
    speeds = where.speeds(remote, made[0])
    steps = [_Step(runtime, size, networks, speeds) for runtime in made for size in wanted.batch_sizes]
    _measure_all(steps, ending, store)
    measured = [step.found for step in steps if step.found is not None]
    if not measured:
        raise MeasurementError(next(step.reason for step in steps))
    written = datasets.save_networks(out, networks, measured)
    _remark(steps, written)
    print_report(_report(measured, out))


class _Step:
    """The networks of one batch size on one platform."""

    def __init__(
        self,
        runtime: runtimes.Runtime,
        size: int,
        networks: Sequence[datasets.NetworkFile],
        speeds: Mapping[str, float],
    ) -> None:
        self.runtime, self.size, self.speeds = runtime, size, speeds
        self.networks = [item for item in networks if item.batch_size == size]
        self.found: datasets.PlatformLatencies | None = None
        #: Why nothing could be measured.
        self.reason = ""

    @property
    def spent(self) -> float:
        """Time spent measuring, in earlier calls of the command, too [s]."""
        return self.found.duration if self.found is not None else 0.0

    @property
    def late(self) -> list[str]:
        """Networks that the budget did not reach."""
        if self.found is None:
            return []
        done = {*self.found.latencies, *self.found.failures}
        return [item.name for item in self.networks if item.key not in done]

    def measure(self, what: str, protocol: measurement.Protocol, store: StoreOptions) -> None:
        """Measure as long as the protocol says."""
        try:
            with Measuring(
                f"{number_of(len(self.networks), 'network')} at batch size {self.size} ({what})", self.runtime, store
            ) as bar:
                self.found = datasets.measure_networks(
                    self.networks, self.runtime, protocol=protocol, facts=self.speeds, **bar.how
                )
        except MeasurementError as error:
            self.reason = str(error)


def _measure_all(steps: Sequence[_Step], ending: ProtocolOptions, store: StoreOptions) -> None:
    """Measure on all platforms; what one leaves of its share of the budget goes to those that need more."""
    budget = ending.budget or datasets.DATASET_PROTOCOL.time_budget
    left, waiting = budget, list(steps)
    while waiting and (left > _LEAST_BUDGET or left == budget):
        share = left / len(waiting)
        for step in waiting:
            before = step.spent
            protocol = ending.of(datasets.DATASET_PROTOCOL, step.runtime.platform.threads)
            protocol = replace(protocol, time_budget=before + share)
            step.measure(f"{steps.index(step) + 1} of {len(steps)}", protocol, store)
            left -= step.spent - before
        # What is measured again is no longer fresh.
        store = replace(store, fresh=False)
        waiting = [step for step in waiting if step.late]


def _prepare(files: tuple[Path, ...], wanted: _NetworkOptions) -> list[datasets.NetworkFile]:
    """Find the networks of all batch sizes; files of families are written behind a progress bar."""
    networks = [item for size in wanted.batch_sizes if files for item in datasets.given_files(files, batch_size=size)]
    counts = _counts(wanted, () if files else ("all",))
    total = sum(counts.values()) * len(wanted.batch_sizes)
    if not total:
        return networks
    try:
        with progress(remarks()) as bar:
            part = Part(bar, "networks")
            for number, item in enumerate(_members(counts, wanted), 1):
                networks.append(item)
                part(number / total, f"preparing {number} of {number_of(total, 'network')}")
    except KeyboardInterrupt:
        raise interrupted("Run the same command again to resume.") from None
    return networks


def _counts(wanted: _NetworkOptions, usual: tuple[str, ...]) -> dict[graphs.NetworkFamily, int]:
    """Return how many networks of which families are measured.

    A family that is named counts as said there, and not as one of all, wherever that stands; named twice, as the last
    time.
    """
    found: dict[graphs.NetworkFamily, int] = {}
    for text in sorted(wanted.families or usual, key=lambda text: text.partition(":")[0] not in ("all", "blocks")):
        name, colon, number = text.partition(":")
        count = whole_number(number) if colon else wanted.per_family
        if not count:
            raise InvalidValueError(
                f"The family {text!r} must be a name, or a name and a number of networks >= 1, such as mixed:200. "
                f"Got the number {number!r}."
            )
        found |= dict.fromkeys(graphs.find_families([name]), count)
    return found


def _members(counts: Mapping[graphs.NetworkFamily, int], wanted: _NetworkOptions) -> Iterator[datasets.NetworkFile]:
    """Write the networks; those of all families are spread evenly, so that each meets the machine as the others do."""
    turns = sorted(
        ((number + 0.5) / count, place, number)
        for place, count in enumerate(counts.values())
        for number in range(count)
    )
    families = list(counts)
    members = [(families[place], wanted.seed + number) for _, place, number in turns]
    for size in wanted.batch_sizes:
        yield from datasets.family_files(members, batch_size=size, n_jobs=generating_jobs(len(members)))


def generating_jobs(count: int) -> int:
    """Return how many processes write so many networks side by side."""
    return len(platforms.affinity()) if count >= _MANY_NETWORKS else 1


def _remark(steps: Sequence[_Step], written: datasets.NetworkSet) -> None:
    """Name what could not be measured, and why."""
    for step in steps:
        place = f"{step.runtime.platform.id} at batch size {step.size}"
        if step.reason:
            remarks().print(escape(f"Nothing could be measured on {place}: {step.reason}"))
        if step.late:
            remarks().print(
                escape(
                    f"The budget was spent before measuring {number_of(len(step.late), 'network')} on {place}: "
                    f"{named(step.late)}. Run the same command with a larger one."
                )
            )
    for platform, failures in written.failures.items():
        reasons: dict[str, list[str]] = {}
        for name, reason in failures.items():
            reasons.setdefault(reason, []).append(name)
        for reason, names in reasons.items():
            remarks().print(escape(f"{platform} cannot run {named(names)}: {reason}."))


def _report(measured: Sequence[datasets.PlatformLatencies], out: Path) -> Report:
    rows: list[dict[str, Any]] = []
    for item in measured:
        spreads = sorted(found.repeatability for found in item.latencies.values())
        rows.append(
            {
                "platform": item.platform.id,
                "batch_size": item.batch_size,
                "networks": len(item.latencies),
                "failed": len(item.failures),
                "with_nodes": len(item.parts),
                "repeatability": spreads[len(spreads) // 2] if spreads else None,
                "duration": item.duration,
            }
        )
    columns = [
        Column("platform", "platform"),
        Column("batch size", "batch_size", str),
        Column("networks", "networks", str),
        Column("cannot run", "failed", str),
        Column("with node times", "with_nodes", str),
        Column("repeatability", "repeatability", format_percent, absent="?"),
        Column("time", "duration", metric="duration"),
    ]
    return Report(Grid(rows, columns, "Networks measured"), {"platforms": rows}, after=[f"Wrote {out}"])
