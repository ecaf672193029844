"""``nni-latency show``."""

from __future__ import annotations

from pathlib import Path

import click

import nni_latency.documents as documents
import nni_latency.estimators as estimators
import nni_latency.fusion as fusion
import nni_latency.loading as loading
import nni_latency.plots as plots
import nni_latency.tables as tables
from nni_latency.cli._console import doubts
from nni_latency.cli._option import grouped
from nni_latency.cli._outputs import OutputFile
from nni_latency.cli._report import Column, Grid, Pairs, Report, ReportingCommand, print_report
from nni_latency.cli._show_fusion import DividedNetworkOptions, show_fusion
from nni_latency.cli._show_operators import operator_report
from nni_latency.cli._table_facts import header_facts, header_summary, table_pairs, validation_summary
from nni_latency.errors import InvalidValueError
from nni_latency.units import METRICS, cost_row, format_metric


@click.command("show", cls=ReportingCommand)
@click.argument("table")
@click.option("--plot", type=OutputFile(), help="PNG file of costs, intervals and drift; of the kernels of --network.")
@grouped()
def command(table: str, plot: Path | None, divided: DividedNetworkOptions) -> None:
    """Show a lookup table: layers, candidates, coverage, platform, protocol.

    TABLE is a file, the name of a table that ships with the package, or a registered estimator. Of an estimator without
    a table, its kind, metric and platform are shown. A file of fusion rules is shown with its evidence, or, with
    --network, by the kernels that it makes of a network.
    """
    if documents.format_of(table) == fusion.FUSION.name:
        print_report(show_fusion(table, divided, plot))
        return
    divided.check_unused(repr(table))
    found, path = loading.load_saved(table)
    known = validation_summary(path)
    if isinstance(found, estimators.Estimator):
        if plot is not None:
            raise InvalidValueError(f"{table!r} is {found!r}, which is no table: there is nothing to plot.")
        print_report(_estimator_report(found))
    elif isinstance(found, tables.OperatorTable):
        if plot is not None:
            plots.draw_operator_table(found, plot)
        print_report(operator_report(found, known))
    else:
        if plot is not None:
            plots.draw_table(found, plot)
        print_report(_report(found, known))


def _estimator_report(estimator: estimators.Estimator) -> Report:
    facts = {"estimator": repr(estimator), "metric": estimator.metric, "platform": estimator.platform.id}
    rows = [{"name": name, "value": value} for name, value in facts.items()]
    grid = Grid(rows, [Column("", "name"), Column("", "value")])
    return Report(grid, {**facts, "facts": dict(estimator.platform.facts)})


def _report(table: tables.LookupTable, known: dict[str, str]) -> Report:
    factor, unit = METRICS[table.metric].shown
    value, rows = next(iter(cost_row(None, table.metric))), table.rows()
    columns = [
        Column("layer", "layer"),
        Column("candidate", "choice"),
        Column("cost", value, lambda cost: f"{cost * factor:.3g}", "missing"),
    ]
    searched = [row for row in rows if row["searched"]]
    fixed = {layer.name: _fixed(table, layer) for layer in table.layers if not layer.searched}
    return Report(
        Grid(searched, columns, f"{table.metric} [{unit}]", across=True),
        {**_facts(table), "entries": rows},
        rows,
        before=table_pairs(table, {**_summary(table), **known}),
        after=[*([Pairs("Fixed layers", fixed)] if fixed else []), *doubts(table)],
    )


def _summary(table: tables.LookupTable) -> dict[str, str]:
    summary = header_summary(table)
    if not table.missing:
        low, high = estimators.TableEstimator(table).cost.range
        summary["networks"] = f"{format_metric(low, table.metric)} to {format_metric(high, table.metric)}"
    return summary


def _fixed(table: tables.LookupTable, layer: tables.TableLayer) -> str:
    costs = (f"{choice} {format_metric(entry.value, table.metric)}" for choice, entry in layer.entries.items())
    return f"{', '.join(costs)} (default {layer.default})"


def _facts(table: tables.LookupTable) -> dict[str, object]:
    return {
        **header_facts(table),
        "missing": [f"{layer}:{choice}" for layer, choice in table.missing],
        "failures": {f"{layer.name}:{choice}": why for layer in table.layers for choice, why in layer.failures.items()},
        "unsettled": [f"{layer}:{choice}" for layer, choice in table.unsettled],
    }
