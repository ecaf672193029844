# SPDX-License-Identifier: Apache-2.0
"""Reports of kernel predictors, and of fusion rules and the kernels that they make of a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import nni_latency.kernels as kernels
import nni_latency.operators as operators
from nni_latency.cli._report import Column, Grid, Pairs, Report
from nni_latency.errors import listed
from nni_latency.units import format_percent, format_seconds, number_of

#: Kernels that take as long are scored by themselves, too: of shorter ones, whole microseconds are a large share [s].
_LONG = 30e-6

#: Kernels of a network that are listed.
_LISTED = 60


def kernel_report(found: kernels.KernelPredictors, after: Sequence[str | Pairs] = ()) -> Report:
    """Report on kernel predictors: how well each group is predicted that a model had not seen."""
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


def fusion_report(rules: operators.FusionRules, *, after: tuple[str, ...] = ()) -> Report:
    """Report on fusion rules: a line for each, with its evidence."""
    rows = [_rule_row(rule) for rule in rules.rules]
    columns = [
        Column("operators", "operators"),
        Column("verdict", "verdict"),
        Column("before", "before", metric="latency"),
        Column("last", "last", metric="latency"),
        Column("together", "together", metric="latency"),
        Column("saved", "share", format_percent),
        Column("+-", "margin", format_percent),
        *([Column("source", "source")] if any(rule.source for rule in rules.rules) else []),
    ]
    facts = {
        "platform": rules.platform.id,
        "rules": f"{len(rules.fused)} of {len(rules.rules)} run as one kernel",
        **({"constant": f"{format_seconds(rules.constant)} a run, taken off"} if rules.constant else {}),
        **({"copied": layouts} if (layouts := _layouts(rules)) else {}),
        **({"campaign": rules.campaign} if rules.campaign else {}),
    }
    content = {
        "platform": {"id": rules.platform.id, "facts": dict(rules.platform.facts)},
        "constant": rules.constant,
        "campaign": rules.campaign,
        "failures": dict(rules.failures),
        "plain": list(rules.plain),
        "blocks": dict(rules.blocks),
        "rules": [_rule_content(rule) for rule in rules.rules],
    }
    grid = Grid(rows, columns, nothing="There are no rules: every operator is a kernel.")
    return Report(grid, content, before=[Pairs("Fusion", facts)], after=[*after, *_doubts(rules)])


def kernels_report(network: operators.Trace, rules: operators.FusionRules) -> Report:
    """Report on the kernels that fusion rules make of a network."""
    kernels = operators.fuse(network, rules)
    rows = [
        {
            "kernel": place,
            "operators": " + ".join(operators.family_of(item.op) for item in kernel),
            "first": kernel[0].name,
            "names": [item.name for item in kernel],
        }
        for place, kernel in enumerate(kernels)
    ]
    columns = [
        Column("kernel", "kernel", str),
        Column("operators", "operators"),
        Column("first", "first"),
    ]
    made = f"{number_of(len(kernels), 'kernel')} on {rules.platform.id}"
    summary = f"{made} from {number_of(len(network.operators), 'operator')}"
    return Report(Grid(rows, columns, most=_LISTED), after=[summary])


def _layouts(rules: operators.FusionRules) -> str:
    """Say which operators have their input copied into another memory layout."""
    found = [listed(rules.plain)] if rules.plain else []
    for block in sorted(set(rules.blocks.values())):
        kinds = [kind for kind, channels in rules.blocks.items() if channels == block]
        found.append(f"{listed(kinds)} unless channels are a multiple of {block}")
    return "; ".join(found)


def _rule_content(rule: operators.FusionRule) -> dict[str, Any]:
    times = rule.times
    return {**asdict(rule), "times": None if times is None else {**asdict(times), "share": times.share}}


def _rule_row(rule: operators.FusionRule) -> dict[str, Any]:
    times = rule.times
    verdict = "one kernel" if rule.fused else "apart"
    if rule.folds:
        verdict = "in the weights"
    if times is not None and not times.clear:
        verdict += ", not clear"
    return {
        "operators": rule.name,
        "verdict": verdict,
        "before": times and times.before,
        "last": times and times.last,
        "together": times and times.together,
        "share": times and times.share,
        "margin": times and times.margin,
        "source": rule.source,
    }


def _doubts(rules: operators.FusionRules) -> list[str]:
    """Say what could not be tried, and what is not clear."""
    found = [f"Could not be tried: {name}: {reason}" for name, reason in rules.failures.items()]
    if rules.unclear:
        names = listed(rule.name for rule in rules.unclear)
        found.append(f"Not clear: {names}. Raise --budget, or measure on a quieter machine.")
    return found
