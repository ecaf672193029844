"""``nni-latency build-lut --from``: the table that a device would have given, out of an estimator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.markup import escape

from nni_latency.cli._build_operators import default_name as operators_name
from nni_latency.cli._build_operators import plan_operators
from nni_latency.cli._console import remarks, results
from nni_latency.cli._options import plan_for
from nni_latency.errors import InvalidValueError
from nni_latency.estimators import LayerEstimator, estimate_operator_table, estimate_table
from nni_latency.files import check_writable
from nni_latency.loading import load_estimator
from nni_latency.tables import LookupTable, OperatorTable, check_new
from nni_latency.units import format_percent


def build_estimated(space: Any, options: dict[str, Any], default_name: Any) -> None:
    """Write a table of estimates for each batch size, and say what came of it.

    Parameters
    ----------
    space : ModelSpace
        The space.
    options : dict
        Those of the command.
    default_name : callable
        Names the file of a table by plan, platform and metric.

    Raises
    ------
    InvalidValueError
        If the estimator cannot be taken apart, is of another metric, or a file exists.
    """
    estimator = load_estimator(options["source"])
    if not isinstance(estimator, LayerEstimator):
        raise InvalidValueError(
            f"--from needs an estimator that can be taken apart by layer. Got {options['source']!r}, which estimates "
            "whole networks."
        )
    if estimator.metric != options["metric"]:
        raise InvalidValueError(
            f"The estimator {options['source']!r} is of {estimator.metric}. Got --metric {options['metric']}."
        )
    for batch_size in options["batch_sizes"]:
        made: LookupTable | OperatorTable
        if hasattr(space, "measure_plan"):
            plan = plan_for(space, options["space"], batch_size)
            out = options["out"] or Path(default_name(plan, estimator.platform, options["metric"]))
            _check(out, options)
            made = estimate_table(estimator, plan)
        else:
            operators = plan_operators(space, batch_size, options)
            name = operators_name(options["space"], operators.input_shape, estimator.platform)
            out = options["out"] or Path(name)
            _check(out, options)
            made = estimate_operator_table(estimator, operators)
        made.save(out)
        _report(made, out)


def _check(out: Path, options: dict[str, Any]) -> None:
    check_writable(out)
    check_new(out, overwrite=options["overwrite"])


def _report(table: LookupTable | OperatorTable, out: Path) -> None:
    if isinstance(table, LookupTable):
        entries = [entry for layer in table.layers for entry in layer.entries.values()]
        what = f"{len(entries)} candidates of {len(table.layers)} layers"
    else:
        what = f"{len(table.entries)} operators, {format_percent(table.coverage)} of those of other networks among them"
    results().print(f"Wrote {escape(str(out))}: {what}, estimated for {table.platform.id}", soft_wrap=True)
    for remark in table.remarks[1:]:
        remarks().print(escape(remark), soft_wrap=True)
