"""``nni-latency show`` for tables of operators."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from nni_latency.cli._build_operators import print_operator_doubts
from nni_latency.cli._console import facts_table, pairs_table
from nni_latency.cli._table_facts import header_facts, header_summary
from nni_latency.estimators import OperatorTableEstimator
from nni_latency.measurement import quantile
from nni_latency.operators import family_of
from nni_latency.tables import OperatorEntry, OperatorTable
from nni_latency.units import format_metric, format_percent

#: Operators that are listed by name.
_LISTED = 12


def show_operator_table(table: OperatorTable, more: dict[str, str], console: Console) -> None:
    """Print a table of operators: platform, protocol, families of operators, the costliest ones, doubts.

    Parameters
    ----------
    table : OperatorTable
        The table.
    more : dict
        Further facts about it.
    console : Console
        Where to.
    """
    console.print(facts_table(table.platform, wide=console.width >= 110))
    if table.protocol is not None:
        console.print(pairs_table("Protocol", table.protocol.as_dict()))
    console.print(pairs_table("Table", {**_summary(table), **more}))
    console.print(_families(table))
    console.print(_costliest(table))
    print_operator_doubts(table)


def operator_facts(table: OperatorTable) -> dict[str, Any]:
    """Return the main facts as plain values."""
    return {
        **header_facts(table),
        "operators": len(table.entries),
        "networks": len(table.networks),
        "spreads": {
            name: {"operators": count, "left_out": spread}
            for name, (count, spread) in OperatorTableEstimator(table).predictor.spreads.items()
        },
        "failures": dict(table.failures),
    }


def _summary(table: OperatorTable) -> dict[str, str]:
    summary = header_summary(table)
    summary["operators"] = f"{len(table.entries)} in {len(table.networks)} networks"
    summary["coverage"] += " of the operators of other networks; the rest is predicted"
    if table.networks:
        times = [network.value for network in table.networks]
        summary["networks"] = f"{format_metric(min(times), 'latency')} to {format_metric(max(times), 'latency')}"
        estimator = OperatorTableEstimator(table)
        errors = [estimator.of_sum(network.entries) / network.value - 1 for network in table.networks]
        summary["they add up"] = f"within {quantile([abs(error) for error in errors], 0.5):.1%} in half of them"
    return summary


def _families(table: OperatorTable) -> Table:
    """Return a line a family: how many, how long, and how far each is off when predicted from the others."""
    members: dict[str, list[OperatorEntry]] = defaultdict(list)
    for entry in table.entries:
        members[family_of(entry.op)].append(entry)
    spreads = OperatorTableEstimator(table).predictor.spreads
    grid = Table(title="Families of operators", title_justify="left", padding=(0, 1))
    for name in ("family", "operators", "fastest", "slowest", "predicted from the others"):
        grid.add_column(name, justify="left" if name == "family" else "right")
    for name, entries in sorted(members.items(), key=lambda item: -sum(entry.value for entry in item[1])):
        values = [entry.value for entry in entries]
        off = f"off by {format_percent(spreads[name][1])}" if name in spreads else "-"
        grid.add_row(
            escape(name),
            str(len(entries)),
            format_metric(min(values), table.metric),
            format_metric(max(values), table.metric),
            off,
        )
    return grid


def _costliest(table: OperatorTable) -> Table:
    grid = Table(title="The costliest operators", title_justify="left", padding=(0, 1))
    for name in ("operator", table.metric, "interval", "networks"):
        grid.add_column(name, justify="left" if name == "operator" else "right", overflow="fold")
    for entry in sorted(table.entries, key=lambda entry: -entry.value)[:_LISTED]:
        low, high = (format_metric(number, table.metric) for number in (entry.low, entry.high))
        grid.add_row(
            escape(", ".join(entry.names) or entry.op.op_key),
            format_metric(entry.value, table.metric),
            f"{low} to {high}",
            str(entry.n_networks),
        )
    return grid
