"""``nni-latency show`` for the record of a search."""

from __future__ import annotations

from functools import partial

from nni_latency.cli._report import Column, Grid, Pairs, Report
from nni_latency.cli._search_document import SearchDocument
from nni_latency.units import format_metric, format_percent


def search_report(found: SearchDocument) -> Report:
    """Report on a search: what was asked, what was found, and what was measured of it.

    Parameters
    ----------
    found : SearchDocument
        The record.
    """
    cost = partial(format_metric, metric=found.metric)
    facts = {
        "space": f"{found.space} on {found.dataset}, by {found.strategy}",
        "estimator": found.estimator,
        "platform": found.platform,
        "target": f"{cost(found.target)} of {found.metric}",
        "predicted": cost(found.predicted),
        "measured": _measured(found),
        "accuracy": f"{format_percent(found.accuracy)} on held-out images",
    }
    rows = [{"label": label, "choice": choice} for label, choice in found.choices.items()]
    columns = [Column("label", "label"), Column("choice", "choice")]
    return Report(Grid(rows, columns, "The network found"), found.model_dump(), rows, before=[Pairs("Search", facts)])


def _measured(found: SearchDocument) -> str:
    if found.measured is None or found.measured_at_speed is None:
        return f"no: {found.not_measured}"
    verdict = "meets the target" if found.meets_target else "misses the target"
    cost = partial(format_metric, metric=found.metric)
    return f"{cost(found.measured)}; at the estimator's speed {cost(found.measured_at_speed)}, which {verdict}"
