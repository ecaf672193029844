# SPDX-License-Identifier: Apache-2.0
"""``nni-latency search``, and the picture of its trade-off."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import click
from rich.markup import escape

import nni_latency.estimators as estimators
import nni_latency.loading as loading
import nni_latency.measurement as measurement
import nni_latency.nas as nas
import nni_latency.plots as plots
import nni_latency.spaces as spaces
import nni_latency.tables as tables
import nni_latency.validation as validation
from nni_latency.cli._console import Part, interrupted, loading_remark, named, print_lines, progress, remarks
from nni_latency.cli._estimator_options import ESTIMATOR, EstimatorOptions
from nni_latency.cli._measuring import Measuring, MeterOptions, ProtocolOptions, StoreOptions
from nni_latency.cli._model import UserCodeOptions
from nni_latency.cli._option import grouped, option, output_option
from nni_latency.cli._outputs import WritingCommand, outputs
from nni_latency.cli._search_measure import (
    Addend,
    addends_of,
    measure_addends,
    measure_found,
    measured_metrics,
    runtime_of,
)
from nni_latency.cli._search_report import Found, print_found, write_network, write_picture, write_record
from nni_latency.cli._searched import FOLDER, Searched, SearchOptions, choose_strategy, searched_space
from nni_latency.cli._space_options import SPACE_OF_TABLE, SpaceOptions
from nni_latency.cli._supervision import user_code
from nni_latency.errors import FileFormatError, InvalidValueError, LatencyError, MeasurementError, MismatchError
from nni_latency.units import METRICS, format_metric, format_percent, number_of

#: The costs of a space by two estimators.
_Plane: TypeAlias = "tuple[nas.LatencyProfiler, nas.LatencyProfiler]"

#: Options that decide what a search finds, beside those of the space, the estimator and the training.
_LEARNING = ("dataset", "target", "margin", "fill", "epochs", "trials", "seed")

#: A target in each unit.
_TARGETS = {"s": "12ms", "J": "20mJ", "W": "15W", "byte": "4MiB", "1/s": "100/s"}


@dataclass(frozen=True)
class ParetoOptions:
    """What is drawn besides the path of the search."""

    plot: Path | None = output_option(
        "Picture of the Pareto front, PNG or SVG: epochs or trials by accuracy and cost; with --second-estimator, "
        "searched and random networks by two costs.",
        rare=True,
    )
    second_estimator: str | None = option(
        "Estimator of another cost, such as energy, for --plot.",
        metavar=ESTIMATOR,
        rare=True,
    )
    samples: int = option(
        "Random networks of --plot, and as many searched ones.", type=click.IntRange(2), default=40, rare=True
    )

    def plane(self, first: nas.LatencyProfiler, searched: Searched) -> _Plane | None:
        """Return the two costs that are drawn against each other; None where it is accuracy against cost.

        An estimator that does not fit is told at once.
        """
        if self.second_estimator is None:
            return None
        if self.plot is None:
            raise InvalidValueError("--second-estimator is drawn by --plot. Name a file for the picture.")
        return first, _profiler(searched, loading.load_estimator(self.second_estimator))

    def drawn(self, searched: Searched, seed: int) -> list[Any]:
        """Draw the random networks of the picture; none where there is no picture."""
        return [] if self.plot is None else spaces.draw_samples(searched.make(), self.samples, seed)


def _profiler(searched: Searched, estimator: estimators.Estimator) -> nas.LatencyProfiler:
    import torch

    return nas.LatencyProfiler(searched.make(), torch.zeros(searched.input_shape), latency_estimator=estimator)


def draw_trade_off(found: Found, asked: ParetoOptions, plane: _Plane | None) -> None:
    """Draw the picture if it was asked for."""
    if asked.plot is None:
        return
    result, metric = found.result, found.aim.profiler.cost.metric
    title = f"{found.searched.name} on {found.aim.profiler.estimator.platform.id}"
    if plane is not None:
        _draw_two_costs(found, asked, plane, title)
        return
    points = [plots.ParetoPoint(step.latency, step.accuracy, str(step.index + 1)) for step in result.history]
    names = "trials" if any(isinstance(step, nas.Trial) for step in result.history) else "epochs"
    title = f"{title}: {names} on {found.options.dataset}"
    points.append(plots.ParetoPoint(result.latency, result.accuracy, found=True))
    plots.draw_pareto(points, asked.plot, x=metric, y=plots.ACCURACY, title=title, limit=found.options.target)


def _draw_two_costs(found: Found, asked: ParetoOptions, plane: _Plane, title: str) -> None:
    first, second = plane
    drawn = [(sample, False) for sample in asked.drawn(found.searched, found.options.seed)]
    searched = [(sample, True) for sample in found.result.compared]
    points = [
        plots.ParetoPoint(first.profile(sample), second.profile(sample), searched=ours)
        for sample, ours in (*drawn, *searched)
    ]
    sample = found.result.sample
    points.append(plots.ParetoPoint(first.profile(sample), second.profile(sample), "found", found=True))
    if second.estimator.platform.id != first.estimator.platform.id:
        title = f"{title} and {second.estimator.platform.id}"
    plots.draw_pareto(points, asked.plot or "", x=first.cost.metric, y=second.cost.metric, title=title)


@click.command("search", cls=WritingCommand)
@grouped(
    space=SPACE_OF_TABLE,
    budget={
        "help": "Maximum time spent measuring the network found. Starting and loading come on top.",
        "default": "10s",
    },
)
def command(
    space: SpaceOptions,
    estimator: EstimatorOptions,
    options: SearchOptions,
    trade_off: ParetoOptions,
    code: UserCodeOptions,
    store: StoreOptions,
    metered: MeterOptions,
    ending: ProtocolOptions,
) -> None:
    """Search for a network that meets a target of latency, energy or another metric, and measure it on this device.

    The supernet learns from the data set's own images; latency counts for the input size of the estimator. Writes
    result.json (an NNI sample), weights.safetensors, search.json and search.png. The search saves itself after every
    epoch, or trial: after an interruption, the same command goes on from there.

    Any space will do: fbnet, those of NNI's hub, and your own as package.module:Class. fbnet, darts, gumbel-darts,
    proxyless and enas train one supernet; evolution and random train a network in each of --trials trials.
    """
    settings = options.settings
    with loading_remark("Loading PyTorch, NNI, the space and the data set"):
        import torch

        made = estimator.load()
        _check_target(made.metric, options)
        unmeasured = _check_measuring(made, estimator, metered) if options.measure else ""
        protocol = ending.of(measurement.Protocol(), threads=1)
        with user_code(f"The code of the data set {options.dataset!r}", 0.0):
            dataset = nas.load_dataset(options.dataset, seed=options.seed)
        with user_code(f"The code of the space {space.name!r}", code.timeout if ":" in space.name else 0.0):
            searched = searched_space(made, space, options.batch_size, dataset)
            if len(searched.input_shape) == 4:
                dataset = dataset.with_channels(searched.input_shape[1])
            nas.check_images(searched.make(), dataset.few(2), dataset.num_classes)
        torch.manual_seed(settings.seed)
        network = searched.make()
        aim = _aim(made, network, searched, options)
        plane = trade_off.plane(aim.profiler, searched)
        name = choose_strategy(options.strategy, searched, aim.profiler.cost, dataset)
        strategy = nas.make_strategy(name, aim)
        checkpoint = _checkpoint(
            options, estimator=estimator.latency_estimator, searched=searched, strategy=name, aim=aim, dataset=dataset
        )
    _announce(network, searched, dataset, name, aim, options)
    print_lines(remarks(), [unmeasured] if unmeasured else [])
    outputs().empty(options.out, FOLDER)
    try:
        with user_code("The search", 0.0):
            result = _run(
                network, dataset, strategy, aim, settings, checkpoint,
                against=[] if plane is None else trade_off.drawn(searched, options.seed),
                one_shot=nas.is_one_shot(name),
            )  # fmt: skip
    except KeyboardInterrupt:
        raise interrupted(_kept(checkpoint)) from None
    found = Found(
        searched=searched,
        strategy=name,
        aim=aim,
        result=result,
        measured="It was interrupted." if options.measure else "--no-measure was given.",
        estimator=estimator.latency_estimator,
        options=options,
        addends=addends_of(made, result.sample),
    )
    # So that nothing that happens while it is measured costs the result.
    write_network(result, options.out)
    write_record(found, options.out)
    if options.measure:
        measured, addends = _measure(made, searched, result, estimator, protocol, store, metered)
        found = replace(found, measured=measured, addends=addends)
        write_record(found, options.out)
    write_picture(found, options.out)
    draw_trade_off(found, trade_off, plane)
    print_found(found, options.out)
    checkpoint.remove()


def _kept(checkpoint: nas.Checkpoint) -> str:
    """Say what is kept of an interrupted search."""
    if checkpoint.path.exists():
        return f"Run the same command again to resume: {str(checkpoint.path)!r} keeps what was learned."
    return "Nothing was kept: the first epoch, or trial, was not over."


def _check_target(metric: str, options: SearchOptions) -> None:
    """Raise `MismatchError` unless the target has the unit of the estimator's metric."""
    unit = METRICS[metric].unit
    if options.quantity.unit != unit:
        wanted = "be a number without a unit" if unit == "1" else f"have its unit, as in {_TARGETS[unit]}"
        raise MismatchError(f"The estimator gives {metric}, so --target must {wanted}.")


