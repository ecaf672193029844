"""What ``nni-latency profile`` says of the blocks of networks: their work, memory traffic and predicted cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import nni_latency.analysis as analysis
from nni_latency.cli._network import NamedNetwork
from nni_latency.cli._report import Column, Grid, Report
from nni_latency.units import format_count, format_percent, format_seconds

_COUNTS = {"ACTS": "acts", "INP": "inp", "FLOPs": "flops", "parameters": "params", "bytes moved": "memory"}


def analysis_report(named: NamedNetwork, analysed: analysis.ModelAnalysis, top: int) -> Report:
    """Report on one network, block by block, the most expensive first."""
    rows = [_row(block) for block in analysed.blocks]
    timed = any(row["latency_s"] is not None for row in rows)
    columns = [
        Column("block", "name"),
        Column("kind", "kind"),
        *(Column(header, key, metric="count") for header, key in _COUNTS.items()),
        *([Column("latency", "latency_s", metric="latency")] if timed else []),
        Column("share", "share", format_percent),
    ]
    features = analysed.features
    lines = [
        f"{format_count(features.acts)} ACTS, {format_count(features.inp)} INP, {format_count(features.flops)} FLOPs "
        f"({format_count(features.macs)} multiply-adds), {format_count(analysed.params)} parameters; shares are "
        f"of the {'latency' if timed else 'FLOPs'}",
    ]
    if analysed.latency is not None and analysed.estimator is not None:
        low, value, high = (format_seconds(getattr(analysed.latency, name)) for name in ("low", "value", "high"))
        lines.append(f"latency {value} ({low} to {high}) on {analysed.estimator.platform.id}")
    grid = Grid(rows, columns, "Blocks, most expensive first", most=top, by="share")
    content = {**_content(named, analysed), "blocks": rows, "suggestions": analysed.suggestions}
    return Report(grid, content, after=[*lines, *(f"- {line}" for line in analysed.suggestions)])


def comparison_of_work(named: Sequence[NamedNetwork], analysed: Sequence[analysis.ModelAnalysis]) -> Report:
    """Report on several networks, a row each."""
    rows = [_content(name, item) for name, item in zip(named, analysed, strict=True)]
    timed = any(row["latency_s"] is not None for row in rows)
    shown = [{**row, "short": item.short} for row, item in zip(rows, named, strict=True)]
    columns = [
        Column("network", "short"),
        *(Column(header, key, metric="count") for header, key in _COUNTS.items()),
        *([Column("latency", "latency_s", metric="latency")] if timed else []),
    ]
    return Report(Grid(shown, columns, "Networks"), {"networks": rows}, rows=rows)


def _content(named: NamedNetwork, analysed: analysis.ModelAnalysis) -> dict[str, Any]:
    latency = analysed.latency
    return {
        "network": named.text,
        "batch_size": analysed.batch_size,
        "acts": analysed.features.acts,
        "inp": analysed.features.inp,
        "flops": analysed.features.flops,
        "macs": analysed.features.macs,
        "params": analysed.params,
        "memory": analysed.features.memory,
        "latency_s": latency and latency.value,
        "low_s": latency and latency.low,
        "high_s": latency and latency.high,
        "platform": analysed.estimator and analysed.estimator.platform.id,
        "uncounted": list(analysed.uncounted),
        "remarks": list(analysed.remarks),
    }


def _row(block: analysis.BlockAnalysis) -> dict[str, Any]:
    return {
        "name": block.name,
        "kind": block.kind,
        **{name: getattr(block.features, name) for name in ("acts", "inp", "flops", "macs", "memory")},
        "params": block.params,
        "latency_s": block.latency and block.latency.value,
        "share": block.share,
        "uncounted": list(block.uncounted),
    }
