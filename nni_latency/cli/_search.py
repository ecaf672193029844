"""``nni-latency search``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from safetensors.torch import save as safetensors_bytes

from nni_latency.cli._console import progress, remarks, results
from nni_latency.cli._options import (
    arguments_for,
    check_batch_size,
    check_device,
    estimator_option,
    make_space,
    plan_for,
    space_options,
)
from nni_latency.cli._worker import MeasureTask, measure_apart
from nni_latency.errors import InvalidValueError, LatencyError, MismatchError
from nni_latency.estimators import AdditiveCost, Estimator, TableEstimator
from nni_latency.files import check_writable, write_atomically
from nni_latency.loading import load_estimator
from nni_latency.measurement import Measurement
from nni_latency.nas import (
    Dataset,
    Epoch,
    FBNet,
    LatencyProfiler,
    SearchResult,
    SearchSettings,
    load_dataset,
    run_search,
)
from nni_latency.platforms import Platform
from nni_latency.plots import SearchPicture, draw_search
from nni_latency.plugins import load_registry
from nni_latency.units import format_metric, format_percent, format_seconds

_SETTINGS = SearchSettings()
#: A measurement and where it was taken.
_Measured = tuple[Measurement, Platform]
FILES = ("result.json", "weights.safetensors", "search.json", "search.png")


@click.command("search")
@space_options
@estimator_option
@click.option("--target-ms", type=float, required=True, help="Highest latency of the network to be found [ms].")
@click.option(
    "--margin",
    type=click.FloatRange(0, 0.5),
    default=0.05,
    show_default=True,
    help="Share of the target kept free for the estimate's error.",
)
@click.option("--dataset", default="digits", show_default=True, help="digits, cifar10 or folder:PATH.")
@click.option(
    "--data-folder",
    type=click.Path(path_type=Path),
    default=Path("data"),
    show_default=True,
    help="Where cifar10 is kept.",
)
@click.option("--epochs", type=int, default=_SETTINGS.epochs, show_default=True, help="Epochs of the search.")
@click.option(
    "--final-epochs",
    type=int,
    default=_SETTINGS.final_epochs,
    show_default=True,
    help="Epochs that the network found learns on.",
)
@click.option(
    "--train-batch-size", type=int, default=_SETTINGS.batch_size, show_default=True, help="Pictures per training step."
)
@click.option(
    "--learning-rate", type=float, default=_SETTINGS.learning_rate, show_default=True, help="Of the weights (Adam)."
)
@click.option(
    "--arc-learning-rate", type=float, default=0.05, show_default=True, help="Of the architecture parameters (Adam)."
)
@click.option("--weight", type=float, default=1.0, show_default=True, help="Weight of the latency in the loss.")
@click.option("--batch-size", type=click.IntRange(1), help="Pictures per run on the device; must be that of the table.")
@click.option("--device", help="Ask for this machine's device: the estimator must be of it.")
@click.option("--measure/--no-measure", default=True, show_default=True, help="Measure the network found.")
@click.option(
    "--threads",
    type=int,
    default=_SETTINGS.threads,
    show_default=True,
    help="Threads that learn; small pictures gain little from more.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("search"), show_default=True, help="Folder for the results."
)
def command(**options: Any) -> None:
    """Search a network that meets a latency target, and check it on this device.

    The supernet learns from the data set's own pictures; latency counts for the input size of the estimator. Writes
    result.json (an NNI sample), weights.safetensors, search.json and search.png.
    """
    estimator = load_estimator(options["latency_estimator"], missing=options["missing"])
    if estimator.metric != "latency":
        raise MismatchError(f"The estimator gives {estimator.metric}, --target-ms asks for latency.")
    check_device(estimator, options["device"])
    settings = SearchSettings(
        options["epochs"],
        options["final_epochs"],
        options["train_batch_size"],
        options["learning_rate"],
        options["seed"],
        options["threads"],
    )
    batch_size = check_batch_size(estimator, options["batch_size"])
    arguments = arguments_for(estimator, options["space"], options, ignore=("num_classes",))
    dataset = load_dataset(options["dataset"], options["data_folder"], seed=options["seed"])
    if options["num_classes"] not in (None, dataset.num_classes):
        raise MismatchError(
            f"The data set {dataset.name} has {dataset.num_classes} classes, asked is {options['num_classes']}."
        )
    torch.manual_seed(settings.seed)
    arguments = {**arguments, "num_classes": dataset.num_classes}
    space = make_space(options["space"], arguments)
    inputs = torch.zeros(plan_for(space, options["space"], batch_size).input_shape)
    target = options["target_ms"] / 1e3
    strategy = _strategy(estimator, space, target, inputs, options)
    out: Path = options["out"]
    for name in FILES:
        check_writable(out / name)
    _announce(remarks(), space, dataset, estimator, options)
    result = _run(space, dataset, strategy, settings)
    measured = None
    if options["measure"]:
        measured = _measure(
            estimator.platform, options["device"], options["space"], arguments, result.sample, tuple(inputs.shape)
        )
    _write(out, result, strategy, measured, target, options)
    _print(result, strategy, measured, target, out)


def _strategy(estimator: Estimator, space: Any, target: float, inputs: Any, options: dict[str, Any]) -> FBNet:
    """Make the strategy; a target out of reach is told before anything is learned."""
    profiler = LatencyProfiler(space, inputs, latency_estimator=estimator)
    profiler.cost.check_target(target)
    if profiler.cost.missing:
        remarks().print(
            "Not in the estimator as asked, taken from the nearest entry or left out: "
            f"{escape(', '.join(profiler.cost.missing))}"
        )
    aim = target * (1 - options["margin"])
    if aim < profiler.cost.range[0]:
        raise InvalidValueError(
            f"The target of {format_seconds(target)} leaves no room for a margin of "
            f"{format_percent(options['margin'])}: the fastest network takes {format_seconds(profiler.cost.range[0])}. "
            "Raise --target-ms or lower --margin."
        )
    return FBNet(
        estimator,
        target=aim,
        example_inputs=inputs,
        weight=options["weight"],
        arc_learning_rate=options["arc_learning_rate"],
    )


def _announce(console: Console, space: Any, dataset: Dataset, estimator: Estimator, options: dict[str, Any]) -> None:
    scale = f"width {space.geometry.width:g}, depth {space.geometry.depth:g}" if hasattr(space, "geometry") else ""
    console.print(
        f"Searching {options['space']} ({scale}; {len(space.simplify())} layers) on {dataset.name} for "
        f"{options['target_ms']:g} ms on {estimator.platform.id}"
    )


def _run(space: Any, dataset: Dataset, strategy: FBNet, settings: SearchSettings) -> SearchResult:
    console = remarks()
    with progress(console) as bar:
        search = bar.add_task("searching", total=settings.epochs, left="")
        final = bar.add_task("final training", total=max(1, settings.final_epochs), left="", start=False)

        def on_epoch(epoch: Epoch) -> None:
            left = (settings.epochs - epoch.index - 1) * epoch.duration
            bar.update(search, advance=1, left=f"{format_seconds(left)} left" if left else "")
            console.print(
                f"epoch {epoch.index + 1}: loss {epoch.loss:.3f}, accuracy {format_percent(epoch.accuracy)}, "
                f"expected latency {format_seconds(epoch.latency)}, temperature {epoch.temperature:.2f}"
            )

        def on_final_epoch(index: int) -> None:
            bar.start_task(final)
            bar.update(final, completed=index + 1)

        return run_search(space, dataset, strategy, settings, on_epoch=on_epoch, on_final_epoch=on_final_epoch)


def _measure(
    platform: Platform,
    asked: str | None,
    space: str,
    arguments: dict[str, Any],
    sample: dict[str, Any],
    shape: tuple[int, ...],
) -> _Measured | None:
    """Measure the network found where the estimator's platform is at hand; say why not otherwise."""
    device = asked or ("cuda" if platform.facts.get("device_kind") == "cuda" else "cpu")
    task = MeasureTask(space, arguments, sample, shape, platform.runtime, device, platform.threads, platform.precision)
    try:
        here: Platform = (
            load_registry()
            .find("runtime", task.runtime)
            .make(device, threads=task.threads, precision=task.precision)
            .platform
        )
    except LatencyError as error:
        remarks().print(f"Not measured: {escape(str(error))}")
        return None
    differences = platform.differences(here)
    if differences:
        remarks().print(f"Not measured: the estimator is of another platform ({'; '.join(differences)}).")
        return None
    return measure_apart(task), here


