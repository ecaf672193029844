"""``nni-latency analyze``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

import nni_latency.analysis as analysis
import nni_latency.loading as loading
import nni_latency.spaces as spaces
from nni_latency.cli._console import named, print_lines, remarks, sentence
from nni_latency.cli._estimator_options import ESTIMATOR
from nni_latency.cli._model import (
    UserCodeOptions,
    inputs_option,
    load_class,
    make_inputs,
    make_network,
    names_a_class,
    onnx_inputs_of,
)
from nni_latency.cli._option import JSON_OBJECT, grouped, option
from nni_latency.cli._report import Column, Grid, Report, ReportingCommand, print_report
from nni_latency.cli._supervision import user_code
from nni_latency.errors import InvalidValueError, MismatchError, UnknownNameError
from nni_latency.units import format_count, format_percent, format_seconds

if TYPE_CHECKING:
    from torch import nn

#: Makes an analysis of a network.
_Analyse = Callable[..., "analysis.ModelAnalysis"]

#: Blocks that are printed without --top.
_ROWS = 20


@dataclass(frozen=True)
class _NetworkOptions:
    """The network that is analysed."""

    file: str | None = option("Python file with the network's class. The file is executed.")
    model: str = option(
        "Class in --file, package.module:Class, an .onnx file, or the name of a built-in network.", required=True
    )
    kwargs: dict[str, Any] | None = option("Arguments of the class as a JSON object.", type=JSON_OBJECT)
    inputs: tuple[str, ...] = inputs_option()
    batch: int | None = option("Inputs per run.  [default: what an ONNX file says, or 1]", type=click.IntRange(1))


@dataclass(frozen=True)
class _AnalysisOptions:
    """What is said about it."""

    latency_estimator: str | None = option("Estimator of the latency, such as acts:FILE.", metavar=ESTIMATOR)
    depth: int | None = option("Depth of the blocks in the module tree.", type=click.IntRange(1))
    top: int = option("Number of blocks to list.", type=click.IntRange(1), default=_ROWS)


@click.command("analyze", cls=ReportingCommand)
@grouped()
def command(asked: _NetworkOptions, wanted: _AnalysisOptions, code: UserCodeOptions) -> None:
    """Analyze a network: the work, memory traffic and cost of every block, most expensive first.

    Built-in networks are fbnet-a, fbnet-b, fbnet-b1, fbnet-c and fbnet-c1.
    """
    estimator = None if wanted.latency_estimator is None else loading.load_estimator(wanted.latency_estimator)
    if estimator is not None and estimator.metric != "latency":
        raise MismatchError(
            f"An analysis takes an estimator of latency. Got {estimator!r}: 'nni-latency estimate' lists the costs of "
            "operators by it."
        )
    # Made before the time of the network's code begins: this loads torch.
    inputs = _inputs(asked)
    analyse: _Analyse = partial(analysis.ModelAnalysis, batch_size=asked.batch, estimator=estimator)
    # What user code prints is not part of the result.
    with contextlib.redirect_stdout(sys.stderr), user_code(f"The code of {asked.model!r}", code.timeout):
        analysed = _analyse(asked, inputs, wanted.depth, analyse)
    print_report(_report(analysed, wanted.top))
    if analysed.uncounted:
        remarks().print(f"Not counted: {escape(named(analysed.uncounted))}")
    print_lines(remarks(), map(sentence, analysed.remarks))


def _inputs(asked: _NetworkOptions) -> Any:
    if asked.model.endswith(".onnx"):
        return onnx_inputs_of(asked.inputs)
    return make_inputs(asked.inputs, asked.batch or 1) if asked.inputs else None


def _analyse(asked: _NetworkOptions, inputs: Any, depth: int | None, analyse: _Analyse) -> analysis.ModelAnalysis:
    """Analyse what the options name: an ONNX file, or a network that is made."""
    if asked.model.endswith(".onnx"):
        if asked.file or asked.kwargs:
            raise InvalidValueError("An ONNX file is a whole network: omit --file and --kwargs.")
        return analyse(asked.model, example_inputs=inputs)
    network, shape = _network(asked)
    inputs = make_inputs(shape, asked.batch or 1) if inputs is None else inputs
    return analyse(network, depth=depth, example_inputs=inputs)


def _network(asked: _NetworkOptions) -> tuple[nn.Module, tuple[str, ...]]:
    """Make the network that the options name; with the input that a built-in one takes."""
    model, file = asked.model, asked.file
    if file is not None:
        if not (file.endswith(".py") and model.isidentifier()):
            raise InvalidValueError(
                f"--file must be a Python file and --model a class in it. Got {file!r} and {model!r}."
            )
        model = f"{file}:{model}"
    if names_a_class(model):
        return make_network(model, load_class(model), asked.kwargs or {}), ()
    if asked.kwargs:
        raise InvalidValueError(f"--kwargs is for a class of your own, and {model!r} is a built-in network.")
    plan = spaces.FBNetSpace().measure_plan()
    if model not in plan.published:
        raise UnknownNameError(
            f"{UnknownNameError.of('network', model, sorted(plan.published))} Name a class of your own with "
            "--file net.py --model Net."
        )
    return plan.network_of(plan.published[model])(), (",".join(map(str, plan.input_shape[1:])),)


def _content(analysed: analysis.ModelAnalysis, rows: list[dict[str, Any]]) -> dict[str, Any]:
    latency = analysed.latency
    return {
        "batch_size": analysed.batch_size,
        "acts": analysed.features.acts,
        "inp": analysed.features.inp,
        "flops": analysed.features.flops,
        "macs": analysed.features.macs,
        "params": analysed.params,
        "memory": analysed.features.memory,
        "latency_s": latency and latency.value,
        "low_s": latency and latency.low,
        "high_s": latency and latency.high,
        "platform": analysed.estimator and analysed.estimator.platform.id,
        "uncounted": list(analysed.uncounted),
        "remarks": list(analysed.remarks),
        "blocks": rows,
        "suggestions": analysed.suggestions,
    }


def _row(block: analysis.BlockAnalysis) -> dict[str, Any]:
    return {
        "name": block.name,
        "kind": block.kind,
        **{name: getattr(block.features, name) for name in ("acts", "inp", "flops", "macs", "memory")},
        "params": block.params,
        "latency_s": block.latency and block.latency.value,
        "share": block.share,
        "uncounted": list(block.uncounted),
    }


def _report(analysed: analysis.ModelAnalysis, top: int) -> Report:
    rows = [_row(block) for block in analysed.blocks]
    timed = any(row["latency_s"] is not None for row in rows)
    counts = {"ACTS": "acts", "INP": "inp", "FLOPs": "flops", "parameters": "params", "bytes moved": "memory"}
    columns = [
        Column("block", "name"),
        Column("kind", "kind"),
        *(Column(header, key, metric="count") for header, key in counts.items()),
        *([Column("latency", "latency_s", metric="latency")] if timed else []),
        Column("share", "share", format_percent),
    ]
    features = analysed.features
    lines = [
        f"{format_count(features.acts)} ACTS, {format_count(features.inp)} INP, {format_count(features.flops)} FLOPs "
        f"({format_count(features.macs)} multiply-adds), {format_count(analysed.params)} parameters; shares are "
        f"of the {'latency' if timed else 'FLOPs'}",
    ]
    if analysed.latency is not None and analysed.estimator is not None:
        low, value, high = (format_seconds(getattr(analysed.latency, name)) for name in ("low", "value", "high"))
        lines.append(f"latency {value} ({low} to {high}) on {analysed.estimator.platform.id}")
    grid = Grid(rows, columns, "Blocks, most expensive first", most=top, by="share")
    return Report(grid, _content(analysed, rows), after=[*lines, *(f"- {line}" for line in analysed.suggestions)])
