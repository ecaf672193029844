# SPDX-License-Identifier: Apache-2.0
"""``nni-latency learn graph`` without data: this machine is measured and added to the user's predictor."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape

import nni_latency.graphs as graphs
import nni_latency.learning as learn
import nni_latency.loading as loading
import nni_latency.measurement.runtimes as runtimes
from nni_latency.cli._console import interrupted, named, progress, remarks, time_left
from nni_latency.cli._measuring import (
    RESUMABLE,
    PlatformOptions,
    device_option,
    is_elsewhere,
    make_runtime,
    speeds_of,
    threads_option,
)
from nni_latency.cli._option import DURATION, option
from nni_latency.cli._report import Column, Grid, Report, print_report
from nni_latency.files import reserved
from nni_latency.platforms import Platform
from nni_latency.units import format_percent, number_of


@dataclass(frozen=True)
class MachineOptions:
    """Measuring on this machine, where no data is named."""

    runtime: str = option(
        "Runtime, with a precision if it is not fp32, such as openvino:bf16.",
        metavar="NAME[:PRECISION]",
        default="torch",
    )
    device: str = device_option(rare=True)
    threads: int = threads_option(rare=True)
    budget: float = option("Maximum time for measuring and learning.", type=DURATION, default="3min")
    fresh: bool = option("Measure again what the database already holds.", default=False, rare=True)

    def platform_options(self) -> PlatformOptions:
        """Return the options of the runtime."""
        runtime, precision = loading.split_runtime(self.runtime)
        return PlatformOptions(self.device, runtime, (), precision, self.threads)


#: The fields of `MachineOptions`, which have no effect on anything else that is learned from.
MACHINE_FIELDS = ("runtime", "device", "threads", "budget", "fresh")


def learn_this_machine(asked: MachineOptions, database: str | None, out: Path | None) -> None:
    """Measure networks that ship on this machine, and add its platform to the user's predictor.

    Parameters
    ----------
    asked : MachineOptions
        Where, and for how long.
    database : str or None
        Where measurements are kept.
    out : Path or None
        File of the predictor; by default the user's own.

    Raises
    ------
    LatencyError
        As for `nni_latency.learning.measure_machine`.
    BusyError
        If another process learns this machine.
    """
    runtime = make_runtime(asked.platform_options())
    own = graphs.own_predictor()
    with contextlib.ExitStack() as open_files:
        if out is None:
            open_files.enter_context(reserved(own, "learning"))
        base = learn.base_predictor()
        try:
            measured, learned = _measure_and_learn(asked, runtime, base, database)
        except KeyboardInterrupt:
            raise interrupted(RESUMABLE) from None
        written = learned.predictor.save(out or own)
    _remark(base, learned.platform, measured.failures)
    print_report(_report(learned, measured, written))


def _measure_and_learn(
    asked: MachineOptions, runtime: runtimes.Runtime, base: learn.BasePredictor, database: str | None
) -> tuple[learn.MachineMeasurements, learn.LearnedPlatform]:
    """Measure and learn behind a progress bar."""
    console = remarks()
    bar = progress(console)
    task = bar.add_task("choosing networks", total=1.0, left="")
    begun: list[int] = []

    def watch(what: str, share: float) -> None:
        left = time_left((1 - share) * asked.budget)
        bar.update(task, description=what, completed=share, left=f"at most {left}")
        # Not before, so that an error appears without a bar before it.
        bar.start()

    def begin(rounds: int) -> None:
        if rounds and not begun:
            console.print(f"Resuming after {number_of(rounds, 'round')}")
        begun.append(rounds)

    try:
        measured = learn.measure_machine(
            runtime,
            asked.budget,
            device=None if is_elsewhere(runtime) else asked.device,
            facts=lambda: speeds_of(runtime, asked.device),
            watch=watch,
            store=database,
            fresh=asked.fresh,
            on_start=begin,
        )
        what = f"learning from {number_of(len(measured.networks), 'network')}"
        measuring = 1 - learn.LEARNING_SHARE
        bar.update(task, description=what, completed=measuring, left="")
        learned = learn.learn_machine(
            base.predictor,
            measured.networks,
            lambda done, total: bar.update(task, completed=measuring + learn.LEARNING_SHARE * done / total),
        )
    finally:
        # A bar that was never shown would print an empty line.
        if bar.live.is_started:
            bar.stop()
    return measured, learned


def _remark(base: learn.BasePredictor, platform: Platform, failures: Mapping[str, str]) -> None:
    """Name what could not be measured, and the platforms of an older predictor, which have to be learned again."""
    reasons: dict[str, list[str]] = {}
    for name, reason in failures.items():
        reasons.setdefault(reason.rstrip("."), []).append(name)
    lines = [f"{platform.id} cannot run {named(names)}: {reason}." for reason, names in reasons.items()]
    again = [learn_command(item) for item in base.dropped if item.id != platform.id]
    if base.reason:
        lines.append(f"{base.reason.rstrip('.')}. The new one begins with the predictor that ships.")
    if again:
        lines.append(f"Learn the other platforms again: {'; '.join(again)}")
    for line in lines:
        remarks().print(escape(line))


def learn_command(platform: Platform) -> str:
    """Return the command that learns a platform again; how another device is reached is not known."""
    precision = f":{platform.precision}" if platform.precision != "fp32" else ""
    threads = f" --threads {platform.threads}" if platform.threads != 1 else ""
    device = " --device cuda" if platform.facts.get("device_kind") == "cuda" else ""
    if platform.device not in learn.devices_here():
        device = " --device DEVICE"
    return f"nni-latency learn graph --runtime {platform.runtime}{precision}{device}{threads} --fresh"


def _report(learned: learn.LearnedPlatform, measured: learn.MachineMeasurements, path: Path) -> Report:
    row = {
        "platform": learned.platform.id,
        "networks": learned.networks,
        "failed": len(measured.failures),
        "held_out": learned.kept_apart,
        "mape": learned.error,
        "inside": learned.inside,
        "duration": measured.spent,
    }
    columns = [
        Column("platform", "platform"),
        Column("networks", "networks", str),
        Column("cannot run", "failed", str),
        Column("kept apart", "held_out", str),
        Column("error, kept apart", "mape", format_percent, absent="?"),
        Column("inside of the interval", "inside", str),
        Column("measuring", "duration", metric="duration"),
    ]
    own = path == graphs.own_predictor()
    use = "nni-latency predict NET" if own else f"nni-latency predict NET -e {path}"
    lines = [_error(learned), f"Wrote {path}", f"Ask it: {use}"]
    content = {**row, "file": str(path)}
    return Report(Grid([row], columns), content, rows=[row], after=lines)


def _error(learned: learn.LearnedPlatform) -> str:
    if learned.error is None:
        return f"{number_of(learned.networks, 'network')} are too few to keep some apart: its error is not known."
    return (
        f"Off by {format_percent(learned.error)} on {number_of(learned.kept_apart, 'network')} kept apart, "
        f"{learned.inside} of {learned.kept_apart} inside of the interval."
    )