def _record(measured: _Measured | None) -> dict[str, Any] | None:
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


def _write(
    out: Path,
    result: SearchResult,
    strategy: FBNet,
    measured: _Measured | None,
    target: float,
    options: dict[str, Any],
) -> None:
    write_atomically(out / "result.json", json.dumps(result.sample, indent=1) + "\n")
    state = {name: tensor.contiguous().cpu() for name, tensor in result.network.state_dict().items()}
    write_atomically(out / "weights.safetensors", safetensors_bytes(state))
    content = {
        "space": options["space"],
        "estimator": options["latency_estimator"],
        "platform": _profiler(strategy).estimator.platform.id,
        "dataset": options["dataset"],
        "target_s": target,
        "aim_s": strategy.target,
        "predicted_s": result.latency,
        "missing": _profiler(strategy).cost.missing,
        "measured_s": _record(measured),
        "accuracy": result.accuracy,
        "sample": result.sample,
        "history": [dataclasses.asdict(epoch) for epoch in result.history],
    }
    write_atomically(out / "search.json", json.dumps(content, indent=1) + "\n")
    picture = SearchPicture(
        [(name, choice, cost) for name, choice, cost in _layers(result, strategy)],
        [(epoch.latency, epoch.accuracy) for epoch in result.history],
        result.latency,
        result.accuracy,
        target,
        None if measured is None else measured[0].summary.value,
        f"{options['space']} on {options['dataset']}, {_profiler(strategy).estimator.platform.id}",
    )
    draw_search(picture, out / "search.png")


