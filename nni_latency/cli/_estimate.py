"""``nni-latency estimate``."""

from __future__ import annotations

import contextlib
import json
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from nni_latency.cli._asked import Answer, NetworkOptions, Question, Row, ask
from nni_latency.cli._console import remarks, results
from nni_latency.cli._estimator_options import EstimatorOptions
from nni_latency.cli._model import UserCodeOptions
from nni_latency.cli._option import grouped, option
from nni_latency.cli._outputs import WritingCommand
from nni_latency.cli._space_options import SPACE_OF_TABLE, SpaceOptions
from nni_latency.cli._supervision import user_code
from nni_latency.estimators import Estimator, MeasuringEstimator, TableEstimator
from nni_latency.units import format_count, format_metric, format_percent

#: Rows that are printed without --top, and names that are listed.
_ROWS, _LISTED = 30, 8


@dataclass(frozen=True)
class _ReportOptions:
    """What is shown of the answer."""

    top: int | None = option(f"Number of layers to list.  [default: {_ROWS}; with --json all]", type=click.IntRange(1))
    as_json: bool = option(
        "Print JSON with latency_s, low_s, high_s, macs, params and layers.", "--json", default=False
    )


@click.command("estimate", cls=WritingCommand)
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

    MODEL is an architecture of --space, as for --architecture, or a class of your own, such as net.py:Net with --input
    3,224,224. The file of a class is executed. With --space operators, MODEL is a list of operator keys, or a file of
    them, for tables without a space.
    """
    made = estimator.load()
    # What user code prints is not part of the result.
    with contextlib.redirect_stdout(sys.stderr), _waiting(made), _limited(made, model or space.name, code.timeout):
        answer = ask(made, Question(model, space, network, estimator.batch_size))
    if report.as_json:
        click.echo(json.dumps(_content(answer, made, report.top), indent=1))
    else:
        _print(answer, made, report.top or _ROWS)
    _print_doubts(answer, made)


def _limited(estimator: Estimator, name: str, timeout: float) -> AbstractContextManager[None]:
    """Mark the code of a network; what measures has time limits of its own."""
    return user_code(f"The code of {name!r}", 0.0 if isinstance(estimator, MeasuringEstimator) else timeout)


def _waiting(estimator: Estimator) -> AbstractContextManager[object]:
    if not isinstance(estimator, MeasuringEstimator):
        return contextlib.nullcontext()
    return remarks().status("Measuring what has not been measured yet")


def _content(answer: Answer, estimator: Estimator, top: int | None) -> dict[str, Any]:
    unit = "_s" if answer.metric == "latency" else ""
    return {
        f"{answer.metric}{unit}": answer.total.value,
        f"low{unit}": answer.total.low,
        f"high{unit}": answer.total.high,
        "macs": answer.features.macs,
        "params": answer.features.params,
        "uncounted": list(answer.uncounted),
        "platform": {"id": estimator.platform.id, "facts": dict(estimator.platform.facts)},
        "missing": list(answer.total.missing),
        "layers": [
            {
                "name": row.name,
                answer.column: row.what,
                f"{answer.metric}{unit}": row.estimate.value,
                "share": row.share,
            }
            for row in (answer.rows if top is None else _costliest(answer)[:top])
        ],
    }


def _costliest(answer: Answer) -> list[Row]:
    return sorted(answer.rows, key=lambda row: row.share, reverse=True)


def _print(answer: Answer, estimator: Estimator, top: int) -> None:
    console = results()
    if answer.rows:
        console.print(_grid(answer, top))
    low, value, high = (
        format_metric(number, answer.metric) for number in (answer.total.low, answer.total.value, answer.total.high)
    )
    console.print(f"{answer.metric} {value} ({low} to {high}) on {estimator.platform.id}")
    uncounted = f", not counting {', '.join(answer.uncounted)}" if answer.uncounted else ""
    console.print(
        f"{format_count(answer.features.macs)} multiply-adds, {format_count(answer.features.params)} parameters"
        f"{escape(uncounted)}",
        soft_wrap=True,
    )


def _grid(answer: Answer, top: int) -> Table:
    rows = _costliest(answer)
    grid = Table(padding=(0, 1))
    for name in ("layer", answer.column):
        grid.add_column(name, overflow="fold")
    for name in (answer.metric, "share"):
        grid.add_column(name, justify="right", no_wrap=True)
    for row in rows[:top]:
        grid.add_row(
            escape(row.name),
            escape(row.what),
            format_metric(row.estimate.value, answer.metric),
            format_percent(row.share),
        )
    if len(rows) > top:
        grid.add_row(f"and {len(rows) - top} more", "", "", format_percent(sum(row.share for row in rows[top:])))
    return grid


def _print_doubts(answer: Answer, estimator: Estimator) -> None:
    names = list(dict.fromkeys(answer.total.missing))
    if not names:
        return
    if isinstance(estimator, TableEstimator):
        text = f"taken from the nearest entry or left out: {', '.join(names)}"
    else:
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        text = f"{', '.join(names[:_LISTED])}{more}"
    remarks().print(f"Not in the estimator as asked, {escape(text)}", soft_wrap=True)
