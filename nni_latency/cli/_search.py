"""``nni-latency search``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import torch
from rich.markup import escape

from nni_latency.cli._console import progress, remarks
from nni_latency.cli._measuring_options import StoreOptions
from nni_latency.cli._option import DURATION
from nni_latency.cli._options import check_device, estimator_option, space_options
from nni_latency.cli._progress import Measuring
from nni_latency.cli._search_measure import measure_found, runtime_of
from nni_latency.cli._search_report import FILES, Found, print_found, write_found, write_network
from nni_latency.cli._searched import Searched, choose_strategy, few_images, searched_space
from nni_latency.errors import InvalidValueError, LatencyError, MismatchError
from nni_latency.estimators import AdditiveCost, Estimator, GroupedCost
from nni_latency.files import check_writable
from nni_latency.loading import load_estimator
from nni_latency.nas import (
    STRATEGIES,
    Dataset,
    Epoch,
    LatencyProfiler,
    SearchAim,
    SearchResult,
    SearchSettings,
    Trial,
    check_images,
    is_one_shot,
    load_dataset,
    make_strategy,
    run_search,
    run_trials,
)
from nni_latency.units import format_percent, format_seconds
from nni_latency.validation import Validation

_SETTINGS = SearchSettings()


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
@click.option("--fill", type=float, help="Least share of the target, less its margin, to be used, such as 0.95.")
@click.option(
    "--strategy",
    type=click.Choice(STRATEGIES),
    help="How to search.  [default: the first of fbnet, enas and evolution that can search the space]",
)
@click.option(
    "--dataset", "--data", "dataset", default="digits", show_default=True, help="digits, cifar10 or folder:PATH."
)
@click.option(
    "--data-folder",
    type=click.Path(path_type=Path),
    default=Path("data"),
    show_default=True,
    help="Where cifar10 is kept.",
)
@click.option(
    "--epochs",
    type=int,
    default=_SETTINGS.epochs,
    show_default=True,
    help="Epochs of the search; of every trial of a strategy with trials.",
)
@click.option(
    "--trials", type=click.IntRange(1), default=20, show_default=True, help="Most trials of evolution and random."
)
@click.option(
    "--final-epochs",
    type=int,
    default=_SETTINGS.final_epochs,
    show_default=True,
    help="Epochs that the network found learns on.",
)
@click.option(
    "--train-batch-size", type=int, default=_SETTINGS.batch_size, show_default=True, help="Images per training step."
)
@click.option(
    "--learning-rate", type=float, default=_SETTINGS.learning_rate, show_default=True, help="Of the weights (Adam)."
)
@click.option(
    "--arc-learning-rate",
    type=float,
    default=0.05,
    show_default=True,
    help="Of the architecture parameters, or of the controller (Adam).",
)
@click.option("--weight", type=float, default=1.0, show_default=True, help="Weight of the latency in the loss.")
@click.option("--batch-size", type=click.IntRange(1), help="Images per run on the device; must be that of the table.")
@click.option("--device", help="Ask for this machine's device: the estimator must be of it.")
@click.option("--measure/--no-measure", default=True, show_default=True, help="Measure the network found.")
@click.option("--budget", type=DURATION, default="10s", show_default=True, help="Most time spent measuring it.")
@click.option("--fresh", is_flag=True, help="Measure again what the database has.")
@click.option("--database", metavar="URL|FILE", envvar="NNI_LATENCY_DATABASE", help="Where measurements are kept.")
@click.option(
    "--threads",
    type=int,
    default=_SETTINGS.threads,
    show_default=True,
    help="Threads that learn; small images gain little from more.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("search"), show_default=True, help="Folder for the results."
)
def command(**options: Any) -> None:
    """Search a network that meets a latency target, and measure it on this device.

    The supernet learns from the data set's own images; latency counts for the input size of the estimator. Writes
    result.json (an NNI sample), weights.safetensors, search.json and search.png.

    Any space will do: fbnet, those of NNI's hub, and your own as package.module:Class. fbnet, darts, gumbel-darts,
    proxyless and enas train one supernet; evolution and random train a network in each of --trials trials.
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
    dataset = load_dataset(options["dataset"], options["data_folder"], seed=options["seed"])
    searched = searched_space(estimator, options, dataset)
    check_images(searched.make(), few_images(dataset), dataset.num_classes)
    torch.manual_seed(settings.seed)
    space = searched.make()
    target = options["target_ms"] / 1e3
    aim = _aim(estimator, space, searched, target, options)
    name = choose_strategy(options["strategy"], searched, aim.profiler.cost, dataset)
    strategy = make_strategy(name, aim)
    out: Path = options["out"]
    for file in FILES:
        check_writable(out / file)
    _announce(space, searched, dataset, name, aim, target)
    result = _run(space, dataset, strategy, aim, settings, one_shot=is_one_shot(name))
    # So that nothing that happens while it is measured costs the network.
    write_network(result, out)
    measured = _measure(estimator, searched, result, options) if options["measure"] else "--no-measure was given."
    found = Found(searched, name, aim, result, measured, target, options)
    write_found(found, out)
    print_found(found, out)


