# SPDX-License-Identifier: Apache-2.0
"""Report of ``show`` without a file: the tables that ship, each with its error and its source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nni_latency.graphs as graphs
import nni_latency.tables as tables
import nni_latency.validation as validation
from nni_latency.cli._console import results
from nni_latency.cli._report import Column, Grid, Report
from nni_latency.documents import plain
from nni_latency.units import format_percent

#: Source of a table whose platform does not name one.
_OWN = "this project: whole networks"

_SCORES = ("mape", "within10", "spearman", "n")

#: From this width on there is room for all columns beside names that are not broken.
_WIDE = 140


def shipped_report() -> Report:
    """Report on the tables that ship: a line a table, with its scores on networks that it was not made from."""
    rows = [_row(name, path) for name, path in tables.shipped_tables().items()]
    wide = results().width >= _WIDE
    columns = [
        Column("table", "table"),
        *([Column("metric", "metric")] if wide else []),
        Column("MAPE", "mape", format_percent, "?"),
        Column("within 10 %", "within10", format_percent, "?"),
        Column("Spearman", "spearman", "{:.3f}".format, "?"),
        *([Column("networks", "networks", str, "?"), Column("source", "source")] if wide else []),
    ]
    lines = [
        "A table is named after its space, image size, batch size and platform: device, runtime, precision, threads. "
        "'unknown' is a runtime that was not published.",
        "Errors are those of networks that the table was not made from; ? is a table without any. For sums of blocks, "
        "they are errors of the published sums, and not of whole networks on the device.",
        "'nni-latency show TABLE' prints the remarks of a table, and its source and licence with --verbose.",
    ]
    if graphs.shipped_predictor() is not None:
        lines.append("A predictor of whole networks ships, too: nni-latency show pretrained.")
    return Report(
        Grid(rows, columns, "Tables that ship", nothing="No tables ship with this installation."), after=lines
    )


def _row(name: str, path: Path) -> dict[str, Any]:
    table = tables.LookupTable.load(path)
    beside = tables.validation_path(path)
    scores = plain(validation.read_summary(beside).scores) if beside.is_file() else dict.fromkeys(_SCORES)
    facts = table.platform.facts
    return {
        "table": name,
        "space": table.space.name,
        "arguments": dict(table.space.arguments),
        "batch_size": table.batch_size,
        "platform": table.platform.id,
        "metric": table.metric,
        "mape": scores["mape"],
        "within10": scores["within10"],
        "spearman": scores["spearman"],
        "networks": scores["n"],
        "source": facts.get("source", _OWN),
        "repository": facts.get("repository"),
        "licence": facts.get("licence"),
        "remarks": list(table.remarks),
    }
