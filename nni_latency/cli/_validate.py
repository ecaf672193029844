"""``nni-latency validate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.markup import escape
from rich.table import Table

import nni_latency.spaces as spaces
from nni_latency.cli._console import remarks, results
from nni_latency.cli._options import (
    arguments_for,
    check_batch_size,
    device_option,
    ending_options,
    given_arguments,
    make_runtime,
    make_space,
    missing_option,
    plan_for,
    space_options,
)
from nni_latency.cli._progress import Measuring
from nni_latency.cli._spaces import sampled_space
from nni_latency.errors import InvalidValueError, LatencyError
from nni_latency.estimators import Estimator, OperatorTableEstimator, Scores
from nni_latency.files import check_writable, write_atomically
from nni_latency.loading import load_estimator
from nni_latency.measurement import Protocol
from nni_latency.plots import draw_validation
from nni_latency.tables import MeasurePlan, measure_networks, reference_networks
from nni_latency.units import format_metric, format_percent
from nni_latency.validation import (
    Requirement,
    Validation,
    draw_networks,
    predict_networks,
    predict_references,
    validate,
    validation_content,
)


class _RequirementType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    name = "score=limit"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Requirement:
        """Read it, or fail with a sentence."""
        try:
            return Requirement.parse(str(value))
        except LatencyError as error:
            self.fail(str(error), param, ctx)


@click.command("validate")
@click.argument("estimator", metavar="TABLE")
@space_options
@click.option("--networks", type=click.IntRange(0), default=24, show_default=True, help="Random networks.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the random networks.")
@ending_options("90s")
@click.option("--batch-size", type=click.IntRange(1), help="Must be that of the table.")
@device_option
@click.option("--normalise/--no-normalise", default=True, show_default=True, help="Take out the change of speed since.")
@missing_option
@click.option(
    "--require",
    "requirements",
    type=_RequirementType(),
    multiple=True,
    help="Exit with code 1 unless it is reached, such as within10=0.95 or mape=0.05.",
)
@click.option("--out", type=click.Path(path_type=Path), help="JSON file.  [default: named after the table]")
@click.option("--plot", type=click.Path(path_type=Path), help="PNG file.  [default: beside the JSON]")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON instead of the report.")
def command(**options: Any) -> None:
    """Hold a table, or any estimator, to networks that nobody measured before.

    TABLE is a file, a shipped table or a registered estimator. Random networks, published ones and the extremes of the
    space are measured whole in interleaved rounds, and compared with what TABLE predicts. The space is that of TABLE
    where it holds the operators of one.
    """
    made = load_estimator(options["estimator"], missing=options["missing"])
    plan = _source(made, options)
    platform = made.platform
    runtime = make_runtime(platform.runtime, options["device"], platform.threads, platform.precision)
    out = options["out"] or Path(f"{_stem(options['estimator'])}.validation.json")
    plot = options["plot"] or out.with_suffix(".png")
    if plot == out:
        raise InvalidValueError(f"JSON and picture cannot both go to {str(out)!r}. Name the JSON file with --out.")
    check_writable(plot)
    protocol = Protocol(
        rounds=options["rounds"],
        threads=platform.threads,
        time_budget=options["budget"],
        half_width=options["half_width"],
    )
    networks = draw_networks(plan, options["networks"], seed=options["seed"])
    # What does not fit is told now, and not after the measuring.
    predicted = predict_networks(made, plan, networks, runtime.platform)
    if options["normalise"]:
        predicted |= predict_references(made, plan, reference_networks(plan, networks))
    with Measuring(
        f"{len(networks)} networks of {_title(plan)}", runtime, options["database"], fresh=options["fresh"]
    ) as measuring:
        measured = measure_networks(
            plan,
            networks,
            runtime,
            protocol,
            **measuring.how,
        )
    validation = validate(made, plan, measured, normalise=options["normalise"], predicted=predicted)
    content = validation_content(validation)
    write_atomically(out, json.dumps(content, indent=1) + "\n")
    draw_validation(validation, plot)
    if options["as_json"]:
        click.echo(json.dumps(content, indent=1))
    else:
        _print(validation)
        results().print(f"Wrote {escape(str(out))} and {escape(str(plot))}", soft_wrap=True)
    _check(validation.scores, options["requirements"])


def _source(estimator: Estimator, options: dict[str, Any]) -> MeasurePlan | spaces.SampledSpace:
    """Return the space whose networks are measured: the estimator's own, or the one asked for."""
    source = click.get_current_context().get_parameter_source("space")
    asked = None if source is ParameterSource.DEFAULT else options["space"]
    if isinstance(estimator, OperatorTableEstimator):
        given = given_arguments({**options, "space": asked or estimator.table.space.name})
        return sampled_space(estimator.table, asked, given, options["input_size"], options["batch_size"])
    batch_size = check_batch_size(estimator, options["batch_size"])
    space = make_space(options["space"], arguments_for(estimator, options["space"], options))
    if hasattr(space, "measure_plan"):
        return plan_for(space, "", batch_size)
    return spaces.SampledSpace.of(space, batch_size, options["input_size"])


def _title(plan: MeasurePlan | spaces.SampledSpace) -> str:
    return str(plan.space) if isinstance(plan, MeasurePlan) else plan.space.name


def _stem(estimator: str) -> str:
    return Path(estimator).name.removesuffix(".json").replace(":", "-") or "estimator"


def _print(validation: Validation) -> None:
    console = results()
    grid = Table(padding=(0, 1), title="Worst cases", title_justify="left")
    for name in ("network", "predicted", "measured", "error", "the halves differ by"):
        grid.add_column(name, justify="left" if name == "network" else "right")
    for item in validation.worst[:6]:
        grid.add_row(
            item.name,
            format_metric(item.predicted.value, validation.metric),
            format_metric(item.measured, validation.metric),
            f"{item.error:+.1%}",
            f"{abs(item.halves[0] / item.halves[1] - 1):.1%}",
        )
    console.print(grid)
    table = Table(padding=(0, 1))
    for name in ("", "MAPE", "RMSPE", "bias", "within 5 %", "within 10 %", "Spearman"):
        table.add_column(name, justify="left" if not name else "right")
    for name, scores in (
        ("predicted against measured", validation.scores),
        ("repeatability", validation.repeatability),
    ):
        table.add_row(name, *_row(scores))
    console.print(table)
    console.print(
        f"{format_percent(validation.coverage)} of the networks lie in the 95 % interval of their prediction."
    )
    for name, reason in validation.failures.items():
        remarks().print(f"Could not be run: {escape(name)}: {escape(reason)}")
    if abs(validation.speed - 1) > 0.02:
        slower = "slower" if validation.speed < 1 else "faster"
        console.print(
            f"The machine is {abs(1 / validation.speed - 1):.1%} {slower} than the predictions say of the space's "
            "reference networks; measured times are taken to the speed that the predictions stand for."
        )


def _row(scores: Scores) -> list[str]:
    return [
        format_percent(scores.mape),
        format_percent(scores.rmspe),
        f"{scores.bias:+.1%}",
        format_percent(scores.within5),
        format_percent(scores.within10),
        f"{scores.spearman:.4f}",
    ]


def _check(scores: Scores, requirements: tuple[Requirement, ...]) -> None:
    missed = [requirement for requirement in requirements if not requirement.is_met(scores)]
    for requirement in missed:
        remarks().print(f"Not reached: {requirement}; it is {getattr(scores, requirement.name):.4g}.")
    if missed:
        raise click.exceptions.Exit(1)
