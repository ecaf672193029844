"""``nni-latency show`` for lookup tables."""

from __future__ import annotations

import nni_latency.estimators as estimators
import nni_latency.tables as tables
from nni_latency.cli._console import doubts
from nni_latency.cli._report import Column, Grid, Pairs, Report
from nni_latency.cli._table_facts import header_facts, header_summary, table_pairs
from nni_latency.units import METRICS, cost_row, format_metric


def table_report(table: tables.LookupTable, known: dict[str, str]) -> Report:
    """Report on a lookup table: platform, protocol, layers by candidates, doubts.

    Parameters
    ----------
    table : LookupTable
        The table.
    known : dict
        Further facts about it.
    """
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
