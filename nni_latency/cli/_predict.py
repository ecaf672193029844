# SPDX-License-Identifier: Apache-2.0
"""``nni-latency predict``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

import nni_latency.estimators as estimators
import nni_latency.graphs as graphs
import nni_latency.loading as loading
import nni_latency.operators as operators
from nni_latency.cli._asked import ask
from nni_latency.cli._console import print_lines, remarks, sentence
from nni_latency.cli._cost_report import ROWS, comparison_report, print_answers, remark_on
from nni_latency.cli._estimator_options import EstimatorOptions
from nni_latency.cli._here import MACHINE, Here
from nni_latency.cli._network import NETWORKS, NamedNetwork, NetworkOptions, limited, make, parse_networks
from nni_latency.cli._option import grouped, option
from nni_latency.cli._report import Column, Grid, Report, ReportingCommand, print_report, report_format
from nni_latency.errors import InvalidValueError, MismatchError, UnknownNameError, listed
from nni_latency.platforms import Platform, ids_named
from nni_latency.units import cost_row, format_count, format_percent

#: Facts that a guess takes.
_FACTS = ("peak_flops", "memory_bandwidth", "cache")


@dataclass(frozen=True)
class _AnswerOptions:
    """What is answered."""

    platform: tuple[str, ...] = option(
        "Platform, or a part of its id; repeat for several.  [default: all of the predictor]",
        "--platform",
        multiple=True,
    )
    top: int | None = option(
        f"Number of layers to list.  [default: {ROWS}, as JSON or CSV all, in order; of several platforms none]",
        type=click.IntRange(1),
    )


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
@click.argument("networks", nargs=-1, required=True, metavar=NETWORKS)
@grouped(
    latency_estimator={
        "required": False,
        "help": "A saved table or predictor, a shipped table, or a registered estimator.  [default: your own predictor "
        f"of 'learn graph' if there is one, else {graphs.PRETRAINED}, which ships]",
    }
)
def command(
    networks: tuple[str, ...],
    estimator: EstimatorOptions,
    network: NetworkOptions,
    answer: _AnswerOptions,
    unmeasured: _GuessOptions,
) -> None:
    """Predict the cost of a network layer by layer, or compare several. The network is not run.

    NET is an ONNX file; a class or function, such as net.py:Net or package.module:function, with --input 3,224,224; a
    published network, such as resnet18; or an architecture of a space, such as fbnet@fbnet-c or
    my_space.py:MySpace@sample.json. The file of a class is executed.

    A predictor of 'nni-latency learn graph', or the one that ships, answers for all of its platforms, those of this
    machine first. If it has measured this machine, a reference operator is timed for half a second to see whether the
    machine is as fast as then. A table, a file or a plugin answers for its own platform.
    """
    named, new = parse_networks(networks, network), unmeasured.platform()
    asked = estimator.latency_estimator
    made = estimator.load_any() if asked else graphs.GraphPredictor.load(graphs.usual_predictor())
    if isinstance(made, graphs.GraphPredictor):
        here = Here.of(made, asked or str(graphs.usual_predictor()))
        _predict_platforms(made, here, named, network, answer, new, estimator.device)
        return
    _check(made, asked, answer, unmeasured)
    answers = []
    for item in named:
        with limited(item, network):
            answers.append(ask(made, item, network))
    print_answers(answers, made, answer.top)


def _check(made: estimators.Estimator, name: str, answer: _AnswerOptions, unmeasured: _GuessOptions) -> None:
    """Raise `LatencyError` if an estimator measures, or is not one of what the options ask for."""
    if isinstance(made, estimators.MeasuringEstimator):
        by = name.partition(":")[0]
        raise InvalidValueError(f"{name!r} measures. Measure the network with: nni-latency measure --by {by} NET")
    if unmeasured.guess is not None:
        raise InvalidValueError(
            f"--guess needs a predictor of several platforms, such as {graphs.PRETRAINED}. Got {name!r}."
        )
    for platform in answer.platform:
        if not ids_named(platform, [made.platform.id]):
            raise MismatchError(f"{name!r} is for the platform {made.platform.id}, not for {platform!r}.")


def _predict_platforms(
    known: graphs.GraphPredictor,
    here: Here,
    named: Sequence[NamedNetwork],
    network: NetworkOptions,
    answer: _AnswerOptions,
    new: Platform | None,
    device: str | None,
) -> None:
    """Predict networks on every platform that is asked for."""
    wanted = here.first(_chosen_platforms(known, answer.platform, device))
    speeds = here.speeds(wanted)
    found = []
    for item in named:
        with limited(item, network):
            graph = make(item, network).graph()
            found.append((item, graph, _rows(known, here, graph, wanted, new)))
    doubts = _doubts([row for _, _, rows in found for row in rows])
    if len(found) == 1:
        ((item, graph, rows),) = found
        print_report(_platforms_report(known, item, graph, rows, answer.top))
    else:
        costs = [{"network": item.text, **row} for item, _, rows in found for row in rows]
        guessed = [] if new is None else [new.id]
        shown = [] if answer.platform else guessed or [_best_known(known, here, wanted)]
        print_report(comparison_report(named, costs, [*wanted, *guessed], "latency", shown))
    print_lines(remarks(), _assumptions(found))
    print_lines(remarks(), map(sentence, doubts))
    print_lines(remarks(), here.remarks(speeds))


def _platforms_report(
    known: graphs.GraphPredictor,
    item: NamedNetwork,
    graph: operators.Graph,
    rows: list[dict[str, Any]],
    top: int | None,
) -> Report:
    """Report on one network: a row for each platform, and the layers of those whose layers are listed."""
    shown = rows if top is not None or len(rows) == 1 else []
    explained = {row["platform"]: _layers(known, graph, row["platform"], top) for row in shown if row["networks"]}
    features = operators.count_graph(graph).features
    lines = [f"{format_count(features.macs)} multiply-adds, {format_count(features.params)} parameters"]
    grids = [
        Grid(items, _LAYERS, f"Layers on {name}", most=top or ROWS, by="share") for name, items in explained.items()
    ]
    content = {
        "network": item.text,
        "macs": features.macs,
        "params": features.params,
        "platforms": [
            {**row, **({"layers": explained[row["platform"]]} if row["platform"] in explained else {})} for row in rows
        ],
    }
    columns = [*_PLATFORMS, *([MACHINE] if any(row["this_machine"] for row in rows) else [])]
    return Report(Grid(rows, columns), content, after=[*grids, *lines])


def _chosen_platforms(known: graphs.GraphPredictor, names: tuple[str, ...], device: str | None) -> list[str]:
    """Return the ids of the platforms that are asked for, which may be named in part."""
    ids = [platform.id for platform in known.platforms_]
    if device is not None:
        if loading.connection_of(device) is not None:
            raise InvalidValueError(
                f"For a predictor of several platforms, --device must be of this machine. Got {device!r}. Name the "
                "platform of that device with --platform."
            )
        here = Platform.current(device).device
        ids = [platform.id for platform in known.platforms_ if platform.device == here]
        if not ids:
            raise MismatchError(f"The predictor knows no platform of this machine's {device}, {here!r}. Omit --device.")
    found: dict[str, None] = {}
    for name in names or ids:
        fitting = ids_named(name, ids)
        if not fitting:
            raise UnknownNameError(
                f"{UnknownNameError.of('platform', name, ids)} Add this machine with: nni-latency learn graph"
            )
        found |= dict.fromkeys(fitting)
    return list(found)


def _best_known(known: graphs.GraphPredictor, here: Here, names: Sequence[str]) -> str:
    """Return the platform on which most networks were measured: of this machine, if any of them is."""
    counts = {item.id: count for item, count in zip(known.platforms_, known.counts_, strict=True)}
    return here.first(sorted(names, key=counts.__getitem__, reverse=True))[0]


def _doubts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe what is unfamiliar and widens intervals; what is so on some platforms only is named once for them."""
    found = dict.fromkeys(name for row in rows for name in row["missing"])
    lines = []
    for phrase in graphs.UNFAMILIAR:
        named = [name for name in found if name.startswith(f"{phrase}: ")]
        kinds = sorted({kind for name in named for kind in name.removeprefix(f"{phrase}: ").split(", ")})
        everywhere = len(named) == 1 and all(named[0] in row["missing"] for row in rows)
        if named:
            scope = "" if everywhere else ", for some of the answers"
            lines.append(f"{phrase}{scope}: {', '.join(kinds)}; the interval is wider")
    return lines