def _checkpoint(
    options: SearchOptions,
    *,
    estimator: str,
    searched: Searched,
    strategy: str,
    aim: nas.SearchAim,
    dataset: nas.Dataset,
) -> nas.Checkpoint:
    """Return where the search saves itself; an unfinished one of other options is refused."""
    cost = aim.profiler.cost
    asked = {
        "space": searched.name,
        "space_args": dict(searched.arguments),
        "input_shape": searched.input_shape,
        "strategy": strategy,
        "estimator": estimator,
        # So that another estimator of the same name is noticed.
        "costs": cost.range if isinstance(cost, estimators.AdditiveCost | estimators.GroupedCost) else None,
        "images": len(dataset.train),  # type: ignore[arg-type]
        **{name: getattr(options, name) for name in _LEARNING},
        # Threads change how long it takes, and not what is found.
        **{name: value for name, value in asdict(options.training).items() if name != "threads"},
    }
    checkpoint = nas.Checkpoint(options.out / FOLDER.unfinished, asked)
    if outputs().overwrite:  # it is about to be removed
        return checkpoint
    try:
        state = checkpoint.state
    except (MismatchError, FileFormatError) as error:
        raise type(error)(f"{error} Choose another folder, or replace what is in it with --overwrite.") from error
    if state is not None:
        what = "the final training" if state.sample is not None else "the search"
        remarks().print(f"Going on with {what} from {escape(str(checkpoint.path))}")
    return checkpoint


