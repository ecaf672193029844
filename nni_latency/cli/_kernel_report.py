"""What ``learn kernels`` and ``show`` say of kernel predictors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import nni_latency.kernels as kernels
from nni_latency.cli._report import Column, Grid, Pairs, Report
from nni_latency.units import format_percent, format_seconds, number_of

#: Kernels that take as long are scored by themselves, too: of shorter ones, whole microseconds are a large share [s].
_LONG = 30e-6


def kernel_report(found: kernels.KernelPredictors, after: Sequence[str | Pairs] = ()) -> Report:
    """Report on kernel predictors: how well each group is predicted that a model had not seen.

    Parameters
    ----------
    found : KernelPredictors
        The predictors.
    after : sequence
        What is said below.
    """
    rows = [
        {
            "group": group,
            "kinds": list(predictor.kinds_),
            "model": predictor.chosen_,
            "interval_factor": predictor.interval_factor_,
            **_plain(predictor.cross_validation),
            "forest_within10": predictor.scores_["forest"].within10 if "forest" in predictor.scores_ else None,
        }
        for group, predictor in found.predictors.items()
    ]
    columns = [
        Column("group", "group"),
        Column("kernels", "n", metric="count"),
        Column("model", "model"),
        Column("RMSE", "rmse", metric="latency"),
        Column("RMSPE", "rmspe", format_percent),
        Column("within 5 %", "within5", format_percent),
        Column("within 10 %", "within10", format_percent),
        Column("a forest's", "forest_within10", format_percent, absent="-"),
    ]
    overall = found.scores()
    tested, long = found.test_scores(), found.test_scores(_LONG)
    content = {
        "platform": found.platform.id,
        "overall": overall and _plain(overall),
        "tested": tested and _plain(tested),
        "tested_long": long and _plain(long),
        "groups": rows,
    }
    lines = [*_conclusions(found, overall), *_test_lines(tested, long), *after]
    nothing = "There are no predictors: no kernel could be measured."
    grid = Grid(rows, columns, f"Kernels of {found.platform.id}", nothing=nothing)
    return Report(grid, content, after=lines)


def _conclusions(found: kernels.KernelPredictors, overall: kernels.KernelScores | None) -> list[str]:
    if overall is None:
        return []
    measured = f"; measured in {format_seconds(found.duration)}" if found.duration else ""
    return [
        f"All together: {number_of(overall.n, 'kernel')}, RMSPE {format_percent(overall.rmspe)}, "
        f"{format_percent(overall.within5)} within 5 %, {format_percent(overall.within10)} within 10 %{measured}.",
        "Scores are of kernels that a model had not seen.",
    ]


def _test_lines(scores: kernels.KernelScores | None, long: kernels.KernelScores | None) -> list[str]:
    if scores is None:
        return []
    lines = [
        f"Of {number_of(scores.n, 'kernel')} not learned from, {format_percent(scores.within5)} are within 5 % and "
        f"{format_percent(scores.within10)} within 10 %, RMSPE {format_percent(scores.rmspe)}."
    ]
    if long is not None and long.n < scores.n:
        lines.append(
            f"Of the {long.n} of them that take {format_seconds(_LONG)} or more, {format_percent(long.within5)} are "
            f"within 5 % and {format_percent(long.within10)} within 10 %."
        )
    return lines


def _plain(scores: kernels.KernelScores) -> dict[str, Any]:
    # NaN, which JSON lacks, is the only number that differs from itself.
    return {name: value if value == value else None for name, value in asdict(scores).items()}
