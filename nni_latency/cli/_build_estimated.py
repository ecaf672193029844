"""``nni-latency build-lut --from``: a table of the costs that an estimator gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.markup import escape

import nni_latency.estimators as estimators
import nni_latency.loading as loading
import nni_latency.tables as tables
from nni_latency.cli._build_operators import plan_operators
from nni_latency.cli._build_options import TableJob
from nni_latency.cli._console import print_lines, remarks, results
from nni_latency.cli._space_options import operator_table_name, plan_for, table_name
from nni_latency.errors import InvalidValueError
from nni_latency.units import format_percent, number_of


def build_estimated(space: Any, source: str, job: TableJob) -> None:
    """Write a table of estimates for each batch size, and report on it.

    Parameters
    ----------
    space : ModelSpace
        The space.
    source : str
        Names the estimator.
    job : TableJob
        The tables to be made.

    Raises
    ------
    InvalidValueError
        If the estimator knows no layers, is of another metric, or a file exists.
    """
    estimator, metric = loading.load_estimator(source), job.wanted.metric
    if not isinstance(estimator, estimators.LayerEstimator):
        raise InvalidValueError(f"--from needs a layer-based estimator, but {source!r} estimates whole networks.")
    if estimator.metric != metric:
        raise InvalidValueError(f"The estimator {source!r} gives {estimator.metric}, but --metric is {metric}.")
    for batch_size in job.wanted.batch_sizes:
        made: tables.LookupTable | tables.OperatorTable
        if hasattr(space, "measure_plan"):
            plan = plan_for(space, job.asked.name, batch_size)
            out = job.output.path(table_name(plan, estimator.platform, metric))
            made = estimators.estimate_table(estimator, plan)
        else:
            operators = plan_operators(space, batch_size, job)
            name = operator_table_name(job.asked.name, operators.input_shape, estimator.platform, metric)
            out = job.output.path(name)
            made = estimators.estimate_operator_table(estimator, operators)
        made.save(out)
        _report(made, out)


def _report(table: tables.LookupTable | tables.OperatorTable, out: Path) -> None:
    if isinstance(table, tables.LookupTable):
        entries = [entry for layer in table.layers for entry in layer.entries.values()]
        what = f"{number_of(len(entries), 'candidate')} of {number_of(len(table.layers), 'layer')}"
    else:
        share = format_percent(table.coverage)
        what = f"{number_of(len(table.entries), 'operator')}, {share} of those of other networks among them"
    results().print(f"Wrote {escape(str(out))}: {what}, estimated for {table.platform.id}")
    print_lines(remarks(), table.remarks[1:])
