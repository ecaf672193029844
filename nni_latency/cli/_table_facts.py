"""What ``nni-latency show`` says of tables of every kind: their header."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nni_latency.measurement as measurement
import nni_latency.tables as tables
import nni_latency.validation as validation
from nni_latency.cli._console import platform_facts, results
from nni_latency.cli._noise import is_verbose
from nni_latency.cli._report import Pairs
from nni_latency.units import METRIC_UNITS, format_metric, format_percent, format_seconds, number_of

#: From this width on the meaning of every fact is shown.
_WIDE = 140


def header_facts(table: tables.LookupTable | tables.OperatorTable) -> dict[str, Any]:
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
        "nni_latency": table.package_version,
        "remarks": list(table.remarks),
    }


def header_summary(table: tables.LookupTable | tables.OperatorTable) -> dict[str, str]:
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
    if table.residency is not None:
        saving, scale = table.residency.saving, table.residency.scale
        summary["residency"] = (
            f"small networks save up to {format_percent(saving)}, which fades over {format_metric(scale, table.metric)}"
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
    return {
        "validation": f"{number_of(scores.n, 'network')}: MAPE {format_percent(scores.mape)} (the measurement repeats "
        f"within {format_percent(halves.mape)}), within 10 %: {format_percent(scores.within10)}"
    }
