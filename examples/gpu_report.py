# SPDX-License-Identifier: Apache-2.0
"""Everything that needs a GPU, in half an hour at most, and one report of it.

Run it with ``make gpu``. It runs the tests marked gpu, builds an FBNet table at batch 1 and 32 and validates each, does
the same for energy at the larger batch, profiles the operators of five networks there, reads the meters at rest and at
work, runs the micro-benchmarks and fits them, and holds the memory that is counted to what CUDA's allocator says. The
folder of --out then holds ``report.json`` and ``report.md`` with the pictures. A step that fails is reported, and the
others go on; the exit code is 1 then. Without a GPU it says so and exits with 0.
"""

from __future__ import annotations

import json
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch

from nni_latency import FBNetSpace, LookupTable, TableEstimator
from nni_latency.errors import LatencyError, MeasurementError
from nni_latency.files import write_atomically
from nni_latency.loading import load_meter
from nni_latency.measurement import Meter, activation_memory, cuda_activation_memory, parameter_memory
from nni_latency.platforms import Platform, list_devices, resolve_device
from nni_latency.spaces import choices_of
from nni_latency.units import format_metric, format_percent, format_seconds

#: Seconds that all of it and each measuring step may spend, and options of the space.
FULL: dict[str, Any] = {
    "limit": 1800, "build": 60, "validate": 40, "blocks": 60, "batches": (1, 32), "space": {},
    # A network is repeated for seconds until its energy is known: a round takes a minute and more.
    "energy": 240, "validate_energy": 240, "meters": ("nvml:energy", "nvml:power"), "operators": 90,
    "models": ("resnet18", "mobilenetv2", "squeezenet", "efficientnet", "vit"),
}  # fmt: skip
_SMALL = {"input_size": 32, "num_classes": 10, "width": 0.25, "depth": 0.25}
TINY: dict[str, Any] = {"build": 4, "validate": 8, "blocks": 20, "batches": (1, 2), "space": _SMALL}
TINY |= {"limit": 1500, "energy": 4, "validate_energy": 8, "meters": ("constant:30",), "operators": 10}
TINY |= {"models": ("nasbench201",)}

#: Ways to add up the operators of a network.
_WAYS = ("memory", "reused", "context")

Step = dict[str, Any]


class StepError(Exception):
    """Raised when a step cannot be done; the message is one sentence."""


