"""``nni-latency show`` for tables of operators."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import nni_latency.estimators as estimators
import nni_latency.measurement as measurement
import nni_latency.operators as operators
import nni_latency.tables as tables
from nni_latency.cli._build_operators import operator_doubts
from nni_latency.cli._report import Column, Grid, Report
from nni_latency.cli._table_facts import header_facts, header_summary, table_pairs
from nni_latency.units import cost_row, format_metric, format_percent, number_of

#: Operators that are listed by name.
_LISTED = 12


def operator_report(table: tables.OperatorTable, known: dict[str, str]) -> Report:
    """Report on a table of operators: platform, protocol, families of operators, the costliest ones, doubts.

    Parameters
    ----------
    table : OperatorTable
        The table.
    known : dict
        Further facts about it.
    """
    rows = table.rows()
    return Report(
        _costliest(table, rows),
        {**_facts(table), "entries": rows},
        rows,
        after=[_families(table), *table_pairs(table, {**_summary(table), **known}), *operator_doubts(table)],
    )


def _facts(table: tables.OperatorTable) -> dict[str, Any]:
    return {
        **header_facts(table),
        "operators": len(table.entries),
        "networks": len(table.networks),
        "spreads": {
            name: {"operators": count, "left_out": spread}
            for name, (count, spread) in estimators.OperatorTableEstimator(table).predictor.spreads.items()
        },
        "failures": dict(table.failures),
    }


def _summary(table: tables.OperatorTable) -> dict[str, str]:
    summary = header_summary(table)
    summary["operators"] = f"{len(table.entries)} in {number_of(len(table.networks), 'network')}"
    summary["coverage"] += " of the operators of other networks; the rest is predicted"
    if table.networks:
        times = [network.value for network in table.networks]
        summary["networks"] = f"{format_metric(min(times), 'latency')} to {format_metric(max(times), 'latency')}"
        estimator = estimators.OperatorTableEstimator(table)
        errors = [estimator.of_sum(network.entries) / network.value - 1 for network in table.networks]
        summary["they add up"] = (
            f"within {format_percent(measurement.quantile([abs(error) for error in errors], 0.5))} in half of them"
        )
    return summary


def _families(table: tables.OperatorTable) -> Grid:
    """Return a line a family: how many, how long, and how far each is off when predicted from the others."""
    members: dict[str, list[tables.OperatorEntry]] = defaultdict(list)
    for entry in table.entries:
        members[operators.family_of(entry.op)].append(entry)
    spreads = estimators.OperatorTableEstimator(table).predictor.spreads
    rows = []
    for name, entries in sorted(members.items(), key=lambda item: -sum(entry.value for entry in item[1])):
        values = [entry.value for entry in entries]
        off = spreads[name][1] if name in spreads else None
        rows.append({"family": name, "n": len(entries), "low": min(values), "high": max(values), "off": off})
    columns = [
        Column("family", "family"),
        Column("operators", "n", str),
        Column("fastest", "low", metric=table.metric),
        Column("slowest", "high", metric=table.metric),
        Column("predicted from the others", "off", lambda off: f"off by {format_percent(off)}", "-"),
    ]
    return Grid(rows, columns, "Families of operators")


def _costliest(table: tables.OperatorTable, rows: list[dict[str, Any]]) -> Grid:
    value, low, high = cost_row(None, table.metric)
    shown = [{**row, "name": row["names"] or row["operator"]} for row in sorted(rows, key=lambda row: -row[value])]
    columns = [
        Column("operator", "name"),
        Column(table.metric, value, metric=table.metric),
        Column("from", low, metric=table.metric),
        Column("to", high, metric=table.metric),
        Column("networks", "n_networks", str),
    ]
    return Grid(shown, columns, "The costliest operators", most=_LISTED)
