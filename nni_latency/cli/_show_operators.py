"""``nni-latency show`` for tables of operators."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from nni_latency.cli._build_operators import print_operator_doubts
from nni_latency.cli._console import facts_table, pairs_table
from nni_latency.estimators import OperatorTableEstimator
from nni_latency.measurement import quantile
from nni_latency.operators import family_of
from nni_latency.tables import OperatorEntry, OperatorTable
from nni_latency.units import format_metric, format_percent, format_seconds

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
        "space": {"name": table.space.name, "arguments": dict(table.space.arguments)},
        "input_shape": table.input_shape,
        "metric": table.metric,
        "unit": "s",
        "platform": table.platform.id,
        "facts": dict(table.platform.facts),
        "protocol": table.protocol and table.protocol.as_dict(),
        "operators": len(table.entries),
        "networks": len(table.networks),
        "coverage": table.coverage,
        "rounds": table.rounds,
        "duration": table.duration,
        "calibration": table.calibration,
        "residency": table.residency and vars(table.residency),
        "spreads": {
            name: {"operators": count, "left_out": spread}
            for name, (count, spread) in OperatorTableEstimator(table).predictor.spreads.items()
        },
        "failures": dict(table.failures),
        "remarks": list(table.remarks),
    }


def _summary(table: OperatorTable) -> dict[str, str]:
    arguments = ", ".join(f"{name}={value}" for name, value in table.space.arguments.items())
    summary = {
        "space": f"{table.space.name} ({arguments})",
        "input": "x".join(map(str, table.input_shape)),
        "metric": f"{table.metric} [s], of operators inside networks",
        "operators": f"{len(table.entries)} in {len(table.networks)} networks",
        "coverage": f"{format_percent(table.coverage)} of the operators of other networks; the rest is predicted",
        "rounds": f"{table.rounds} in {format_seconds(table.duration)}" if table.rounds else "numbers from elsewhere",
        "calibration": f"{table.calibration:.3f} (factor on the sum of entries)",
    }
    if table.residency is not None:
        summary["residency"] = (
            f"small networks save up to {format_percent(table.residency.saving)}, which fades over "
            f"{format_metric(table.residency.scale, table.metric)}"
        )
    if table.drift:
        middle = quantile(table.drift, 0.5)
        low, high = (quantile(table.drift, level) / middle - 1 for level in (0.05, 0.95))
        summary["drift"] = f"{low:+.1%} to {high:+.1%} in nine of ten rounds, taken out"
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
            format_metric(min(values), "latency"),
            format_metric(max(values), "latency"),
            off,
        )
    return grid


def _costliest(table: OperatorTable) -> Table:
    grid = Table(title="The costliest operators", title_justify="left", padding=(0, 1))
    for name in ("operator", "latency", "interval", "networks"):
        grid.add_column(name, justify="left" if name == "operator" else "right", overflow="fold")
    for entry in sorted(table.entries, key=lambda entry: -entry.value)[:_LISTED]:
        low, high = (format_metric(number, "latency") for number in (entry.low, entry.high))
        grid.add_row(
            escape(entry.op.op_key), format_metric(entry.value, "latency"), f"{low} to {high}", str(entry.n_networks)
        )
    return grid
