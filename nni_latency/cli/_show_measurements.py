"""``nni-latency show`` for measurements that are no table: benchmark points, data sets, priors of kernels."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import nni_latency.datasets as datasets
import nni_latency.kernels as kernels
import nni_latency.measurement as measurement
import nni_latency.micro_benchmarks as micro_benchmarks
from nni_latency.cli._console import named
from nni_latency.cli._report import Column, Grid, Report
from nni_latency.cli._table_facts import table_pairs
from nni_latency.errors import listed
from nni_latency.units import format_percent, format_seconds, number_of


def points_report(found: micro_benchmarks.BenchmarkPoints) -> Report:
    """Report on benchmark points: a line a block, with its batch sizes and how long it takes.

    Parameters
    ----------
    found : BenchmarkPoints
        The points.
    """
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
    """Report on a data set of networks: a line for each platform and batch size.

    Parameters
    ----------
    found : NetworkSet
        The data set.
    """
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
    """Report on a prior of kernels: a line a group, with its commonest configuration.

    Parameters
    ----------
    found : Prior
        The prior.
    """
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