class Report:
    """Runs the steps one after another, each into the same folder, and remembers what came of them."""

    def __init__(self, device: str, settings: dict[str, Any], out: Path) -> None:
        self.device, self.settings, self.out = device, settings, out
        self.started = time.monotonic()
        self.steps: dict[str, Step] = {}

    def run(self, name: str, step: Callable[[], Step]) -> None:
        """Do a step and keep its figures, or why it failed."""
        click.echo(f"\n== {name}")
        begun = time.monotonic()
        try:
            figures = step()
        except (StepError, LatencyError, torch.OutOfMemoryError) as error:
            figures = {"error": str(error)}
            click.echo(str(error), err=True)
        self.steps[name] = {**figures, "seconds": round(time.monotonic() - begun, 1)}

    def command(self, *arguments: str) -> str:
        """Print a command of Python and run it in the time that is left; return what it printed."""
        click.echo(f"$ python -m {shlex.join(arguments)}")
        left = self.settings["limit"] - (time.monotonic() - self.started)
        if left <= 0:
            raise StepError(f"The time was over before '{shlex.join(arguments[:3])}' began.")
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            printed, remarks = process.communicate(timeout=left)
        except subprocess.TimeoutExpired as error:
            # An interrupted command ends its workers, which would hold the GPU during the next step.
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
            raise StepError(f"The time was over before '{shlex.join(arguments[:3])}' had ended.") from error
        if process.returncode:
            last = (remarks.strip() or printed.strip()).splitlines()[-12:]
            raise StepError(f"'{shlex.join(arguments[:3])}' ended with code {process.returncode}: " + "\n".join(last))
        return printed

    def tests(self) -> Step:
        """Run the tests marked gpu."""
        files = [str(path) for path in sorted(Path("tests").rglob("test_*.py")) if "mark.gpu" in path.read_text()]
        # Nothing that setup.cfg adds, such as the doctests of the package.
        options = ("-q", "-m", "gpu", "-o", "addopts=--strict-markers", "-p", "no:cacheprovider")
        return {"summary": self.command("pytest", *options, *files).strip().splitlines()[-1]}

    def meters(self) -> Step:
        """Say what every meter reads of an idle device and of a busy one, and how often it is updated."""
        rows = []
        for name in self.settings["meters"]:
            meter = load_meter(name, self.device)
            try:
                rows.append({"meter": name, **_reading(meter, self.device)})
            except MeasurementError as error:
                rows.append({"meter": name, "error": str(error)})
        if all("error" in row for row in rows):
            raise StepError(" ".join(row["error"] for row in rows))
        return {"meters": rows}

    def table(self, batch_size: int, metric: str = "latency") -> Step:
        """Build a table of FBNet and hold it to whole networks."""
        path = self.out / f"fbnet-b{batch_size}.json"
        building, validating, meter = self.settings["build"], self.settings["validate"], ()
        if metric != "latency":
            path = path.with_suffix(f".{metric}.json")
            building, validating = self.settings["energy"], self.settings["validate_energy"]
            meter = ("--meter", self.meter, "--metric", metric)
        validation = path.with_suffix(".validation.json")
        options = ("--space-args", json.dumps(self.space))
        self.command(
            *("nni_latency", "build-lut", "--device", self.device, "--batch-size", str(batch_size), *options),
            *(*meter, "--budget", f"{building}s", "--out", str(path), "--overwrite", "--fresh"),
        )
        printed = self.command(
            *("nni_latency", "validate", str(path), "--device", self.device, "--networks", "12", "--format", "json"),
            *(*meter[:2], "--budget", f"{validating}s"),
            *("--out", str(validation), "--overwrite", "--fresh"),
        )
        table, found = LookupTable.load(path), json.loads(printed)
        return {
            "table": path.name,
            "platform": table.platform.id,
            "metric": metric,
            "coverage": table.coverage,
            "rounds": table.rounds,
            "range": TableEstimator(table).cost.range,
            "remarks": table.remarks,
            **{name: found[name] for name in ("scores", "repeatability", "speed", "failures")},
            "picture": validation.with_suffix(".png").name,
        }

    def operators(self) -> Step:
        """Profile the operators of a few networks at the larger batch."""
        out, picture = self.out / "operators.json", self.out / "operators.png"
        printed = self.command(
            *("nni_latency", "profile", "--measure", *self.settings["models"]),
            *("--device", self.device, "--batch-size", str(max(self.settings["batches"])), "--meter", self.meter),
            *("--budget", f"{self.settings['operators']}s", "--out", str(out), "--plot", str(picture)),
            *("--format", "json", "--overwrite", "--fresh"),
        )
        return {"models": json.loads(printed)["models"], "picture": picture.name}

    def micro_benchmarks(self) -> Step:
        """Run the micro-benchmarks and fit them."""
        picture = self.out / "acts.png"
        printed = self.command(
            *("nni_latency", "learn", "device", "--device", self.device, "--out", str(self.out / "acts.json")),
            *("--points", str(self.out / "points.json"), "--plot", str(picture)),
            *("--format", "json", "--overwrite", "--fresh", "--budget", f"{self.settings['blocks']}s"),
        )
        return {**json.loads(printed), "picture": picture.name}

    def memory(self) -> Step:
        """Compare the memory that is counted with what the device's allocator gives out."""
        space = FBNetSpace(**self.space)
        draw = random.Random(0)
        rows = []
        for batch_size in self.settings["batches"]:
            sample = {label: draw.choice(choices) for label, choices in choices_of(space).items()}
            rows.append({"batch_size": batch_size, **self._memory_of(space.freeze(sample), batch_size)})
        return {"networks": rows}

    def _memory_of(self, network: torch.nn.Module, batch_size: int) -> dict[str, int]:
        inputs = FBNetSpace(**self.space).example_inputs(batch_size)
        counted = {
            "parameters_counted": parameter_memory(network),
            "activations_counted": activation_memory(network, inputs),
        }
        if self.device == "cpu":
            # It has no counters; the pass that is computed stands in for them.
            measured = counted["parameters_counted"], activation_memory(network, inputs, compute=True)
        else:
            measured = _allocated(network, self.device), cuda_activation_memory(network, inputs.to(self.device))
        return {**counted, "parameters_allocated": measured[0], "activations_allocated": measured[1]}

    @property
    def meter(self) -> str:
        """The meter of energy: the way that fits the device, or the one of the settings on a processor."""
        first: str = self.settings["meters"][0]
        return first if self.device == "cpu" else first.partition(":")[0]

    @property
    def space(self) -> dict[str, Any]:
        """Options of the space."""
        options: dict[str, Any] = self.settings["space"]
        return options

    @property
    def failed(self) -> list[str]:
        """Names of the steps that failed."""
        return [name for name, step in self.steps.items() if "error" in step]

    def write(self) -> None:
        """Write both files of the report."""
        platform = Platform.current(self.device)
        content = {
            "device": self.device,
            "platform": {"id": platform.id, "facts": dict(platform.facts)},
            "seconds": round(time.monotonic() - self.started, 1),
            "steps": self.steps,
        }
        write_atomically(self.out / "report.json", json.dumps(content, indent=1) + "\n")
        write_atomically(self.out / "report.md", _page(content))


def _reading(meter: Meter, device: str) -> Step:
    """Return how often a meter is updated [s], and the power of the device at rest and at work [W]."""
    matrix = torch.ones(2048 if device != "cpu" else 64, 2048 if device != "cpu" else 64, device=device)
    with meter.session():
        idle = meter.idle()
        meter.start()
        begin = time.perf_counter()
        while time.perf_counter() - begin < max(1.0, meter.shortest):
            for _ in range(20):
                matrix = (matrix @ matrix).clamp(-1, 1)
            if device != "cpu":
                torch.cuda.synchronize(device)
        seconds = time.perf_counter() - begin
        joules = meter.stop()
        seen = {name: list(values) for name, values in meter.observations().items()}
        return {"period": meter.period, "idle": idle, "busy": joules / seconds, "seen": seen}