def _aim(estimator: Estimator, space: Any, searched: Searched, target: float, options: dict[str, Any]) -> SearchAim:
    """Say what to obey; a target out of reach is told before anything is learned."""
    profiler = LatencyProfiler(space, torch.zeros(searched.input_shape), latency_estimator=estimator)
    profiler.cost.check_target(target)
    limit = target * (1 - options["margin"])
    # Of a space whose networks are only known one by one, nobody knows the fastest.
    if isinstance(profiler.cost, AdditiveCost | GroupedCost) and limit < profiler.cost.range[0]:
        raise InvalidValueError(
            f"The target of {format_seconds(target)} leaves no room for a margin of "
            f"{format_percent(options['margin'])}: the fastest network takes {format_seconds(profiler.cost.range[0])}. "
            "Raise --target-ms or lower --margin."
        )
    return SearchAim(
        profiler,
        limit,
        options["weight"],
        options["arc_learning_rate"],
        options["trials"],
        options["seed"],
        options["fill"],
    )


def _announce(space: Any, searched: Searched, dataset: Dataset, strategy: str, aim: SearchAim, target: float) -> None:
    if aim.profiler.cost.missing:
        remarks().print(
            "Not in the estimator as asked, taken from the nearest entry or left out: "
            f"{escape(', '.join(aim.profiler.cost.missing))}"
        )
    choices = len(space.simplify())
    if hasattr(space, "geometry"):
        what = f"width {space.geometry.width:g}, depth {space.geometry.depth:g}; {choices} layers"
    else:
        what = f"{choices} choices, input {'x'.join(map(str, searched.input_shape))}"
    remarks().print(
        f"Searching {escape(searched.name)} ({what}) with {strategy} on {escape(dataset.name)} for "
        f"{target * 1e3:g} ms on {aim.profiler.estimator.platform.id}",
        soft_wrap=True,
    )


def _run(
    space: Any, dataset: Dataset, strategy: Any, aim: SearchAim, settings: SearchSettings, *, one_shot: bool
) -> SearchResult:
    console = remarks()
    steps = settings.epochs if one_shot else aim.trials
    with progress(console) as bar:
        search = bar.add_task("searching", total=steps, left="")
        final = bar.add_task("final training", total=max(1, settings.final_epochs), left="", start=False)

        def on_step(step: Epoch | Trial) -> None:
            left = (steps - step.index - 1) * step.duration
            bar.update(search, advance=1, left=f"{format_seconds(left)} left" if left else "")
            console.print(_told(step))

        def on_final_epoch(index: int) -> None:
            bar.start_task(final)
            bar.update(final, completed=index + 1)

        costs: dict[str, Any] = {"profiler": aim.profiler, "on_final_epoch": on_final_epoch}
        if one_shot:
            return run_search(
                space, dataset, strategy, settings, limit=aim.limit, fill=aim.fill, on_epoch=on_step, **costs
            )
        return run_trials(space, dataset, strategy, settings, trials=aim.trials, on_trial=on_step, **costs)


def _told(step: Epoch | Trial) -> str:
    """Say what an epoch or a trial came to."""
    accuracy = f"accuracy {format_percent(step.accuracy)}"
    if isinstance(step, Trial):
        return f"trial {step.index + 1}: {accuracy}, latency {format_seconds(step.latency)}"
    temperature = "" if step.temperature is None else f", temperature {step.temperature:.2f}"
    return (
        f"epoch {step.index + 1}: loss {step.loss:.3f}, {accuracy}, expected latency "
        f"{format_seconds(step.latency)}{temperature}"
    )


def _measure(
    estimator: Estimator, searched: Searched, result: SearchResult, options: dict[str, Any]
) -> Validation | str:
    """Measure the network found where the estimator's platform is at hand; return why not otherwise."""
    try:
        runtime = runtime_of(estimator.platform, options["device"])
        what = "the network found and its space's reference networks"
        with Measuring(what, runtime, StoreOptions(database=options["database"], fresh=options["fresh"])) as measuring:
            return measure_found(estimator, searched, result, runtime, options["budget"], **measuring.how)
    except LatencyError as error:
        return str(error)
