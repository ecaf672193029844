# SPDX-License-Identifier: Apache-2.0
"""What networks cost: one layer by layer or block by block, or several beside each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rich.markup import escape

import nni_latency.analysis as analysis
import nni_latency.estimators as estimators
from nni_latency.cli._asked import Answer
from nni_latency.cli._console import named, print_lines, remarks, sentence
from nni_latency.cli._estimator_report import CONSTANT, at_constant_power, constant_power_content
from nni_latency.cli._network import NamedNetwork
from nni_latency.cli._report import Column, Grid, Report, print_report, report_format
from nni_latency.units import cost_row, format_count, format_metric, format_percent, format_seconds, number_of

#: Layers that are printed without --top.
ROWS = 30

#: What the least and the largest cost are called; of other metrics than latency, lowest and highest.
_EXTREMES = {"latency": ("Fastest", "Slowest")}

#: Networks that get a column each, beside several platforms.
_BESIDE = 4

_COUNTS = {"ACTS": "acts", "INP": "inp", "FLOPs": "flops", "parameters": "params", "bytes moved": "memory"}


def print_answers(answers: Sequence[Answer], estimator: estimators.Estimator, top: int | None) -> None:
    """Print what an estimator says: of one network its layers, of several a comparison, and all that is doubtful."""
    if len(answers) == 1:
        print_report(_network_report(answers[0], estimator, top))
    else:
        platform, metric = estimator.platform.id, estimator.metric
        costs = [
            {
                "network": answer.named.text,
                "platform": platform,
                **cost_row(answer.total, metric),
                "missing": list(answer.total.missing),
            }
            for answer in answers
        ]
        print_report(comparison_report([answer.named for answer in answers], costs, [platform], metric))
    for answer in answers:
        _print_doubts(answer, estimator, one=len(answers) == 1)


def _network_report(answer: Answer, estimator: estimators.Estimator, top: int | None) -> Report:
    """Report on one network: its cost, and those of its layers, the most expensive first."""
    value = next(iter(cost_row(None, estimator.metric)))
    rows = [_row(row, answer.column, value) for row in answer.rows]
    if top is not None and report_format() != "table":
        rows = sorted(rows, key=lambda row: row["share"], reverse=True)[:top]
    cost = partial(format_metric, metric=estimator.metric)
    has_constant = any(CONSTANT in row for row in rows)
    columns = [
        Column("layer", "name"),
        *([Column(answer.column, answer.column)] if any(row.choice for row in answer.rows) else []),
        Column(estimator.metric, value, metric=estimator.metric),
        *([Column("at constant power", CONSTANT, metric=estimator.metric)] if has_constant else []),
        Column("share", "share", format_percent),
    ]
    total = answer.total
    lines = [
        f"{estimator.metric} {cost(total.value)} ({cost(total.low)} to {cost(total.high)}) on {estimator.platform.id}",
        *at_constant_power(total, estimator),
        *_work(answer),
    ]
    content = {
        **_network_content(answer, estimator),
        "platform": {"id": estimator.platform.id, "facts": dict(estimator.platform.facts)},
        "layers": rows,
    }
    return Report(Grid(rows, columns, most=top or ROWS, by="share"), content, after=lines)


def _network_content(answer: Answer, estimator: estimators.Estimator) -> dict[str, Any]:
    """Return what JSON says of a network as a whole."""
    features = answer.features
    return {
        "network": answer.named.text,
        **cost_row(answer.total, estimator.metric),
        **constant_power_content(answer.total),
        "macs": features and features.macs,
        "params": features and features.params,
        "uncounted": list(answer.uncounted),
        "missing": list(answer.total.missing),
        "remarks": list(answer.remarks),
    }


def remark_on(network: NamedNetwork, remark: str, *, one: bool) -> str:
    """Make a sentence of a remark on a network; with its name, unless it is the only one."""
    return sentence(remark) if one else f"{network.text}: {remark}."


def _print_doubts(answer: Answer, estimator: estimators.Estimator, *, one: bool) -> None:
    """Print what had to be assumed of a network, and what the estimator lacks."""
    print_lines(remarks(), (remark_on(answer.named, remark, one=one) for remark in answer.remarks))
    names = [name for name in dict.fromkeys(answer.total.missing) if name not in answer.remarks]
    if names:
        how = ", taken from the nearest entry or left out:" if _takes_nearest(estimator) else ","
        remark = f"Not in the estimator as asked{how} {named(names)}"
        remarks().print(escape(remark if one else f"{answer.named.text}: {remark}"))


def _takes_nearest(estimator: estimators.Estimator) -> bool:
    return isinstance(estimator, estimators.TableEstimator) and estimator.missing != "predict"


def comparison_report(
    networks: Sequence[NamedNetwork],
    costs: Sequence[Mapping[str, Any]],
    platforms: Sequence[str],
    metric: str,
    shown: Sequence[str] = (),
) -> Report:
    """Report on several networks: a row for each platform, or for each network where these are many or it is one.

    Parameters
    ----------
    networks : sequence of NamedNetwork
        In the order of the columns.
    costs : sequence of mapping
        Of every network on every platform: ``network``, ``platform``, and value and interval as `cost_row` names them.
    platforms : sequence of str
        In the order of the rows.
    metric : str
        What is compared.
    shown : sequence of str, optional
        Platforms that get a table each where networks are many; by default all.
    """
    value, low, high = cost_row(None, metric)
    ranked = sorted(costs, key=lambda row: row[value])
    rows = [_platform_row(networks, [row for row in ranked if row["platform"] == name], metric) for name in platforms]
    least, most = _EXTREMES.get(metric, ("Lowest", "Highest"))
    cost = partial(format_metric, metric=metric)
    shorts = _short_names(networks)
    lines = [
        f"{word}: {shorts[row['network']]} on {row['platform']}, {cost(row[value])}."
        for word, row in ((least, ranked[0]), (most, ranked[-1]))
    ]
    content = {"platforms": rows, "networks": ranked}
    if len(platforms) > 1 and len(networks) <= _BESIDE:
        columns = [
            Column("platform", "platform"),
            *(Column(name, text, metric=metric) for text, name in shorts.items()),
            Column(least.lower(), "best"),
            Column("sure", "sure", lambda sure: "yes" if sure else "no"),
            Column(f"{most.lower()} / {least.lower()}", "factor", "{:.2f}".format),
        ]
        named_rows = [{**row, "best": shorts[row["best"]]} for row in rows]
        return Report(Grid(named_rows, columns), content, rows, after=lines)
    columns = [
        Column("network", "name"),
        Column(metric, value, metric=metric),
        Column("from", low, metric=metric),
        Column("to", high, metric=metric),
        Column(f"times the {least.lower()}", "factor", "{:.2f}".format),
    ]
    by_platform = {name: [row for row in ranked if row["platform"] == name] for name in shown or platforms}
    first, *others = (
        Grid(
            [{**row, "name": shorts[row["network"]], "factor": row[value] / own[0][value]} for row in own],
            columns,
            name,
        )
        for name, own in by_platform.items()
    )
    left = len(platforms) - len(by_platform)
    if left:
        lines.append(f"{number_of(left, 'more platform')}: name some with --platform, or print all with --format csv.")
    return Report(first, content, rows if len(platforms) > 1 else ranked, after=[*others, *lines])


def _short_names(networks: Sequence[NamedNetwork]) -> dict[str, str]:
    """Return what stands in a table for each network: files of one name in several folders keep their folders."""
    counts = Counter(item.short for item in networks)
    return {item.text: item.short if counts[item.short] == 1 else item.text for item in networks}


def _platform_row(networks: Sequence[NamedNetwork], ranked: Sequence[Mapping[str, Any]], metric: str) -> dict[str, Any]:
    value, low, high = cost_row(None, metric)
    first, second, last = ranked[0], ranked[1], ranked[-1]
    by_name = {row["network"]: row[value] for row in ranked}
    return {
        "platform": first["platform"],
        **{item.text: by_name[item.text] for item in networks},
        "best": first["network"],
        "factor": last[value] / first[value],
        "sure": first[high] < second[low],
    }


def _row(row: estimators.LayerShare, column: str, value: str) -> dict[str, Any]:
    estimate = row.estimate
    costs = {value: estimate.value, **constant_power_content(estimate)}
    return {"name": row.name, column: row.choice, **costs, "share": row.share}


def _work(answer: Answer) -> list[str]:
    features = answer.features
    if features is None:
        return []
    uncounted = f", not counting {named(answer.uncounted)}" if answer.uncounted else ""
    return [f"{format_count(features.macs)} multiply-adds, {format_count(features.params)} parameters{uncounted}"]


def analysis_report(named: NamedNetwork, analysed: analysis.ModelAnalysis, top: int) -> Report:
    """Report on one network, block by block, the most expensive first."""
    rows = [_block_row(block) for block in analysed.blocks]
    timed = any(row["latency_s"] is not None for row in rows)
    columns = [
        Column("block", "name"),
        Column("kind", "kind"),
        *(Column(header, key, metric="count") for header, key in _COUNTS.items()),
        *([Column("latency", "latency_s", metric="latency")] if timed else []),
        Column("share", "share", format_percent),
    ]
    features = analysed.features
    lines = [
        f"{format_count(features.acts)} ACTS, {format_count(features.inp)} INP, {format_count(features.flops)} FLOPs "
        f"({format_count(features.macs)} multiply-adds), {format_count(analysed.params)} parameters; shares are "
        f"of the {'latency' if timed else 'FLOPs'}",
    ]
    if analysed.latency is not None and analysed.estimator is not None:
        low, value, high = (format_seconds(getattr(analysed.latency, name)) for name in ("low", "value", "high"))
        lines.append(f"latency {value} ({low} to {high}) on {analysed.estimator.platform.id}")
    grid = Grid(rows, columns, "Blocks, most expensive first", most=top, by="share")
    content = {**_work_content(named, analysed), "blocks": rows, "suggestions": analysed.suggestions}
    return Report(grid, content, after=[*lines, *(f"- {line}" for line in analysed.suggestions)])


def comparison_of_work(named: Sequence[NamedNetwork], analysed: Sequence[analysis.ModelAnalysis]) -> Report:
    """Report on several networks, a row each."""
    rows = [_work_content(name, item) for name, item in zip(named, analysed, strict=True)]
    timed = any(row["latency_s"] is not None for row in rows)
    shorts = _short_names(named)
    shown = [{**row, "short": shorts[item.text]} for row, item in zip(rows, named, strict=True)]
    columns = [
        Column("network", "short"),
        *(Column(header, key, metric="count") for header, key in _COUNTS.items()),
        *([Column("latency", "latency_s", metric="latency")] if timed else []),
    ]
    return Report(Grid(shown, columns, "Networks"), {"networks": rows}, rows=rows)


def _work_content(named: NamedNetwork, analysed: analysis.ModelAnalysis) -> dict[str, Any]:
    latency = analysed.latency
    return {
        "network": named.text,
        "batch_size": analysed.batch_size,
        "acts": analysed.features.acts,
        "inp": analysed.features.inp,
        "flops": analysed.features.flops,
        "macs": analysed.features.macs,
        "params": analysed.params,
        "memory": analysed.features.memory,
        "latency_s": latency and latency.value,
        "low_s": latency and latency.low,
        "high_s": latency and latency.high,
        "platform": analysed.estimator and analysed.estimator.platform.id,
        "uncounted": list(analysed.uncounted),
        "remarks": list(analysed.remarks),
    }


def _block_row(block: analysis.BlockAnalysis) -> dict[str, Any]:
    return {
        "name": block.name,
        "kind": block.kind,
        **{name: getattr(block.features, name) for name in ("acts", "inp", "flops", "macs", "memory")},
        "params": block.params,
        "latency_s": block.latency and block.latency.value,
        "share": block.share,
        "uncounted": list(block.uncounted),
    }
