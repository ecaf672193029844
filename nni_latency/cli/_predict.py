"""``nni-latency predict``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import nni_latency.graphs as graphs
import nni_latency.operators as operators
from nni_latency.cli._option import grouped, option
from nni_latency.cli._predictor_options import OnnxOptions, PredictorOptions
from nni_latency.cli._report import Column, Grid, Report, ReportingCommand, print_report
from nni_latency.errors import UnknownNameError
from nni_latency.units import format_count, format_percent, format_seconds

#: Operators that --explain lists.
_LISTED = 15


@dataclass(frozen=True)
class _AnswerOptions:
    """What is told."""

    platform: tuple[str, ...] = option("Platform; repeat for several.  [default: all]", "--platform", multiple=True)
    explain: bool = option("List the operators that cost the most.", default=False, is_flag=True)
    top: int = option("Operators that --explain lists.", type=click.IntRange(1), default=_LISTED)


@click.command("predict", cls=ReportingCommand)
@click.argument("model", type=click.Path(path_type=Path))
@grouped()
def command(model: Path, predictor: PredictorOptions, network: OnnxOptions, answer: _AnswerOptions) -> None:
    """Predict the latency of an ONNX file on every known platform.

    MODEL is an ONNX file; its weights need not be there. Nothing is run, and nothing is measured.
    """
    known = predictor.load()
    wanted = chosen_platforms(known, answer.platform)
    graph = network.read(model)
    rows = predicted_rows(known, graph, wanted)
    explained = {name: _costliest(known, graph, name, answer.top) for name in wanted} if answer.explain else {}
    features = operators.count_operators([item.op for item in graph.operators]).features
    lines = [f"{format_count(features.macs)} multiply-adds, {format_count(features.params)} parameters"]
    lines += [
        f"Intervals are wider: {name}." for name in dict.fromkeys(name for row in rows for name in row["missing"])
    ]
    grids = [Grid(items, _OPERATORS, f"Operators that cost the most on {name}") for name, items in explained.items()]
    content = {
        "model": str(model),
        "macs": features.macs,
        "params": features.params,
        "platforms": [{**row, **({"operators": explained[row["platform"]]} if explained else {})} for row in rows],
    }
    print_report(Report(Grid(rows, _PLATFORMS), content, after=[*grids, *lines]))


def chosen_platforms(known: graphs.GraphPredictor, names: tuple[str, ...]) -> list[str]:
    """Return the ids of the platforms that are asked for, which may be named in part.

    Raises
    ------
    UnknownNameError
        If there is no such platform.
    """
    ids = [platform.id for platform in known.platforms_]
    found: dict[str, None] = {}
    for name in names or ids:
        fitting = [item for item in ids if item == name] or [item for item in ids if name in item]
        if not fitting:
            raise UnknownNameError(
                f"{UnknownNameError.of('platform', name, ids)} Add one with: nni-latency fit graph --from pretrained"
            )
        found |= dict.fromkeys(fitting)
    return list(found)


def predicted_rows(known: graphs.GraphPredictor, graph: operators.Trace, platforms: list[str]) -> list[dict[str, Any]]:
    """Return what is predicted of a network, the fastest platform first."""
    estimates = known.estimate(graph)
    counts = {item.id: int(count) for item, count in zip(known.platforms_, known.counts_, strict=True)}
    rows = [
        {
            "platform": name,
            "latency_s": estimates[name].value,
            "low_s": estimates[name].low,
            "high_s": estimates[name].high,
            "networks": counts[name],
            "missing": list(estimates[name].missing),
        }
        for name in platforms
    ]
    return sorted(rows, key=lambda row: row["latency_s"])


def _costliest(known: graphs.GraphPredictor, graph: operators.Trace, platform: str, count: int) -> list[dict[str, Any]]:
    costs = sorted(known.explain(graph, platform), key=lambda item: item.seconds, reverse=True)
    return [
        {"name": item.name, "operator": item.op_key, "latency_s": item.seconds, "share": item.share}
        for item in costs[:count]
    ]


_PLATFORMS = [
    Column("platform", "platform"),
    Column("latency", "latency_s", format_seconds),
    Column("from", "low_s", format_seconds),
    Column("to", "high_s", format_seconds),
    Column("measured networks", "networks", format_count),
]

_OPERATORS = [
    Column("operator", "name"),
    Column("what", "operator"),
    Column("latency", "latency_s", format_seconds),
    Column("share", "share", format_percent),
]
