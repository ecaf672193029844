"""``nni-latency analyze``."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import dataclass
from typing import Any

import click
from rich.markup import escape
from rich.table import Table
from torch import nn

from nni_latency.analysis import BlockAnalysis, ModelAnalysis
from nni_latency.cli._console import remarks, results
from nni_latency.cli._estimator_options import ESTIMATOR
from nni_latency.cli._model import UserCodeOptions, inputs_option, load_class, make_inputs, make_network, names_a_class
from nni_latency.cli._option import JSON_OBJECT, grouped, option
from nni_latency.cli._outputs import WritingCommand
from nni_latency.cli._supervision import user_code
from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.estimators import Estimator
from nni_latency.loading import load_estimator
from nni_latency.spaces import FBNetSpace
from nni_latency.units import format_count, format_percent, format_seconds

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
    batch: int = option("Inputs per run.", type=click.IntRange(1), default=1)


@dataclass(frozen=True)
class _AnalysisOptions:
    """What is said about it."""

    latency_estimator: str | None = option("Estimator of the latency, such as acts:FILE.", metavar=ESTIMATOR)
    depth: int | None = option("Depth of the blocks in the module tree.", type=click.IntRange(1))
    top: int = option("Number of blocks to list.", type=click.IntRange(1), default=_ROWS)
    as_json: bool = option("Print all blocks in order, totals and suggestions as JSON.", "--json", default=False)


@click.command("analyze", cls=WritingCommand)
@grouped()
def command(asked: _NetworkOptions, wanted: _AnalysisOptions, code: UserCodeOptions) -> None:
    """Analyze a network: the work, memory traffic and cost of every block, most expensive first.

    Built-in networks are fbnet-a, fbnet-b, fbnet-b1, fbnet-c and fbnet-c1.
    """
    estimator = None if wanted.latency_estimator is None else load_estimator(wanted.latency_estimator)
    # What user code prints is not part of the result.
    with contextlib.redirect_stdout(sys.stderr), user_code(f"The code of {asked.model!r}", code.timeout):
        analysis = _analyse(asked, wanted.depth, estimator)
    if wanted.as_json:
        click.echo(json.dumps(_content(analysis), indent=1))
    else:
        _print(analysis, wanted.top)
    if analysis.uncounted:
        remarks().print(f"Not counted: {escape(', '.join(analysis.uncounted))}", soft_wrap=True)


def _analyse(asked: _NetworkOptions, depth: int | None, estimator: Estimator | None) -> ModelAnalysis:
    """Analyse what the options name: an ONNX file, or a network that is made."""
    if asked.model.endswith(".onnx"):
        if asked.file or asked.kwargs or asked.inputs:
            raise InvalidValueError("An ONNX file defines its inputs: omit --file, --kwargs and --input.")
        return ModelAnalysis(asked.model, batch_size=asked.batch, estimator=estimator)
    network, shape = _network(asked)
    inputs = make_inputs(asked.inputs or shape, asked.batch)
    return ModelAnalysis(network, batch_size=asked.batch, estimator=estimator, depth=depth, example_inputs=inputs)


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
    plan = FBNetSpace().measure_plan()
    if model not in plan.published:
        raise UnknownNameError(
            f"{UnknownNameError.of('network', model, sorted(plan.published))} Name a class of your own with "
            "--file net.py --model Net."
        )
    return plan.network_of(plan.published[model])(), (",".join(map(str, plan.input_shape[1:])),)


def _content(analysis: ModelAnalysis) -> dict[str, Any]:
    latency = analysis.latency
    return {
        "batch_size": analysis.batch_size,
        "acts": analysis.features.acts,
        "inp": analysis.features.inp,
        "flops": analysis.features.flops,
        "macs": analysis.features.macs,
        "params": analysis.params,
        "memory": analysis.features.memory,
        "latency_s": latency and latency.value,
        "low_s": latency and latency.low,
        "high_s": latency and latency.high,
        "platform": analysis.estimator and analysis.estimator.platform.id,
        "uncounted": list(analysis.uncounted),
        "blocks": [_block_content(block) for block in analysis.blocks],
        "suggestions": analysis.suggestions,
    }


def _block_content(block: BlockAnalysis) -> dict[str, Any]:
    return {
        "name": block.name,
        "kind": block.kind,
        **{name: getattr(block.features, name) for name in ("acts", "inp", "flops", "macs", "memory")},
        "params": block.params,
        "latency_s": block.latency and block.latency.value,
        "share": block.share,
        "uncounted": list(block.uncounted),
    }


def _print(analysis: ModelAnalysis, top: int) -> None:
    console, timed = results(), analysis.blocks and analysis.blocks[0].latency is not None
    grid = Table(padding=(0, 1), title="Blocks, most expensive first", title_justify="left")
    for name in ("block", "kind"):
        grid.add_column(name, overflow="fold")
    for name in ("ACTS", "INP", "FLOPs", "parameters", "bytes moved", *(("latency",) if timed else ()), "share"):
        grid.add_column(name, justify="right")
    for block in analysis.bottlenecks[:top]:
        grid.add_row(escape(block.name), block.kind, *_cells(block, timed=bool(timed)))
    rest = analysis.bottlenecks[top:]
    if rest:
        empty = [""] * (6 if timed else 5)
        grid.add_row(f"and {len(rest)} more", "", *empty, format_percent(sum(block.share for block in rest)))
    console.print(grid)
    features = analysis.features
    console.print(
        f"{format_count(features.acts)} ACTS, {format_count(features.inp)} INP, {format_count(features.flops)} FLOPs "
        f"({format_count(features.macs)} multiply-adds), {format_count(analysis.params)} parameters; shares are "
        f"of the {'latency' if timed else 'FLOPs'}",
        soft_wrap=True,
    )
    if analysis.latency is not None and analysis.estimator is not None:
        low, value, high = (format_seconds(getattr(analysis.latency, name)) for name in ("low", "value", "high"))
        console.print(f"latency {value} ({low} to {high}) on {analysis.estimator.platform.id}")
    for sentence in analysis.suggestions:
        console.print(f"- {escape(sentence)}", soft_wrap=True)


def _cells(block: BlockAnalysis, *, timed: bool) -> list[str]:
    counts = (block.features.acts, block.features.inp, block.features.flops, block.params, block.features.memory)
    latency = [format_seconds(block.latency.value)] if timed and block.latency is not None else []
    return [*map(format_count, counts), *latency, format_percent(block.share)]
