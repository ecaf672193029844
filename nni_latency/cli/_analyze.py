"""``nni-latency analyze``."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.markup import escape
from rich.table import Table
from torch import nn

from nni_latency.analysis import BlockAnalysis, ModelAnalysis
from nni_latency.cli._console import remarks, results
from nni_latency.cli._model import load_class, make_inputs, make_network, names_a_class
from nni_latency.cli._spaces import JsonObject
from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.estimators import Estimator
from nni_latency.loading import load_estimator
from nni_latency.spaces import FBNetSpace
from nni_latency.units import format_count, format_percent, format_seconds

#: Blocks that are printed without --top.
_ROWS = 20


@click.command("analyze")
@click.option("--file", help="Python file with the network's class; it is run.")
@click.option(
    "--model", required=True, help="Class in --file, package.module:Class, an .onnx file, or a built-in name."
)
@click.option("--kwargs", type=JsonObject(), help="Arguments of the class, as JSON.")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="[NAME=]SIZES[:DTYPE]",
    help="Input without the batch, such as 3,224,224; again for each further one.",
)
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Inputs per run.")
@click.option(
    "--latency-estimator", metavar="FILE|NAME[:ARGUMENT]", help="What says how long a block takes, such as acts:FILE."
)
@click.option("--depth", type=click.IntRange(1), help="How deep in the tree of modules the blocks are.")
@click.option("--top", type=click.IntRange(1), default=_ROWS, show_default=True, help="How many blocks to list.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: all blocks in order, totals and suggestions.")
def command(**options: Any) -> None:
    """Take a network apart: what every block computes, needs and costs, the costliest first.

    Built in are fbnet-a, fbnet-b, fbnet-b1, fbnet-c and fbnet-c1.
    """
    source = options["latency_estimator"]
    estimator = None if source is None else load_estimator(source)
    analysis = _analyse(options, estimator)
    if options["as_json"]:
        click.echo(json.dumps(_content(analysis), indent=1))
    else:
        _print(analysis, options["top"])
    if analysis.uncounted:
        remarks().print(f"Not counted: {escape(', '.join(analysis.uncounted))}", soft_wrap=True)


def _analyse(options: dict[str, Any], estimator: Estimator | None) -> ModelAnalysis:
    """Take apart what the options name: an ONNX file, or a network that is made."""
    batch = options["batch"]
    if options["model"].endswith(".onnx"):
        if options["file"] or options["kwargs"] or options["inputs"]:
            raise InvalidValueError("An ONNX file knows its inputs: leave out --file, --kwargs and --input.")
        return ModelAnalysis(options["model"], batch_size=batch, estimator=estimator)
    network, shape = _network(options)
    inputs = make_inputs(options["inputs"] or shape, batch)
    return ModelAnalysis(network, batch_size=batch, estimator=estimator, depth=options["depth"], example_inputs=inputs)


def _network(options: dict[str, Any]) -> tuple[nn.Module, tuple[str, ...]]:
    """Make the network that the options name; with the input that a built-in one takes."""
    model, file = options["model"], options["file"]
    if file is not None:
        if not (file.endswith(".py") and model.isidentifier()):
            raise InvalidValueError(
                f"--file must be a Python file and --model a class in it. Got {file!r} and {model!r}."
            )
        model = f"{file}:{model}"
    if names_a_class(model):
        return make_network(model, load_class(model), options["kwargs"] or {}), ()
    if options["kwargs"]:
        raise InvalidValueError(f"--kwargs are for a class of your own. Got them for the built-in network {model!r}.")
    plan = FBNetSpace().measure_plan()
    if model not in plan.published:
        raise UnknownNameError(
            f"{UnknownNameError.of('network', model, sorted(plan.published))} A class of your own is named with "
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
    grid = Table(padding=(0, 1), title="Blocks, the costliest first", title_justify="left")
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
        f"({format_count(features.macs)} multiply-adds), {format_count(analysis.params)} parameters; the share is that "
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
