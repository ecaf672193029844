"""What ``nni-latency search`` found: as files, and on the screen."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table
from safetensors.torch import save as safetensors_bytes

from nni_latency.cli._console import results
from nni_latency.cli._searched import Searched
from nni_latency.estimators import (
    AdditiveCost,
    LayerEstimator,
    MeasuringEstimator,
    TableEstimator,
    break_down,
)
from nni_latency.files import write_atomically
from nni_latency.measurement import Measurement
from nni_latency.nas import LatencyProfiler, SearchResult, Trial
from nni_latency.platforms import Platform
from nni_latency.plots import SearchPicture, draw_search
from nni_latency.units import format_metric, format_percent, format_seconds

FILES = ("result.json", "weights.safetensors", "search.json", "search.png")

#: A measurement and where it was taken.
Measured = tuple[Measurement, Platform]

#: How deep in the tree of modules the parts are that a network is reported by, and how many are listed.
_DEPTH, _LISTED = 2, 40


@dataclass(frozen=True)
class Found:
    """A search that is over.

    Parameters
    ----------
    searched : Searched
        The space.
    strategy : str
        Name of the strategy.
    profiler : LatencyProfiler
        The costs that it obeyed.
    result : SearchResult
        What it found.
    measured : Measured or None
        What the network found takes on this device, if that was measured.
    target, aim : float
        Highest latency asked for, and that less the margin [s].
    options : mapping
        Of the command.
    """

    searched: Searched
    strategy: str
    profiler: LatencyProfiler
    result: SearchResult
    measured: Measured | None
    target: float
    aim: float
    options: Mapping[str, Any]

    @cached_property
    def parts(self) -> list[tuple[str, str, float]]:
        """Name, choice and latency [s] of every layer of the network found, or of every block of its modules."""
        return _parts(self)


def write_found(found: Found, out: Path) -> None:
    """Write the sample, the weights, the record and the picture."""
    result, options = found.result, found.options
    write_atomically(out / "result.json", json.dumps(result.sample, indent=1) + "\n")
    state = {name: tensor.contiguous().cpu() for name, tensor in result.network.state_dict().items()}
    write_atomically(out / "weights.safetensors", safetensors_bytes(state))
    content = {
        "space": found.searched.name,
        "space_arguments": dict(found.searched.arguments),
        "input_shape": found.searched.input_shape,
        "strategy": found.strategy,
        "seed": options["seed"],
        "estimator": options["latency_estimator"],
        "platform": found.profiler.estimator.platform.id,
        "dataset": options["dataset"],
        "target_s": found.target,
        "aim_s": found.aim,
        "predicted_s": result.latency,
        "missing": found.profiler.cost.missing,
        "measured_s": _record(found.measured),
        "accuracy": result.accuracy,
        "sample": result.sample,
        "history": [dataclasses.asdict(step) for step in result.history],
    }
    write_atomically(out / "search.json", json.dumps(content, indent=1) + "\n")
    picture = SearchPicture(
        found.parts,
        [(step.latency, step.accuracy) for step in result.history],
        result.latency,
        result.accuracy,
        found.target,
        None if found.measured is None else found.measured[0].summary.value,
        f"{found.searched.name} on {options['dataset']}, {found.profiler.estimator.platform.id}",
        trials=any(isinstance(step, Trial) for step in result.history),
    )
    draw_search(picture, out / "search.png")


def print_found(found: Found, out: Path) -> None:
    """Print the parts of the network, what was predicted and measured, and its accuracy."""
    result, metric = found.result, found.profiler.cost.metric
    grid = Table(padding=(0, 1))
    grid.add_column("layer")
    grid.add_column("choice")
    grid.add_column("latency", justify="right")
    grid.add_column("share", justify="right")
    for name, choice, cost in found.parts:
        grid.add_row(escape(name), escape(choice), format_metric(cost, metric), format_percent(cost / result.latency))
    console = results()
    console.print(grid)
    console.print(f"predicted  {format_seconds(result.latency)} (target {format_seconds(found.target)})")
    if found.measured is not None:
        measured = found.measured[0].summary
        error = result.latency / measured.value - 1
        verdict = (
            "meets the target"
            if measured.value <= found.target
            else f"[red]misses the target by {format_percent(measured.value / found.target - 1)}[/]"
        )
        console.print(
            f"measured   {format_seconds(measured.value)} ({format_seconds(measured.low)} to "
            f"{format_seconds(measured.high)}): {verdict}; the prediction is {error * 100:+.1f} % off"
        )
    console.print(f"accuracy   {format_percent(result.accuracy)} on held-back pictures")
    console.print(f"Wrote {escape(', '.join(str(out / name) for name in FILES))}", soft_wrap=True)


def _record(measured: Measured | None) -> dict[str, Any] | None:
    """Return a measurement with all that belongs to it: samples, protocol and platform."""
    if measured is None:
        return None
    measurement, platform = measured
    return {
        **dataclasses.asdict(measurement.summary),
        "platform": {"id": platform.id, "facts": dict(platform.facts)},
        "protocol": measurement.protocol.as_dict(),
        "samples": measurement.samples,
        "warmups": measurement.warmups,
    }


def _parts(found: Found) -> list[tuple[str, str, float]]:
    """List name, choice and latency of every layer of the network found, or of every block of its modules."""
    cost, estimator = found.profiler.cost, found.profiler.estimator
    if isinstance(cost, AdditiveCost):
        return _layers(found, cost)
    if isinstance(estimator, MeasuringEstimator) or not isinstance(estimator, LayerEstimator):
        return [("network", "choices that act together", found.result.latency)]
    network = found.result.network.cpu().eval()
    operators = break_down(estimator, network, torch.zeros(found.searched.input_shape)).operators
    shares: dict[str, list[float]] = {}
    for operator in operators:
        shares.setdefault(".".join(operator.name.split(".")[:_DEPTH]) or "network", []).append(operator.share)
    parts = [(name, _counted(len(row)), found.result.latency * sum(row)) for name, row in shares.items()]
    rest = parts[_LISTED:]
    more = [(f"and {len(rest)} more", "", sum(cost for _, _, cost in rest))] if rest else []
    return [*parts[:_LISTED], *more]


def _counted(operators: int) -> str:
    return f"{operators} operator{'s' if operators > 1 else ''}"


def _layers(found: Found, cost: AdditiveCost) -> list[tuple[str, str, float]]:
    """List the layers where each has a cost; what is fixed comes as one."""
    sample = found.result.sample
    parts = {label: cost.costs[label][sample[label]] for label in cost.costs}
    # So that the layers make up the latency, less what a small network saves.
    factor = cost(sample) / (cost.constant + sum(parts.values()))
    searched = [(label, str(sample[label]), factor * part) for label, part in parts.items()]
    estimator = found.profiler.estimator
    fixed = (
        len([layer for layer in estimator.table.layers if not layer.searched])
        if isinstance(estimator, TableEstimator)
        else 0
    )
    return [*searched, ("rest", f"{fixed} fixed layers" if fixed else "fixed", factor * cost.constant)]