def _aim(estimator: estimators.Estimator, space: Any, searched: Searched, options: SearchOptions) -> nas.SearchAim:
    """Say what to obey; a target out of reach is reported before anything is learned."""
    import torch

    profiler = nas.LatencyProfiler(space, torch.zeros(searched.input_shape), latency_estimator=estimator)
    profiler.cost.check_target(options.target)
    cost = partial(format_metric, metric=estimator.metric)
    # Of a space whose networks are only known one by one, the fastest is not known.
    if (
        isinstance(profiler.cost, estimators.AdditiveCost | estimators.GroupedCost)
        and options.limit < profiler.cost.range[0]
    ):
        raise InvalidValueError(
            f"The target of {cost(options.target)} leaves no room for a margin of "
            f"{format_percent(options.margin)}: the cheapest network takes {cost(profiler.cost.range[0])}. "
            "Raise the target or lower --margin."
        )
    return nas.SearchAim(
        profiler,
        options.limit,
        weight=options.training.weight,
        learning_rate=options.training.arc_learning_rate,
        trials=options.trials,
        seed=options.seed,
        fill=options.fill,
    )


def _announce(
    space: Any, searched: Searched, dataset: nas.Dataset, strategy: str, aim: nas.SearchAim, options: SearchOptions
) -> None:
    if aim.profiler.cost.missing:
        remarks().print(
            "Not in the estimator as asked, taken from the nearest entry or left out: "
            f"{escape(named(aim.profiler.cost.missing))}"
        )
    choices = len(space.simplify())
    if hasattr(space, "geometry"):
        what = f"width {space.geometry.width:g}, depth {space.geometry.depth:g}; {number_of(choices, 'layer')}"
    else:
        what = f"{number_of(choices, 'choice')}, input {'x'.join(map(str, searched.input_shape))}"
    metric = aim.profiler.cost.metric
    target = format_metric(options.target, metric)
    remarks().print(
        f"Searching {escape(searched.name)} ({what}) with {strategy} on {escape(dataset.name)} for "
        f"{target} on {aim.profiler.estimator.platform.id}",
    )