def _assumptions(found: Sequence[tuple[NamedNetwork, operators.Graph, Sequence[Mapping[str, Any]]]]) -> Iterator[str]:
    """Yield what had to be assumed of each network, and what else widens its intervals; of several, with its name."""
    for item, graph, rows in found:
        doubts = dict.fromkeys(name for row in rows for name in row["missing"])
        for remark in dict.fromkeys([*graph.remarks, *doubts]):
            if not remark.startswith(tuple(f"{phrase}: " for phrase in graphs.UNFAMILIAR)):
                said = f"{remark.removesuffix('.')}{'; the interval is wider' if remark in doubts else ''}"
                yield remark_on(item, said, one=len(found) == 1)


def _rows(
    known: graphs.GraphPredictor, here: Here, graph: operators.Graph, platforms: list[str], new: Platform | None
) -> list[dict[str, Any]]:
    """Return what is predicted of a network: platforms of this machine first, the fastest first, and a guess last."""
    estimates = known.estimate_platforms(graph)
    counts = {item.id: int(count) for item, count in zip(known.platforms_, known.counts_, strict=True)}
    ranked = here.first(sorted(platforms, key=lambda name: estimates[name].value))
    rows = [_row(name, estimates[name], counts[name], here.mark(name)) for name in ranked]
    return [*rows, *([_row(new.id, known.guess(graph, new), 0, None)] if new is not None else [])]


def _row(platform: str, estimate: estimators.Estimate, networks: int, mark: str | None) -> dict[str, Any]:
    return {
        "platform": platform,
        **cost_row(estimate, "latency"),
        "networks": networks,
        "this_machine": mark,
        "missing": list(estimate.missing),
    }


def _layers(
    known: graphs.GraphPredictor, graph: operators.Graph, platform: str, top: int | None
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"name": item.name, "operator": item.op_key, "latency_s": item.seconds, "share": item.share}
        for item in known.explain(graph, platform)
    ]
    if top is not None and report_format() != "table":
        return sorted(rows, key=lambda row: row["share"], reverse=True)[:top]
    return rows


_PLATFORMS = [
    Column("platform", "platform"),
    Column("latency", "latency_s", metric="latency"),
    Column("from", "low_s", metric="latency"),
    Column("to", "high_s", metric="latency"),
    Column("measured networks", "networks", metric="count"),
]

_LAYERS = [
    Column("layer", "name"),
    Column("operator", "operator"),
    Column("latency", "latency_s", metric="latency"),
    Column("share", "share", format_percent),
]
