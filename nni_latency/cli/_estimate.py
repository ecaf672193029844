"""``nni-latency estimate``."""

from __future__ import annotations

import contextlib
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import click
from rich.markup import escape

import nni_latency.estimators as estimators
from nni_latency.cli._asked import Answer, NetworkOptions, Question, Row, ask
from nni_latency.cli._console import named, print_lines, remarks, sentence
from nni_latency.cli._constant_power import CONSTANT, at_constant_power, constant_power_content
from nni_latency.cli._estimator_options import EstimatorOptions
from nni_latency.cli._model import UserCodeOptions
from nni_latency.cli._option import grouped, option
from nni_latency.cli._report import Column, Grid, Report, ReportingCommand, print_report, report_format
from nni_latency.cli._space_options import SPACE_OF_TABLE, SpaceOptions
from nni_latency.cli._supervision import user_code
from nni_latency.units import cost_row, format_count, format_metric, format_percent

#: Rows that are printed without --top.
_ROWS = 30


@dataclass(frozen=True)
class _ReportOptions:
    """What is shown of the answer."""

    top: int | None = option(
        f"Number of layers to list.  [default: {_ROWS}; as JSON or CSV all, in order]", type=click.IntRange(1)
    )


@click.command("estimate", cls=ReportingCommand)
@click.argument("model", required=False)
@grouped(space=SPACE_OF_TABLE)
def command(
    model: str | None,
    space: SpaceOptions,
    network: NetworkOptions,
    estimator: EstimatorOptions,
    code: UserCodeOptions,
    report: _ReportOptions,
) -> None:
    """Estimate the cost of a network, most expensive layers first.

    MODEL is an architecture of --space, as for --architecture; a class of your own, such as net.py:Net with --input
    3,224,224; or an ONNX file, with --input where it leaves sizes open. The file of a class is executed. With --space
    operators, MODEL is a list of operator keys, as this command prints them, or a file of them.
    """
    made = estimator.load()
    # What user code prints is not part of the result.
    with contextlib.redirect_stdout(sys.stderr), _waiting(made), _limited(made, model or space.name, code.timeout):
        answer = ask(made, Question(model, space, network, estimator.batch_size))
    print_report(_report(answer, made, report.top))
    _print_doubts(answer, made)


def _limited(estimator: estimators.Estimator, name: str, timeout: float) -> AbstractContextManager[None]:
    """Mark the code of a network; what measures has time limits of its own."""
    return user_code(f"The code of {name!r}", 0.0 if isinstance(estimator, estimators.MeasuringEstimator) else timeout)


def _waiting(estimator: estimators.Estimator) -> AbstractContextManager[object]:
    if not isinstance(estimator, estimators.MeasuringEstimator):
        return contextlib.nullcontext()
    return remarks().status("Measuring what has not been measured yet")


def _report(answer: Answer, estimator: estimators.Estimator, top: int | None) -> Report:
    value = next(iter(cost_row(None, answer.metric)))
    rows = [_row(row, answer.column, value) for row in answer.rows]
    if top is not None and report_format() != "table":
        rows = sorted(rows, key=lambda row: row["share"], reverse=True)[:top]
    cost = partial(format_metric, metric=answer.metric)
    has_constant = any(CONSTANT in row for row in rows)
    columns = [
        Column("layer", "name"),
        *([Column(answer.column, answer.column)] if any(row.what for row in answer.rows) else []),
        Column(answer.metric, value, metric=answer.metric),
        *([Column("at constant power", CONSTANT, metric=answer.metric)] if has_constant else []),
        Column("share", "share", format_percent),
    ]
    total, features = answer.total, answer.features
    uncounted = f", not counting {named(answer.uncounted)}" if answer.uncounted else ""
    lines = [
        f"{answer.metric} {cost(total.value)} ({cost(total.low)} to {cost(total.high)}) on {estimator.platform.id}",
        *at_constant_power(total, estimator),
        *(
            [f"{format_count(features.macs)} multiply-adds, {format_count(features.params)} parameters{uncounted}"]
            if features
            else []
        ),
    ]
    content = {
        **cost_row(total, answer.metric),
        **constant_power_content(total),
        "macs": features and features.macs,
        "params": features and features.params,
        "uncounted": list(answer.uncounted),
        "platform": {"id": estimator.platform.id, "facts": dict(estimator.platform.facts)},
        "missing": list(total.missing),
        "remarks": list(answer.remarks),
        "layers": rows,
    }
    return Report(Grid(rows, columns, most=top or _ROWS, by="share"), content, after=lines)


def _row(row: Row, column: str, value: str) -> dict[str, Any]:
    estimate = row.estimate
    costs = {value: estimate.value, **constant_power_content(estimate)}
    return {"name": row.name, column: row.what, **costs, "share": row.share}


def _print_doubts(answer: Answer, estimator: estimators.Estimator) -> None:
    print_lines(remarks(), map(sentence, answer.remarks))
    names = [name for name in dict.fromkeys(answer.total.missing) if name not in answer.remarks]
    if names:
        how = ", taken from the nearest entry or left out:" if isinstance(estimator, estimators.TableEstimator) else ","
        remarks().print(escape(f"Not in the estimator as asked{how} {named(names)}"))
