# SPDX-License-Identifier: Apache-2.0
"""What ``nni-latency profile --measure`` found, by kind of operator, by model or by operator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import nni_latency.profiling as profiling
from nni_latency.cli._report import Column, Grid, Report
from nni_latency.errors import listed
from nni_latency.units import format_metric, format_percent

By = Literal["kind", "model", "operator"]

#: Rows that are shown without --verbose.
_MOST = 15

_joules = partial(format_metric, metric="energy")
_watts = partial(format_metric, metric="power")


def profile_report(profiles: Sequence[profiling.OperatorProfile], by: By, after: Sequence[str]) -> Report:
    """Make the report on profiles of one platform or several.

    Parameters
    ----------
    profiles : sequence of OperatorProfile
        What was measured.
    by : {"kind", "model", "operator"}
        What a row is: a kind of operator over all models, in one model, or an operator.
    after : sequence of str
        Lines that end it.
    """
    several = len(profiles) > 1
    # What is assumed tells nothing that time does not: only the energy of models is shown.
    energy, metered = (
        any("energy" in item.metrics and not (item.assumption and read) for item in profiles) for read in (False, True)
    )
    make = {"kind": _kind_rows, "model": _part_rows, "operator": _operator_rows}[by]
    rows = [{**_head(item), **row} for item in profiles for row in make(item)]
    models = [{**_head(item), **row} for item in profiles for row in _model_rows(item)]
    lead = [Column("platform", "platform")] if several else []
    grid = Grid(rows, [*lead, *_columns(by, metered=metered)], _TITLES[by], most=_MOST * len(profiles))
    whole = [Grid(models, [*lead, *_model_columns("latency", energy=energy and not metered)], _MODELS["latency"])]
    if metered:
        whole.append(Grid(models, [*lead, *_model_columns("energy")], _MODELS["energy"]))
    lines = [line for item in profiles for line in _conclusions(item, several=several)]
    significant = {item.platform.id: list(item.significant) for item in profiles}
    content = {"models": models, _NAMES[by]: rows, "significant": significant}
    return Report(grid, content, before=whole, after=[*lines, *after])


#: What the rows are called in JSON.
_NAMES = {"kind": "kinds", "model": "parts", "operator": "operators"}

_MODELS = {
    "latency": "Time of models, and sums of operators over it",
    "energy": "Energy of models, and sums of operators over it",
}

_TITLES = {
    "kind": "Kinds of operators, over all models",
    "model": "Kinds of operators in every model",
    "operator": "Operators, the costliest first",
}


def _head(profile: profiling.OperatorProfile) -> dict[str, Any]:
    return {"platform": profile.platform.id, "batch_size": profile.batch_size}


def _model_rows(profile: profiling.OperatorProfile) -> list[dict[str, Any]]:
    attributed = {metric: profile.attributed(metric) for metric in profile.metrics}
    return [
        {
            "model": model.name,
            "latency_s": model.value,
            "low_s": model.low,
            "high_s": model.high,
            "energy": model.joules,
            "power": model.watts,
            "operators": len(model.parts),
            **{f"{metric}_attributed": attributed[metric][model.name] for metric in attributed},
            **{
                f"{metric}_{way}": profile.ratio(model, way, metric)
                for metric in profile.metrics
                for way in ("memory", "reused", "context")
            },
        }
        for model in profile.models
    ]


def _model_columns(metric: str, *, energy: bool = True) -> list[Column]:
    """Return the columns of models by time, with the energy where it is only assumed, or by energy."""
    found = [Column("model", "model")]
    if metric == "latency":
        found.append(Column("latency", "latency_s", metric="latency"))
    if energy:
        found.append(Column("energy", "energy", absent="-", metric="energy"))
    found.append(Column("attributed", f"{metric}_attributed", format_percent))
    for way, header in (("memory", "alone, memory"), ("reused", "alone, reused"), ("context", "in context")):
        found.append(Column(header, f"{metric}_{way}", format_percent, absent="-"))
    return found


def _kind_rows(profile: profiling.OperatorProfile) -> list[dict[str, Any]]:
    """Return a row for every kind of operator: the significant ones first, then the rest by their share."""
    parts = profile.rows()
    made = []
    for kind in dict.fromkeys(row["kind"] for row in parts):
        own = [row for row in parts if row["kind"] == kind]
        most = max(own, key=lambda row: row["latency_share"])
        made.append(
            {
                "kind": kind,
                "significant": kind in profile.significant,
                "latency_share": math.fsum(row["latency_share"] for row in own) / len(profile.models),
                "most": most["latency_share"],
                "in": most["model"],
                "energy_share": _mean_share(own, len(profile.models)),
                "models": len(own),
                "operators": len({item.op for item in profile.operators if item.kind == kind}),
                "runs": sum(row["runs"] for row in own),
            }
        )
    return sorted(made, key=lambda row: (not row["significant"], -row["latency_share"]))


def _mean_share(rows: Sequence[dict[str, Any]], n_models: int) -> float | None:
    known = [row["energy_share"] for row in rows if row["energy_share"] is not None]
    return math.fsum(known) / n_models if known else None


def _part_rows(profile: profiling.OperatorProfile) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in _head(profile)} for row in profile.rows()]


def _operator_rows(profile: profiling.OperatorProfile) -> list[dict[str, Any]]:
    total = math.fsum(model.value for model in profile.models)
    rows = []
    for item in profile.operators:
        key = item.op.op_key
        parts = [model.parts[key] for model in profile.models if key in model.parts]
        seconds, runs = math.fsum(part.seconds for part in parts), sum(part.count for part in parts)
        alone = {f"{way}_s": item.alone[way].value if way in item.alone else None for way in profiling.WAYS}
        rows.append(
            {
                "operator": key,
                "kind": item.kind,
                "significant": item.kind in profile.significant,
                "models": len(parts),
                "runs": runs,
                "latency_s": seconds / runs,
                "share": seconds / total,
                **alone,
                "power": item.watts,
            }
        )
    return sorted(rows, key=lambda row: -row["share"])


def _columns(by: By, *, metered: bool) -> list[Column]:
    def mark(value: bool) -> str:
        return "yes" if value else "no"

    shares = [Column("time", "latency_share", format_percent)]
    shares += [Column("energy", "energy_share", format_percent, absent="-")] if metered else []
    if by == "kind":
        most = [Column("most time", "most", format_percent), Column("in", "in")]
        counts = [Column("operators", "operators", str), Column("runs", "runs", str)]
        return [Column("kind", "kind"), Column("counts", "significant", mark), *shares, *most, *counts]
    if by == "model":
        first = [Column("model", "model"), Column("kind", "kind"), Column("counts", "significant", mark)]
        return [*first, Column("latency", "latency_s", metric="latency"), *shares, Column("runs", "runs", str)]
    alone = [Column(f"alone, {way}", f"{way}_s", absent="-", metric="latency") for way in ("memory", "reused")]
    power = [Column("power", "power", absent="-", metric="power")] if metered else []
    inside = [Column("runs", "runs", str), Column("in context", "latency_s", metric="latency")]
    return [Column("operator", "operator"), *inside, *alone, *power, Column("share", "share", format_percent)]


def _conclusions(profile: profiling.OperatorProfile, *, several: bool) -> list[str]:
    """Say in sentences what is attributed, what is not, and what the energy means."""
    where = f"{profile.platform.id}: " if several else ""
    noun = " and energy" if "energy" in profile.metrics else ""
    kinds = listed(profile.significant, most=None)
    target = format_percent(profile.target)
    below = [
        f"{name} ({format_percent(share)} of its {'time' if metric == 'latency' else metric})"
        for metric in profile.metrics
        for name, share in profiling.shortfalls(profile.shares(metric), profile.target, profile.significant).items()
    ]
    if below:
        first = f"{where}Below the target of {target}: {', '.join(below)}, with {kinds or 'no kind of operator'}."
    else:
        first = f"{where}At least {target} of every model's time{noun} is that of {kinds}."
    rest = [row for row in _kind_rows(profile) if not row["significant"]]
    names = [f"{row['kind']} (at most {format_percent(row['most'])}, in {row['in']})" for row in rest]
    lines = [first, *([f"{where}Not attributed: {listed(names)}."] if names else []), f"{where}{_energy(profile)}"]
    doubtful = [f"{name} to {format_percent(ratio)}" for name, ratio in profile.doubtful().items()]
    if doubtful:
        lines.append(
            f"{where}Timed inside a model, operators do not add up to it: {listed(doubtful)}. Their shares are no "
            "more exact than that. Profile again on a quieter machine or with a larger --budget."
        )
    done, wanted = profile.measured_alone()
    if done < wanted:
        lines.insert(
            1,
            f"{where}{done} of {wanted} operators of these kinds were measured alone; in sums of operators alone, the "
            "others count as in the model.",
        )
    return lines


def _energy(profile: profiling.OperatorProfile) -> str:
    if profile.meter is None:
        return "No energy was measured. It needs a meter, such as --meter rapl, or an assumed power: constant:WATTS."
    if profile.assumption:
        return (
            f"No energy was measured: it is time times {profile.assumption}, which is an assumption, so shares of "
            "energy are those of time."
        )
    return (
        f"Energy was read by {profile.meter}, of whole models and of operators alone. Inside a model it is divided by "
        "the operators' times there and their powers alone."
    )