def _run(
    space: Any,
    dataset: nas.Dataset,
    strategy: Any,
    aim: nas.SearchAim,
    settings: nas.SearchSettings,
    checkpoint: nas.Checkpoint,
    *,
    against: list[Any],
    one_shot: bool,
) -> nas.SearchResult:
    console = remarks()
    is_over = checkpoint.state is not None and checkpoint.state.sample is not None
    with progress(console) as bar:

        def on_step(step: nas.Epoch | nas.Trial) -> None:
            console.print(_told(step, aim.profiler.cost.metric))

        how: dict[str, Any] = {
            "profiler": aim.profiler,
            "checkpoint": checkpoint,
            "on_batch": Part(bar, "searching", is_next=not is_over),
            "on_final_batch": Part(bar, "final training", is_next=is_over),
        }
        if one_shot:
            return nas.run_search(
                space,
                dataset,
                strategy,
                settings,
                limit=aim.limit,
                fill=aim.fill,
                against=against,
                on_epoch=on_step,
                **how,
            )
        return nas.run_trials(space, dataset, strategy, settings, trials=aim.trials, on_trial=on_step, **how)


def _told(step: nas.Epoch | nas.Trial, metric: str) -> str:
    """Say what an epoch or a trial came to."""
    accuracy = f"accuracy {format_percent(step.accuracy)}"
    if isinstance(step, nas.Trial):
        return f"trial {step.index + 1}: {accuracy}, {metric} {format_metric(step.latency, metric)}"
    temperature = "" if step.temperature is None else f", temperature {step.temperature:.2f}"
    return (
        f"epoch {step.index + 1}: loss {step.loss:.3f}, {accuracy}, expected {metric} "
        f"{format_metric(step.latency, metric)}{temperature}"
    )


def _check_measuring(estimator: estimators.Estimator, asked: EstimatorOptions, metered: MeterOptions) -> str:
    """Return why the network found cannot be measured here; nothing if it can.

    A search takes long, so what is wrong with the meter is told before it begins.

    Raises
    ------
    MeasurementError
        If nothing but its meter is missing.
    """
    try:
        runtime_of(estimator.platform, asked.device, asked.runtime_options)
    except LatencyError as error:
        return f"The network found will not be measured: {error}"
    try:
        _meters(estimator, asked.device, metered)
    except LatencyError as error:
        said = str(error).rstrip(".")
        raise MeasurementError(f"{said}. Without a meter, search with --no-measure.") from error
    return ""


def _meters(
    estimator: estimators.Estimator, device: str | None, metered: MeterOptions
) -> tuple[measurement.Meter, ...]:
    """Return the meters that measuring the network found takes."""
    metrics = measured_metrics(estimator)
    metric = next((metric for metric in metrics if metric in tables.METERED), estimator.metric)
    return metered.meters(metric, device or str(estimator.platform.facts.get("device_kind", "cpu")))


def _measure(
    estimator: estimators.Estimator,
    searched: Searched,
    result: nas.SearchResult,
    asked: EstimatorOptions,
    protocol: measurement.Protocol,
    store: StoreOptions,
    metered: MeterOptions,
) -> tuple[validation.Validation | str, tuple[Addend, ...]]:
    """Measure the network found where the estimator's platform is at hand; return why not otherwise.

    Of a weighted sum come the costs that it adds up besides.
    """
    try:
        runtime = runtime_of(estimator.platform, asked.device, asked.runtime_options)
        meters = _meters(estimator, asked.device, metered)
        protocol = replace(protocol, threads=runtime.platform.threads)
        with Measuring("the network found and its space's reference networks", runtime, store, meters) as measuring:
            if isinstance(estimator, estimators.TableEstimator) and estimator.addends:
                return measure_addends(estimator, searched, result, runtime, protocol, **measuring.how)
            return measure_found(estimator, searched, result, runtime, protocol, **measuring.how), ()
    except LatencyError as error:
        return str(error), addends_of(estimator, result.sample)