def _allocated(network: torch.nn.Module, device: str) -> int:
    """Return what a network's parameters raise the allocator's counter by [byte]."""
    before = torch.cuda.memory_allocated(device)
    placed = network.to(device)
    after = torch.cuda.memory_allocated(device)
    placed.cpu()
    return after - before


def _page(content: dict[str, Any]) -> str:
    """Write the report for a person."""
    facts = [f"| {name} | {value} |" for name, value in content["platform"]["facts"].items()]
    lines = [f"# {content['platform']['id']}", "", f"All steps took {format_seconds(content['seconds'])}.", ""]
    lines += ["| fact | value |", "| --- | --- |", *facts]
    for name, step in content["steps"].items():
        lines += ["", f"## {name}", "", *_section(step), "", f"It took {format_seconds(step['seconds'])}."]
    return "\n".join(lines) + "\n"


def _section(step: Step) -> list[str]:
    if "error" in step:
        return ["**It failed:**", "", "```", step["error"], "```"]
    lines = [f"{name}: {step[name]}" for name in ("summary",) if name in step]
    if "scores" in step:
        low, high = (format_metric(value, step["metric"]) for value in step["range"])
        lines += [f"{step['rounds']} rounds, coverage {format_percent(step['coverage'])}; networks of {low} to {high}."]
        lines += ["", "| | MAPE | bias | within 10 % | Spearman |", "| --- | ---: | ---: | ---: | ---: |"]
        lines += [
            f"| {name} | {format_percent(row['mape'])} | {row['bias']:+.1%} | {format_percent(row['within10'])} "
            f"| {row['spearman']:.4f} |"
            for name, row in (("predicted", step["scores"]), ("repeatability", step["repeatability"]))
        ]
        lines += ["", *(f"- {remark}" for remark in step["remarks"])]
    if "meters" in step:
        lines += [
            f"- {row['meter']}: "
            + (
                row.get("error")
                or f"updated every {format_seconds(row['period'])}, {row['idle']:.3g} W idle, {row['busy']:.3g} W busy"
            )
            for row in step["meters"]
        ]
    if "models" in step:
        lines += [_model_line(row) for row in step["models"]]
    if "held_out" in step:
        lines.append(f"{step['points']} points, median error of blocks held out {step['held_out']['median']:.1%}.")
    if "networks" in step:
        lines += ["| batch | what | counted | allocated | ratio |", "| ---: | --- | ---: | ---: | ---: |"]
        lines += [_memory_row(row, what) for row in step["networks"] for what in ("parameters", "activations")]
    return [*lines, "", f"![]({step['picture']})"] if "picture" in step else lines


def _model_line(row: dict[str, Any]) -> str:
    latency, energy = format_seconds(row["latency_s"]), format_metric(row["energy"], "energy")
    sums = [
        f"{noun} {', '.join(f'{format_percent(value)} {way}' for way, value in known.items())}"
        for noun, metric in (("time", "latency"), ("energy", "energy"))
        if (known := {way: row[f"{metric}_{way}"] for way in _WAYS if row[f"{metric}_{way}"] is not None})
    ]
    return f"- {row['model']}: {latency}, {energy}; sum of its operators over the whole: {'; '.join(sums)}"


def _memory_row(row: dict[str, int], what: str) -> str:
    counted, allocated = row[f"{what}_counted"], row[f"{what}_allocated"]
    amounts = " | ".join(format_metric(amount, "activation_memory") for amount in (counted, allocated))
    return f"| {row['batch_size']} | {what} | {amounts} | {allocated / counted:.3f} |"


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--out", type=click.Path(path_type=Path), default=Path("report-gpu"), show_default=True, help="Folder.")
@click.option("--device", default="cuda", hidden=True)
@click.option("--tiny", is_flag=True, hidden=True)
def main(out: Path, device: str, tiny: bool) -> None:
    """Run every step and write the report."""
    if device == "cuda" and len(list_devices()) == 1:
        click.echo("There is no GPU here that torch can use, so there is nothing to report.")
        return
    out.mkdir(parents=True, exist_ok=True)
    report = Report(resolve_device(device), TINY if tiny else FULL, out)
    report.run("tests marked gpu", report.tests)
    for batch_size in report.settings["batches"]:
        report.run(f"FBNet at batch {batch_size}", lambda size=batch_size: report.table(size))
    largest = max(report.settings["batches"])
    report.run(f"energy of FBNet at batch {largest}", lambda: report.table(largest, "energy"))
    report.run(f"operators at batch {largest}", report.operators)
    report.run("micro-benchmarks", report.micro_benchmarks)
    # Last, because these are in this process, which then holds memory of the GPU.
    report.run("meters", report.meters)
    report.run("memory", report.memory)
    report.write()
    click.echo(f"\nWrote {out / 'report.md'} and {out / 'report.json'}")
    if report.failed:
        click.echo(f"Failed: {', '.join(report.failed)}.", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
