"""``nni-latency estimate``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from nni_latency.cli._console import remarks, results
from nni_latency.cli._operators import estimate_operators
from nni_latency.cli._options import (
    arguments_for,
    check_batch_size,
    check_device,
    estimator_option,
    make_space,
    plan_for,
    space_options,
)
from nni_latency.estimators import Estimate, Estimator, LayerShare, estimate_layers, estimate_selection
from nni_latency.loading import load_estimator
from nni_latency.operators import Features, features_of
from nni_latency.spaces import parse_architecture
from nni_latency.tables import OPERATORS, MeasurePlan
from nni_latency.units import format_count, format_metric, format_percent


@dataclass(frozen=True)
class _Answer:
    total: Estimate
    layers: list[LayerShare]
    features: Features
    metric: str


@click.command("estimate")
@space_options
@click.option(
    "--architecture", required=True, help="Published name, indices or names separated by commas, or a saved sample."
)
@estimator_option
@click.option("--batch-size", type=click.IntRange(1), help="Must be that of the table.")
@click.option("--device", help="Ask for an estimate of this machine's device: the estimator must be of it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: latency_s, low_s, high_s, macs, params, layers.")
def command(**options: Any) -> None:
    """Estimate the cost of one architecture, layer by layer.

    With --space operators the architecture is a list of operator keys, or a file of them, for tables of no space.
    """
    estimator = load_estimator(options["latency_estimator"], missing=options["missing"])
    check_device(estimator, options["device"])
    answer = _answer(estimator, options)
    if options["as_json"]:
        click.echo(json.dumps(_content(answer, estimator), indent=1))
    else:
        _print(answer, estimator)
    if answer.total.missing:
        remarks().print(
            "Not in the estimator as asked, taken from the nearest entry or left out: "
            f"{escape(', '.join(answer.total.missing))}"
        )


def _answer(estimator: Estimator, options: dict[str, Any]) -> _Answer:
    batch_size = check_batch_size(estimator, options["batch_size"])
    if options["space"] == OPERATORS:
        return _Answer(*estimate_operators(estimator, options["architecture"]), estimator.metric)
    arguments = arguments_for(estimator, options["space"], options, ignore=("num_classes",))
    space = make_space(options["space"], arguments)
    plan = plan_for(space, options["space"], batch_size)
    return _estimate(estimator, plan, parse_architecture(options["architecture"], plan))


def _estimate(estimator: Estimator, plan: MeasurePlan, selection: dict[str, str]) -> _Answer:
    layers = estimate_layers(estimator, plan, selection)
    features = sum(map(features_of, plan.ops_of(selection)), Features())
    return _Answer(estimate_selection(estimator, plan, selection), layers, features, estimator.metric)


def _content(answer: _Answer, estimator: Estimator) -> dict[str, Any]:
    unit = "_s" if answer.metric == "latency" else ""
    return {
        f"{answer.metric}{unit}": answer.total.value,
        f"low{unit}": answer.total.low,
        f"high{unit}": answer.total.high,
        "macs": answer.features.macs,
        "params": answer.features.params,
        "platform": {"id": estimator.platform.id, "facts": dict(estimator.platform.facts)},
        "missing": list(answer.total.missing),
        "layers": [
            {
                "name": layer.name,
                "choice": layer.choice,
                f"{answer.metric}{unit}": layer.estimate.value,
                "share": layer.share,
            }
            for layer in answer.layers
        ],
    }


def _print(answer: _Answer, estimator: Estimator) -> None:
    grid = Table(padding=(0, 1))
    for name in ("layer", "choice"):
        grid.add_column(name)
    for name in (answer.metric, "share"):
        grid.add_column(name, justify="right")
    for layer in answer.layers:
        grid.add_row(
            layer.name, layer.choice, format_metric(layer.estimate.value, answer.metric), format_percent(layer.share)
        )
    console = results()
    console.print(grid)
    low, value, high = (
        format_metric(number, answer.metric) for number in (answer.total.low, answer.total.value, answer.total.high)
    )
    console.print(f"{answer.metric} {value} ({low} to {high}) on {estimator.platform.id}")
    console.print(
        f"{format_count(answer.features.macs)} multiply-adds, {format_count(answer.features.params)} parameters"
    )
