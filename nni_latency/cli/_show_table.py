"""``nni-latency show`` for lookup tables."""

from __future__ import annotations

import nni_latency.estimators as estimators
import nni_latency.tables as tables
from nni_latency.cli._console import doubts
from nni_latency.cli._report import Column, Grid, Pairs, Report
from nni_latency.cli._table_facts import header_facts, header_summary, table_pairs
from nni_latency.units import METRIC_UNITS, cost_row, format_column, format_metric


def table_report(table: tables.LookupTable, known: dict[str, str]) -> Report:
    """Report on a lookup table: layers by candidates, what it holds for, doubts.

    Parameters
    ----------
    table : LookupTable
        The table.
    known : dict
        Further facts about it.
    """
    value, rows = next(iter(cost_row(None, table.metric))), table.rows()
    columns = [
        Column("layer", "layer"),
        Column("candidate", "choice"),
        Column(table.metric, value, absent="missing", metric=table.metric),
    ]
    searched = [row for row in rows if row["searched"]]
    return Report(
        Grid(searched, columns, table.metric, across=True),
        {**_facts(table), "entries": rows},
        rows,
        after=[
            *_fixed(table),
            *table_pairs(table, {**_summary(table), **known}),
            *doubts(table),
        ],
    )


def _summary(table: tables.LookupTable) -> dict[str, str]:
    summary = header_summary(table)
    if not table.missing:
        low, high = estimators.TableEstimator(table).cost.range
        summary["networks"] = f"{format_metric(low, table.metric)} to {format_metric(high, table.metric)}"
    return summary


def _fixed(table: tables.LookupTable) -> list[Pairs]:
    """Return the costs of the layers that are no choice, in one unit."""
    layers = [layer for layer in table.layers if not layer.searched]
    costs = [entry.value for layer in layers for entry in layer.entries.values()]
    texts, unit = format_column(costs, METRIC_UNITS[table.metric])
    shown = iter(texts)
    values = {
        layer.name: f"{', '.join(f'{choice} {next(shown)}' for choice in layer.entries)} (default {layer.default})"
        for layer in layers
    }
    return [Pairs(f"Fixed layers [{unit}]", values)] if layers else []


def _facts(table: tables.LookupTable) -> dict[str, object]:
    return {
        **header_facts(table),
        "missing": [f"{layer}:{choice}" for layer, choice in table.missing],
        "failures": {f"{layer.name}:{choice}": why for layer in table.layers for choice, why in layer.failures.items()},
        "unsettled": [f"{layer}:{choice}" for layer, choice in table.unsettled],
    }
