# SPDX-License-Identifier: Apache-2.0
"""Reports of what was recorded: benchmark points, data sets, priors of kernels, validations, searches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import nni_latency.datasets as datasets
import nni_latency.kernels as kernels
import nni_latency.measurement as measurement
import nni_latency.micro_benchmarks as micro_benchmarks
import nni_latency.validation as validation
from nni_latency.cli._console import named
from nni_latency.cli._report import Column, Grid, Pairs, Report
from nni_latency.cli._search_document import SearchDocument
from nni_latency.cli._table_report import table_pairs
from nni_latency.errors import listed
from nni_latency.units import (
    format_metric,
    format_percent,
    format_rank_correlation,
    format_seconds,
    format_slowdown,
    number_of,
)

#: Networks of which the error is shown.
_WORST = 6


def points_report(found: micro_benchmarks.BenchmarkPoints) -> Report:
    """Report on benchmark points: a line a block, with its batch sizes and how long it takes."""
    by_block: dict[str, list[micro_benchmarks.BenchmarkPoint]] = defaultdict(list)
    for point in found.points:
        by_block[point.block].append(point)
    shown = [
        {
            "block": block,
            "batches": listed(sorted({point.input_shape[0] for point in points}), most=None),
            "fastest": min(point.value for point in points),
            "slowest": max(point.value for point in points),
        }
        for block, points in by_block.items()
    ]
    columns = [
        Column("block", "block"),
        Column("batch sizes", "batches"),
        Column("fastest", "fastest", metric="latency"),
        Column("slowest", "slowest", metric="latency"),
    ]
    rows = [
        {
            "block": point.block,
            "kind": point.kind,
            "batch_size": point.input_shape[0],
            "latency_s": point.value,
            "low_s": point.low,
            "high_s": point.high,
            "samples": point.n_samples,
        }
        for point in found.points
    ]
    content = {"platform": found.platform.id, "points": rows, "failures": dict(found.failures)}
    facts = {
        "points": f"{len(found.points)} of {number_of(len(by_block), 'block')}",
        "rounds": f"{found.rounds} in {format_seconds(found.duration)}" if found.rounds else "numbers from elsewhere",
    }
    ends = [f"{block} ends before {reason}" for block, reason in found.failures.items()]
    below = table_pairs(found, facts, "Benchmark points")
    return Report(Grid(shown, columns), content, rows, after=[*below, *ends, *found.remarks])


def networks_report(found: datasets.NetworkSet) -> Report:
    """Report on a data set of networks: a line for each platform and batch size."""
    groups: dict[tuple[str, int], list[datasets.NetworkEntry]] = defaultdict(list)
    for entry in found:
        groups[entry.platform.id, entry.batch_size].append(entry)
    rows = [_networks_row(platform, batch, entries) for (platform, batch), entries in groups.items()]
    columns = [
        Column("platform", "platform"),
        Column("batch size", "batch_size", str),
        Column("networks", "networks", str),
        Column("fastest", "fastest_s", metric="latency"),
        Column("slowest", "slowest_s", metric="latency"),
        Column("repeatability", "repeatability", format_percent),
    ]
    failures = {platform: dict(reasons) for platform, reasons in found.failures.items() if reasons}
    names = number_of(len({entry.name for entry in found}), "network")
    families = number_of(len(found.families), "family", "families")
    lines = [
        f"{names} of {families}: {named(found.families)}.",
        *(f"{platform} cannot run {named(reasons)}." for platform, reasons in failures.items()),
    ]
    content = {"platforms": rows, "families": list(found.families), "failures": failures}
    return Report(Grid(rows, columns, "Latencies of networks"), content, after=lines)


def _networks_row(platform: str, batch: int, entries: list[datasets.NetworkEntry]) -> dict[str, Any]:
    return {
        "platform": platform,
        "batch_size": batch,
        "networks": len(entries),
        "fastest_s": min(entry.value for entry in entries),
        "slowest_s": max(entry.value for entry in entries),
        "repeatability": measurement.quantile([entry.repeatability for entry in entries], 0.5),
    }


def prior_report(found: kernels.Prior) -> Report:
    """Report on a prior of kernels: a line a group, with its commonest configuration."""
    rows = [
        {
            "group": group,
            "configurations": len(counts),
            "kernels": sum(counts.values()),
            "commonest": max(counts, key=lambda kernel: counts[kernel]).key,
        }
        for group, counts in found.counts.items()
        if counts
    ]
    columns = [
        Column("group", "group"),
        Column("configurations", "configurations", metric="count"),
        Column("kernels", "kernels", metric="count"),
        Column("the commonest", "commonest"),
    ]
    return Report(Grid(rows, columns, "Kernels of known networks", nothing="It holds no kernels."), {"groups": rows})


def validation_report(found: validation.Validation, after: Sequence[str] = ()) -> Report:
    """Report on a validation: its worst networks, its scores, and how well the measurement repeats."""
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
        lines.append(
            f"The machine is {format_slowdown(1 / found.speed)} than predicted for the space's reference networks. "
            "Measurements are normalised to the speed of the predictions."
        )
    if found.kept is not None:
        lines.append(f"The file holds the scores of {number_of(found.scores.n, 'network')}, and not the networks.")
    worst = Grid(rows[:_WORST], columns, "Worst cases")
    scores = _scores(found)
    content = validation.validation_content(found)
    return Report(worst, content, rows or scores.rows, after=[scores, *lines, *after])


def _scores(found: validation.Validation) -> Grid:
    rows = [
        {"name": name, **vars(scores)}
        for name, scores in (
            ("predicted against measured", found.scores),
            ("repeatability", found.repeatability),
        )
        if scores is not None
    ]
    percent = {"MAPE": "mape", "RMSPE": "rmspe", "bias": "bias", "within 5 %": "within5", "within 10 %": "within10"}
    columns = [Column(header, key, partial(format_percent, signed=key == "bias")) for header, key in percent.items()]
    ranks = Column("Spearman", "spearman", partial(format_rank_correlation, digits=4))
    return Grid(rows, [Column("", "name"), *columns, ranks])


def search_report(found: SearchDocument) -> Report:
    """Report on a search: what was asked, what was found, and what was measured of it."""
    cost = partial(format_metric, metric=found.metric)
    facts = {
        "space": f"{found.space} on {found.dataset}, by {found.strategy}",
        "estimator": found.estimator,
        "platform": found.platform,
        "target": f"{cost(found.target)} of {found.metric}",
        "predicted": cost(found.predicted),
        "measured": _measured_cost(found),
        "accuracy": f"{format_percent(found.accuracy)} on held-out images",
    }
    rows = [{"label": label, "choice": choice} for label, choice in found.choices.items()]
    columns = [Column("label", "label"), Column("choice", "choice")]
    return Report(Grid(rows, columns, "The network found"), found.model_dump(), rows, before=[Pairs("Search", facts)])


def _measured_cost(found: SearchDocument) -> str:
    if found.measured is None or found.measured_at_speed is None:
        return f"no: {found.not_measured}"
    verdict = "meets the target" if found.meets_target else "misses the target"
    cost = partial(format_metric, metric=found.metric)
    return f"{cost(found.measured)}; at the estimator's speed {cost(found.measured_at_speed)}, which {verdict}"
