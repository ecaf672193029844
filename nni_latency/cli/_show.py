"""``nni-latency show``."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from nni_latency.cli._console import facts_table, pairs_table, print_doubts, results
from nni_latency.cli._outputs import OutputFile, WritingCommand
from nni_latency.cli._show_operators import operator_facts, show_operator_table
from nni_latency.cli._table_facts import header_facts, header_summary
from nni_latency.estimators import TableEstimator
from nni_latency.plots import draw_operator_table, draw_table
from nni_latency.tables import LookupTable, OperatorTable, TableLayer, find_table, read_table, validation_path
from nni_latency.units import METRIC_UNITS, format_metric, format_percent
from nni_latency.validation import read_summary

#: What a table in the terminal shows of each metric: factor and unit.
_SHOWN = {"latency": (1e3, "ms"), "energy": (1e3, "mJ")}

#: Different candidates that fit side by side.
_COLUMNS = 16


@click.command("show", cls=WritingCommand)
@click.argument("table")
@click.option("--json", "as_json", is_flag=True, help="Print the main facts as JSON.")
@click.option("--plot", type=OutputFile(), help="PNG file of costs, intervals and drift.")
def command(table: str, as_json: bool, plot: Path | None) -> None:
    """Show a lookup table: layers, candidates, coverage, platform, protocol.

    TABLE is a file, or the name of a table that ships with the package.
    """
    path = find_table(table)
    loaded = read_table(path)
    if isinstance(loaded, OperatorTable):
        _show_operators(loaded, path, as_json, plot)
        return
    if plot is not None:
        draw_table(loaded, plot)
    if as_json:
        click.echo(json.dumps(_facts(loaded), indent=1))
        return
    console = results()
    wide = console.width >= 110
    console.print(facts_table(loaded.platform, wide=wide))
    if loaded.protocol is not None:
        console.print(pairs_table("Protocol", loaded.protocol.as_dict()))
    console.print(pairs_table("Table", {**_summary(loaded), **_validation(validation_path(path))}))
    console.print(_costs(loaded, wide=wide))
    fixed = {layer.name: _fixed(loaded, layer) for layer in loaded.layers if not layer.searched}
    if fixed:
        console.print(pairs_table("Fixed layers", fixed))
    print_doubts(loaded, console)


def _show_operators(table: OperatorTable, path: Path, as_json: bool, plot: Path | None) -> None:
    if plot is not None:
        draw_operator_table(table, plot)
    if as_json:
        click.echo(json.dumps(operator_facts(table), indent=1))
    else:
        show_operator_table(table, _validation(validation_path(path)), results())


def _summary(table: LookupTable) -> dict[str, str]:
    summary = header_summary(table)
    if not table.missing:
        low, high = TableEstimator(table).cost.range
        summary["networks"] = f"{format_metric(low, table.metric)} to {format_metric(high, table.metric)}"
    return summary


def _validation(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    summary = read_summary(path)
    scores, halves = summary.scores, summary.repeatability
    return {
        "validation": f"{scores.n} networks: MAPE {format_percent(scores.mape)} (the measurement repeats within "
        f"{format_percent(halves.mape)}), within 10 %: {format_percent(scores.within10)}"
    }


def _costs(table: LookupTable, *, wide: bool) -> Table:
    """Return searched layers by candidates."""
    factor, unit = _SHOWN.get(table.metric, (1.0, METRIC_UNITS[table.metric]))
    names = list(dict.fromkeys(choice for layer in table.searched for choice in layer.choices))
    grid = Table(title=escape(f"{table.metric} [{unit}]"), title_justify="left", padding=(0, 1 if wide else 0))
    if len(names) > _COLUMNS:
        return _as_list(grid, table, factor)
    grid.add_column("layer", no_wrap=True)
    for name in names:
        grid.add_column(name, justify="right", no_wrap=wide)
    for layer in table.layers:
        if layer.searched:
            grid.add_row(layer.name, *(_cell(layer, name, factor) for name in names))
    return grid


def _as_list(grid: Table, table: LookupTable, factor: float) -> Table:
    """Return a line a candidate, where layers have so many different ones that columns would be too narrow."""
    for name in ("layer", "candidate"):
        grid.add_column(name, overflow="fold")
    grid.add_column("cost", justify="right", no_wrap=True)
    for layer in table.searched:
        for choice in layer.choices:
            grid.add_row(escape(layer.name), escape(choice), _cell(layer, choice, factor))
    return grid


def _fixed(table: LookupTable, layer: TableLayer) -> str:
    costs = (f"{choice} {format_metric(entry.value, table.metric)}" for choice, entry in layer.entries.items())
    return f"{', '.join(costs)} (default {layer.default})"


def _cell(layer: TableLayer, choice: str, factor: float) -> str:
    if choice not in layer.choices:
        return ""
    entry = layer.entries.get(choice)
    return "[red]missing" if entry is None else f"{entry.value * factor:.3g}"


def _facts(table: LookupTable) -> dict[str, object]:
    return {
        **header_facts(table),
        "missing": [f"{layer}:{choice}" for layer, choice in table.missing],
        "failures": {f"{layer.name}:{choice}": why for layer in table.layers for choice, why in layer.failures.items()},
        "unsettled": [f"{layer}:{choice}" for layer, choice in table.unsettled],
    }
