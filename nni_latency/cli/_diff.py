"""``nni-latency diff``."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from nni_latency.cli._console import pairs_table, print_names, remarks, results
from nni_latency.cli._outputs import OutputFile, WritingCommand
from nni_latency.plots import draw_comparison
from nni_latency.tables import TableComparison, compare_tables, find_table, read_table
from nni_latency.units import format_percent

#: Candidates that fit side by side.
_COLUMNS = 12


@click.command("diff", cls=WritingCommand)
@click.argument("first")
@click.argument("second")
@click.option("--json", "as_json", is_flag=True, help="Print ratios by layer and candidate, and a summary, as JSON.")
@click.option("--plot", type=OutputFile(), help="PNG file of the ratios.")
def command(first: str, second: str, as_json: bool, plot: Path | None) -> None:
    """Compare two tables candidate by candidate: SECOND over FIRST.

    FIRST and SECOND are files, or names of tables that ship with the package. Their platforms may differ.
    """
    comparison = compare_tables(*(read_table(find_table(name)) for name in (first, second)))
    if plot is not None:
        draw_comparison(comparison, plot)
    if as_json:
        click.echo(json.dumps(_content(comparison), indent=1))
        return
    console = results()
    console.print(_ratios(comparison))
    console.print(pairs_table("Summary", _summary(comparison)))
    _print_rest(comparison, remarks())


def _ratios(comparison: TableComparison) -> Table:
    ratios = comparison.ratios
    names = list(dict.fromkeys(choice for row in ratios.values() for choice in row))
    grid = Table(title=escape("second over first"), title_justify="left", padding=(0, 1))
    grid.add_column("layer")
    if len(names) > _COLUMNS:
        grid.add_column("candidate")
        grid.add_column("ratio", justify="right")
        for layer, row in ratios.items():
            for choice, ratio in row.items():
                grid.add_row(escape(layer), escape(choice), f"{ratio:.3g}")
        return grid
    for name in [*names, "median"]:
        grid.add_column(escape(name), justify="right")
    for layer, row in ratios.items():
        cells = [f"{row[name]:.3g}" if name in row else "" for name in names]
        middle = comparison.layer_ratios.get(layer)
        grid.add_row(escape(layer), *cells, "" if middle is None else f"{middle:.3g}")
    return grid


def _summary(comparison: TableComparison) -> dict[str, str]:
    return {
        "first": f"{comparison.first.space} on {comparison.first.platform.id}",
        "second": f"{comparison.second.space} on {comparison.second.platform.id}",
        "candidates in both": str(sum(map(len, comparison.costs.values()))),
        "median ratio": f"{comparison.ratio:.4g}",
        "spread": f"90 % of the ratios within {format_percent(comparison.spread)} of the median",
        "Spearman": f"{comparison.spearman:.4f}",
    }


def _print_rest(comparison: TableComparison, console: Console) -> None:
    if comparison.differences:
        console.print(escape(f"The tables also differ in: {'; '.join(comparison.differences)}."), soft_wrap=True)
    for which, places in (("first", comparison.only_first), ("second", comparison.only_second)):
        print_names(
            console, f"entries are only in the {which} table", [f"{layer}:{choice}" for layer, choice in places]
        )


def _content(comparison: TableComparison) -> dict[str, Any]:
    def number(value: float) -> float | None:
        return None if math.isnan(value) else value

    return {
        "first": {"space": str(comparison.first.space), "platform": comparison.first.platform.id},
        "second": {"space": str(comparison.second.space), "platform": comparison.second.platform.id},
        "metric": comparison.first.metric,
        "differences": list(comparison.differences),
        "ratio": number(comparison.ratio),
        "spread": comparison.spread,
        "spearman": number(comparison.spearman),
        "layers": comparison.layer_ratios,
        "ratios": comparison.ratios,
        "only_first": [f"{layer}:{choice}" for layer, choice in comparison.only_first],
        "only_second": [f"{layer}:{choice}" for layer, choice in comparison.only_second],
    }
