# SPDX-License-Identifier: Apache-2.0
"""``nni-latency diff``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import nni_latency.loading as loading
import nni_latency.plots as plots
import nni_latency.tables as tables
from nni_latency.cli._console import named, print_lines, remarks
from nni_latency.cli._outputs import OutputFile
from nni_latency.cli._report import Column, Grid, Pairs, Report, ReportingCommand, print_report
from nni_latency.units import format_percent, format_rank_correlation, number_of


@click.command("diff", cls=ReportingCommand)
@click.argument("first")
@click.argument("second")
@click.option("--plot", type=OutputFile(), help="PNG file of the ratios.")
def command(first: str, second: str, plot: Path | None) -> None:
    """Compare two tables candidate by candidate: SECOND over FIRST.

    FIRST and SECOND are files, names of tables that ship with the package, or registered estimators that have a table.
    Their platforms may differ.
    """
    comparison = tables.compare_tables(loading.load_table(first), loading.load_table(second))
    if plot is not None:
        plots.draw_comparison(comparison, plot)
    layers = {layer: f"{ratio:.3g}" for layer, ratio in comparison.layer_ratios.items()}
    after = [Pairs("Median by layer", layers), Pairs("Summary", _summary(comparison))]
    print_report(Report(_ratios(comparison), _content(comparison), after=after))
    print_lines(remarks(), _rest(comparison))


def _ratios(comparison: tables.TableComparison) -> Grid:
    rows = [
        {"layer": layer, "choice": choice, "ratio": ratio}
        for layer, row in comparison.ratios.items()
        for choice, ratio in row.items()
    ]
    columns = [Column("layer", "layer"), Column("candidate", "choice"), Column("ratio", "ratio", "{:.3g}".format)]
    return Grid(rows, columns, "second over first", across=True)


def _summary(comparison: tables.TableComparison) -> dict[str, str]:
    share = comparison.agreement
    within = f"{format_percent(share)} of the candidates within their intervals, apart from the median ratio"
    return {
        "first": f"{comparison.first.space} on {comparison.first.platform.id}",
        "second": f"{comparison.second.space} on {comparison.second.platform.id}",
        "candidates in both": str(sum(map(len, comparison.costs.values()))),
        "median ratio": f"{comparison.ratio:.4g}",
        "spread": f"90 % of the ratios within {format_percent(comparison.spread)} of the median",
        **({} if math.isnan(share) else {"agreement": within}),
        "Spearman": format_rank_correlation(comparison.spearman, 4),
    }


def _rest(comparison: tables.TableComparison) -> Iterator[str]:
    if comparison.differences:
        yield f"The tables also differ in: {'; '.join(comparison.differences)}."
    for which, places in (("first", comparison.only_first), ("second", comparison.only_second)):
        if places:
            names = named(f"{layer}:{choice}" for layer, choice in places)
            yield f"{number_of(len(places), 'entry', 'entries')} only in the {which} table: {names}"


def _content(comparison: tables.TableComparison) -> dict[str, Any]:
    def number(value: float) -> float | None:
        return None if math.isnan(value) else value

    return {
        "first": {"space": str(comparison.first.space), "platform": comparison.first.platform.id},
        "second": {"space": str(comparison.second.space), "platform": comparison.second.platform.id},
        "metric": comparison.first.metric,
        "differences": list(comparison.differences),
        "ratio": number(comparison.ratio),
        "spread": comparison.spread,
        "agreement": number(comparison.agreement),
        "spearman": number(comparison.spearman),
        "layers": comparison.layer_ratios,
        "ratios": comparison.ratios,
        "only_first": [f"{layer}:{choice}" for layer, choice in comparison.only_first],
        "only_second": [f"{layer}:{choice}" for layer, choice in comparison.only_second],
    }