def _layers(result: SearchResult, strategy: FBNet) -> list[tuple[str, str, float]]:
    """List name, choice and latency of every layer of the network found; what is fixed comes as one."""
    cost = _profiler(strategy).cost
    if not isinstance(cost, AdditiveCost):
        return [("network", "choices that act together", result.latency)]
    parts = {label: cost.costs[label][result.sample[label]] for label in cost.costs}
    # So that the layers make up the latency, less what a small network saves.
    factor = cost(result.sample) / (cost.constant + sum(parts.values()))
    searched = [(label, str(result.sample[label]), factor * part) for label, part in parts.items()]
    estimator = _profiler(strategy).estimator
    fixed = (
        len([layer for layer in estimator.table.layers if not layer.searched])
        if isinstance(estimator, TableEstimator)
        else 0
    )
    return [*searched, ("rest", f"{fixed} fixed layers" if fixed else "fixed", factor * cost.constant)]


def _print(result: SearchResult, strategy: FBNet, measured: _Measured | None, target: float, out: Path) -> None:
    metric = _profiler(strategy).cost.metric
    grid = Table(padding=(0, 1))
    grid.add_column("layer")
    grid.add_column("choice")
    grid.add_column("latency", justify="right")
    grid.add_column("share", justify="right")
    for name, choice, cost in _layers(result, strategy):
        grid.add_row(name, choice, format_metric(cost, metric), format_percent(cost / result.latency))
    console = results()
    console.print(grid)
    console.print(f"predicted  {format_seconds(result.latency)} (target {format_seconds(target)})")
    if measured is not None:
        found = measured[0].summary
        error = result.latency / found.value - 1
        verdict = (
            "meets the target"
            if found.value <= target
            else f"[red]misses the target by {format_percent(found.value / target - 1)}[/]"
        )
        console.print(
            f"measured   {format_seconds(found.value)} ({format_seconds(found.low)} to "
            f"{format_seconds(found.high)}): {verdict}; the prediction is {error * 100:+.1f} % off"
        )
    console.print(f"accuracy   {format_percent(result.accuracy)} on held-back pictures")
    console.print(f"Wrote {escape(', '.join(str(out / name) for name in FILES))}", soft_wrap=True)


def _profiler(strategy: FBNet) -> LatencyProfiler:
    assert strategy.profiler is not None, "the experiment has initialised the strategy"
    return strategy.profiler
