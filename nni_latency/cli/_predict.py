"""``nni-latency predict``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import nni_latency.estimators as estimators
import nni_latency.graphs as graphs
import nni_latency.operators as operators
from nni_latency.cli._option import grouped, option
from nni_latency.cli._predictor_options import OnnxOptions, PredictorOptions
from nni_latency.cli._report import Column, Grid, Report, ReportingCommand, print_report
from nni_latency.errors import InvalidValueError, UnknownNameError, listed
from nni_latency.platforms import Platform, ids_named
from nni_latency.units import format_count, format_percent

#: Operators that --explain lists.
_LISTED = 15

#: Facts that a guess takes.
_FACTS = ("peak_flops", "memory_bandwidth", "cache")


@dataclass(frozen=True)
class _AnswerOptions:
    """What is told."""

    platform: tuple[str, ...] = option("Platform; repeat for several.  [default: all]", "--platform", multiple=True)
    explain: bool = option("List the operators that cost the most.", default=False, is_flag=True)
    top: int = option("Operators that --explain lists.", type=click.IntRange(1), default=_LISTED)


@dataclass(frozen=True)
class _GuessOptions:
    """A platform that nobody measured."""

    guess: str | None = option("Also guess a platform that nobody measured, from those like it.", metavar="DEVICE|ID")
    facts: tuple[str, ...] = option(
        "Fact of the platform to guess: peak_flops, memory_bandwidth or cache; repeat for several.",
        "--fact",
        multiple=True,
        metavar="NAME=NUMBER",
    )

    def platform(self) -> Platform | None:
        """Make the platform."""
        if self.guess is None:
            if self.facts:
                raise InvalidValueError("--fact is of a platform to guess. Name it with --guess.")
            return None
        named = Platform.parse(self.guess)
        return Platform(named.device, named.runtime, named.precision, named.threads, dict(map(_fact, self.facts)))


def _fact(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    try:
        if name in _FACTS:
            return name, float(number)
    except ValueError:
        pass
    raise InvalidValueError(f"A --fact must be NAME=NUMBER, with one of {listed(_FACTS)}. Got {text!r}.")


@click.command("predict", cls=ReportingCommand)
@click.argument("model", type=click.Path(path_type=Path))
@grouped()
def command(
    model: Path, predictor: PredictorOptions, network: OnnxOptions, answer: _AnswerOptions, unmeasured: _GuessOptions
) -> None:
    """Predict the latency of an ONNX file on every known platform.

    MODEL is an ONNX file; its weights need not be there. Nothing is run, and nothing is measured.
    """
    known = predictor.load()
    wanted = chosen_platforms(known, answer.platform)
    graph = network.read(model)
    rows = predicted_rows(known, graph, wanted)
    new = unmeasured.platform()
    if new is not None:
        rows.append(_row(new.id, known.guess(graph, new), 0))
    explained = {name: _costliest(known, graph, name, answer.top) for name in wanted} if answer.explain else {}
    features = operators.count_graph(graph).features
    lines = [f"{format_count(features.macs)} multiply-adds, {format_count(features.params)} parameters"]
    doubts = dict.fromkeys(name for row in rows for name in row["missing"])
    lines += [f"{name[:1].upper()}{name[1:]}; the interval is wider." for name in doubts]
    grids = [Grid(items, _OPERATORS, f"Operators that cost the most on {name}") for name, items in explained.items()]
    content = {
        "model": str(model),
        "macs": features.macs,
        "params": features.params,
        "platforms": [
            {**row, **({"operators": explained[row["platform"]]} if row["platform"] in explained else {})}
            for row in rows
        ],
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
        fitting = ids_named(name, ids)
        if not fitting:
            raise UnknownNameError(
                f"{UnknownNameError.of('platform', name, ids)} Add one with: nni-latency learn graph --from pretrained"
            )
        found |= dict.fromkeys(fitting)
    return list(found)


def predicted_rows(known: graphs.GraphPredictor, graph: operators.Graph, platforms: list[str]) -> list[dict[str, Any]]:
    """Return what is predicted of a network, the fastest platform first."""
    estimates = known.estimate(graph)
    counts = {item.id: int(count) for item, count in zip(known.platforms_, known.counts_, strict=True)}
    rows = [_row(name, estimates[name], counts[name]) for name in platforms]
    return sorted(rows, key=lambda row: row["latency_s"])


def _row(platform: str, estimate: estimators.Estimate, networks: int) -> dict[str, Any]:
    return {
        "platform": platform,
        "latency_s": estimate.value,
        "low_s": estimate.low,
        "high_s": estimate.high,
        "networks": networks,
        "missing": list(estimate.missing),
    }


def _costliest(known: graphs.GraphPredictor, graph: operators.Graph, platform: str, count: int) -> list[dict[str, Any]]:
    costs = sorted(known.explain(graph, platform), key=lambda item: item.seconds, reverse=True)
    return [
        {"name": item.name, "operator": item.op_key, "latency_s": item.seconds, "share": item.share}
        for item in costs[:count]
    ]


_PLATFORMS = [
    Column("platform", "platform"),
    Column("latency", "latency_s", metric="latency"),
    Column("from", "low_s", metric="latency"),
    Column("to", "high_s", metric="latency"),
    Column("measured networks", "networks", metric="count"),
]

_OPERATORS = [
    Column("operator", "name"),
    Column("what", "operator"),
    Column("latency", "latency_s", metric="latency"),
    Column("share", "share", format_percent),
]
