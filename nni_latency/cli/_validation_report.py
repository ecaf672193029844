"""What ``validate`` and ``show`` say of a validation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import nni_latency.validation as validation
from nni_latency.cli._report import Column, Grid, Report
from nni_latency.units import format_percent

#: Networks of which the error is shown.
_WORST = 6


def validation_report(found: validation.Validation, after: Sequence[str] = ()) -> Report:
    """Report on a validation: its worst networks, its scores, and how well the measurement repeats.

    Parameters
    ----------
    found : Validation
        The validation.
    after : sequence of str
        What is said below.
    """
    columns = [
        Column("network", "network"),
        Column("predicted", "predicted", metric=found.metric),
        Column("measured", "measured", metric=found.metric),
        Column("error", "error", partial(format_percent, signed=True)),
        Column("split-half difference", "halves", format_percent),
    ]
    rows = [
        {
            "network": item.name,
            "predicted": item.predicted.value,
            "measured": item.measured,
            "error": item.error,
            "halves": abs(item.halves[0] / item.halves[1] - 1),
        }
        for item in found.worst
    ]
    lines = [f"{format_percent(found.coverage)} of the networks lie in the 95 % interval of their prediction."]
    if abs(found.speed - 1) > 0.02:
        slower = "slower" if found.speed < 1 else "faster"
        lines.append(
            f"The machine is {format_percent(abs(1 / found.speed - 1))} {slower} than the predictions say of the "
            "space's reference networks; measured times are taken to the speed that the predictions stand for."
        )
    worst = Grid(rows[:_WORST], columns, "Worst cases")
    return Report(worst, validation.validation_content(found), rows, after=[_scores(found), *lines, *after])


def _scores(found: validation.Validation) -> Grid:
    rows = [
        {"name": name, **vars(scores)}
        for name, scores in (
            ("predicted against measured", found.scores),
            ("repeatability", found.repeatability),
        )
    ]
    percent = {"MAPE": "mape", "RMSPE": "rmspe", "bias": "bias", "within 5 %": "within5", "within 10 %": "within10"}
    columns = [Column(header, key, partial(format_percent, signed=key == "bias")) for header, key in percent.items()]
    return Grid(rows, [Column("", "name"), *columns, Column("Spearman", "spearman", "{:.4f}".format)])
