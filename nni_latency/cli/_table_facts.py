"""What ``nni-latency show`` says of tables of every kind: their header."""

from __future__ import annotations

from typing import Any

from nni_latency.measurement import quantile
from nni_latency.tables import LookupTable, OperatorTable
from nni_latency.units import METRIC_UNITS, format_metric, format_percent, format_seconds


def header_facts(table: LookupTable | OperatorTable) -> dict[str, Any]:
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


def header_summary(table: LookupTable | OperatorTable) -> dict[str, str]:
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
        middle = quantile(table.drift, 0.5)
        low, high = (quantile(table.drift, level) / middle - 1 for level in (0.05, 0.95))
        summary["drift"] = f"{low:+.1%} to {high:+.1%} in nine of ten rounds, taken out"
    return summary
