"""What ``learn graph`` and ``show`` say of a graph predictor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import nni_latency.graphs as graphs
from nni_latency.cli._report import Column, Grid, Report
from nni_latency.errors import listed
from nni_latency.units import format_percent, number_of


def graph_report(found: graphs.GraphPredictor, after: Sequence[str] = ()) -> Report:
    """Report on a graph predictor: a line for each platform, with its errors on families that were held out.

    Parameters
    ----------
    found : GraphPredictor
        The predictor.
    after : sequence of str
        What is said below.
    """
    rows = [_row(found, number) for number in range(len(found.platforms_))]
    lines = [
        "Held out: families that a graph network has not seen; of a platform that was added later, networks.",
        f"Learned from {number_of(len(found.families_), 'family', 'families')}: {listed(found.families_, most=None)}.",
        *after,
    ]
    return Report(Grid(rows, _COLUMNS), {"platforms": rows, "families": list(found.families_)}, after=lines)


def _row(found: graphs.GraphPredictor, number: int) -> dict[str, Any]:
    errors = found.held_out_[:, number]
    known = np.exp(errors[~np.isnan(errors)]) - 1
    return {
        "platform": found.platforms_[number].id,
        "networks": int(found.counts_[number]),
        "mape": float(np.abs(known).mean()) if len(known) else None,
        "within10": float((np.abs(known) <= 0.1).mean()) if len(known) else None,
        "interval_factor": float(np.exp(found.spreads_[number])),
    }


_COLUMNS = [
    Column("platform", "platform"),
    Column("networks", "networks", metric="count"),
    Column("error, held out", "mape", format_percent),
    Column("within 10 %", "within10", format_percent),
    Column("interval: factor", "interval_factor", "{:.2f}".format),
]
