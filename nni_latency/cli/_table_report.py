# SPDX-License-Identifier: Apache-2.0
"""Reports of tables: their entries, their header, and what is doubtful about them."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import nni_latency.estimators as estimators
import nni_latency.measurement as measurement
import nni_latency.operators as operators
import nni_latency.tables as tables
import nni_latency.validation as validation
from nni_latency.cli._console import doubts, platform_facts, results
from nni_latency.cli._messages import is_verbose
from nni_latency.cli._report import Column, Grid, Pairs, Report
from nni_latency.units import (
    METRIC_UNITS,
    cost_row,
    format_column,
    format_metric,
    format_percent,
    format_seconds,
    number_of,
)

#: Operators that are listed by name.
_LISTED = 12

#: From this width on the meaning of every fact is shown.
_WIDE = 140


def table_report(table: tables.LookupTable, known: dict[str, str]) -> Report:
    """Report on a table: layers by candidates, or operators by cost and by family; what it holds for; doubts."""
    rows = table.rows()
    tail: list[Grid | Pairs]
    if table.layers:
        grid, tail = _by_layer(table, rows), [*_fixed_layers(table)]
        facts, summary = _layer_facts(table), _layer_summary(table)
    else:
        grid, tail = _costliest(table, rows), [_families(table)]
        facts, summary = _operator_facts(table), _operator_summary(table)
    pairs = table_pairs(table, {**summary, **known})
    return Report(grid, {**facts, "entries": rows}, rows, after=[*tail, *pairs, *doubts(table)])


def _by_layer(table: tables.LookupTable, rows: list[dict[str, Any]]) -> Grid:
    value = next(iter(cost_row(None, table.metric)))
    columns = [
        Column("layer", "layer"),
        Column("candidate", "choice"),
        Column(table.metric, value, absent="missing", metric=table.metric),
    ]
    return Grid([row for row in rows if row["searched"]], columns, table.metric, across=True)


def _layer_summary(table: tables.LookupTable) -> dict[str, str]:
    summary = header_summary(table)
    if not table.missing:
        low, high = estimators.TableEstimator(table).cost.range
        summary["networks"] = f"{format_metric(low, table.metric)} to {format_metric(high, table.metric)}"
    return summary


def _fixed_layers(table: tables.LookupTable) -> list[Pairs]:
    """Return the costs of the layers that are no choice, in one unit."""
    layers = [layer for layer in table.layers if not layer.searched]
    costs = [entry.value for layer in layers for entry in layer.entries.values()]
    texts, unit = format_column(costs, METRIC_UNITS[table.metric])
    shown = iter(texts)
    values = {
        layer.name: f"{', '.join(f'{choice} {next(shown)}' for choice in layer.entries) or 'not measured'} (default "
        f"{layer.default})"
        for layer in layers
    }
    return [Pairs(f"Fixed layers [{unit}]" if costs else "Fixed layers", values)] if layers else []


def _layer_facts(table: tables.LookupTable) -> dict[str, object]:
    return {
        **header_facts(table),
        "missing": [f"{layer}:{choice}" for layer, choice in table.missing],
        "failures": {f"{layer.name}:{choice}": why for layer in table.layers for choice, why in layer.failures.items()},
        "unsettled": [f"{layer}:{choice}" for layer, choice in table.unsettled],
    }


def _operator_facts(table: tables.LookupTable) -> dict[str, Any]:
    return {
        **header_facts(table),
        "operators": len(table.operators),
        "networks": len(table.networks),
        "beside": {key: dict(entry.beside) for key, entry in table.by_op.items() if entry.beside},
        "spreads": {
            name: {"operators": count, "left_out": spread}
            for name, (count, spread) in estimators.TableEstimator(table).predictor.spreads.items()
        },
        "failures": dict(table.failures),
    }


def _operator_summary(table: tables.LookupTable) -> dict[str, str]:
    summary = header_summary(table)
    summary["operators"] = f"{len(table.operators)} in {number_of(len(table.networks), 'network')}"
    summary["coverage"] += " of the operators of other networks; the rest is predicted"
    placed = sum(bool(entry.beside) for entry in table.operators)
    if placed:
        summary["neighbours"] = f"the costs of {number_of(placed, 'operator')} depend on them"
    if table.networks:
        times = [network.value for network in table.networks]
        summary["networks"] = f"{format_metric(min(times), 'latency')} to {format_metric(max(times), 'latency')}"
        estimator = estimators.TableEstimator(table)
        errors = [estimator.of_sum(network.entries) / network.value - 1 for network in table.networks]
        summary["they add up"] = (
            f"within {format_percent(measurement.quantile([abs(error) for error in errors], 0.5))} in half of them"
        )
    return summary


def _families(table: tables.LookupTable) -> Grid:
    """Return a line a family: how many, how long, and how far each is off when predicted from the others."""
    members: dict[str, list[tables.Entry]] = defaultdict(list)
    for entry in table.operators:
        if entry.op:
            members[operators.family_of(entry.op)].append(entry)
    spreads = estimators.TableEstimator(table).predictor.spreads
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


def _costliest(table: tables.LookupTable, rows: list[dict[str, Any]]) -> Grid:
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


def header_facts(table: tables.LookupTable) -> dict[str, Any]:
    """Return the header as plain values."""
    names = ("input_shape", "metric", "coverage", "rounds", "duration", "calibration", "campaign")
    return {
        "space": {"name": table.space.name, "arguments": dict(table.space.arguments)},
        **{name: getattr(table, name) for name in names},
        "unit": METRIC_UNITS[table.metric],
        "platform": table.platform.id,
        "facts": dict(table.platform.facts),
        "protocol": table.protocol and table.protocol.as_dict(),
        "residency": table.residency and vars(table.residency),
        "pairs": [{"layers": pair.layers, "kinds": pair.kinds, "costs": pair.costs} for pair in table.pairs],
        "nni_latency": table.package_version,
        "remarks": list(table.remarks),
    }


def header_summary(table: tables.LookupTable) -> dict[str, str]:
    """Return the header for a person, a line a fact."""
    summary = {
        "space": str(table.space),
        "input": "x".join(map(str, table.input_shape)),
        "metric": f"{table.metric} [{METRIC_UNITS[table.metric]}]",
        "coverage": format_percent(table.coverage),
        "rounds": f"{table.rounds} in {format_seconds(table.duration)}" if table.rounds else "numbers from elsewhere",
        "calibration": f"{table.calibration:.3f} (factor on the sum of entries)",
    }
    if table.campaign is not None:
        summary["campaign"] = table.campaign
    # Of a throughput, the times behind it add up.
    summed = "latency" if table.metric == "throughput" else table.metric
    if table.residency is not None:
        saving, scale = table.residency.saving, table.residency.scale
        summary["residency"] = (
            f"small networks save up to {format_percent(saving)}, which fades over {format_metric(scale, summed)}"
        )
    if table.pairs:
        costs = [cost for pair in table.pairs for row in pair.costs for cost in row]
        summary["pairs"] = (
            f"{number_of(len(table.pairs), 'pair')} of neighbouring layers: what two choices cost beyond the sum of "
            f"their entries, {format_metric(min(costs), summed)} to {format_metric(max(costs), summed)}"
        )
    if table.drift:
        middle = measurement.quantile(table.drift, 0.5)
        low, high = (measurement.quantile(table.drift, level) / middle - 1 for level in (0.05, 0.95))
        summary["drift"] = (
            f"{format_percent(low, signed=True)} to {format_percent(high, signed=True)} in nine of ten rounds, taken "
            "out"
        )
    return summary


def table_pairs(table: tables.TableHeader, summary: dict[str, str], title: str = "Table") -> list[Pairs]:
    """Return what stands below the entries of a table, or of other measurements; all facts only with ``--verbose``."""
    pairs = [Pairs(title, {"platform": table.platform.id, **summary})]
    if is_verbose():
        pairs.append(Pairs("Platform", platform_facts(table.platform, wide=results().width >= _WIDE)))
        if table.protocol is not None:
            pairs.append(Pairs("Protocol", table.protocol.as_dict()))
    return pairs


def validation_summary(path: Path | None) -> dict[str, str]:
    """Return the scores of the validation beside a table's file; nothing where there is none."""
    beside = None if path is None else tables.validation_path(path)
    if beside is None or not beside.is_file():
        return {}
    summary = validation.read_summary(beside)
    scores, halves = summary.scores, summary.repeatability
    repeats = "" if halves is None else f" (the measurement repeats within {format_percent(halves.mape)})"
    ranks = "" if math.isnan(scores.spearman) else f", Spearman {scores.spearman:.3f}"
    return {
        "validation": f"{number_of(scores.n, 'network')}: MAPE {format_percent(scores.mape)}{repeats}, within 10 %: "
        f"{format_percent(scores.within10)}{ranks}"
    }
