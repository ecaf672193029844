# SPDX-License-Identifier: Apache-2.0
"""Reports of estimators other than tables: ACTS fits, portable models of time and power, graph predictors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

import nni_latency.energy as energy
import nni_latency.estimators as estimators
import nni_latency.estimators.acts as acts
import nni_latency.graphs as graphs
from nni_latency.cli._report import Column, Grid, Report
from nni_latency.errors import listed
from nni_latency.units import format_metric, format_percent, format_seconds, number_of

#: What the bounds of a portable model are of.
_MEANT = {"latency": "time", "energy": "energy"}

_PLATFORM_COLUMNS = [
    Column("platform", "platform"),
    Column("networks", "networks", metric="count"),
    Column("error, held out", "mape", format_percent, absent="-"),
    Column("within 10 %", "within10", format_percent, absent="-"),
    Column("interval: factor", "interval_factor", "{:.2f}".format, absent="-"),
    Column("inside", "inside", format_percent, absent="-"),
    Column("error, random blocks", "blocks_mape", format_percent, absent="-"),
]

#: How the terms of the formula are written.
_TERMS = {"acts": "ACTS", "inp": "INP", "flops": "FLOPs", "constant": "constant"}

#: What JSON and CSV call it.
CONSTANT = "at_constant_power"


def estimator_report(estimator: estimators.Estimator, after: Sequence[str] = ()) -> Report:
    """Report on any estimator: what it is, its metric and its platform."""
    facts = {"estimator": repr(estimator), "metric": estimator.metric, "platform": estimator.platform.id}
    rows = [{"name": name, "value": value} for name, value in facts.items()]
    grid = Grid(rows, [Column("", "name"), Column("", "value")])
    return Report(grid, {**facts, "facts": dict(estimator.platform.facts)}, after=after)


def acts_report(estimator: estimators.ActsEstimator) -> Report:
    """Report on an ACTS fit: also its formula."""
    level = f"{format_percent(estimator.confidence)} of the estimates are within a factor of "
    return estimator_report(estimator, [*acts_formula(estimator), f"{level}{estimator.interval_factor_:.3f}."])


def portable_report(model: energy.PortableModel) -> Report:
    """Report on a portable model of time and power: the devices that it learned from, and how far it may be off."""
    rows = [{"device": name, **asdict(facts)} for name, facts in model.devices_.items()]
    columns = [
        Column("device", "device"),
        Column("FLOP/s", "flops", metric="count"),
        Column("byte/s", "bandwidth", metric="count"),
        Column("at rest", "rest", metric="power"),
        Column("most", "power", metric="power"),
        Column("shortest operator", "launch", metric="latency"),
    ]
    lines = [f"It has seen these groups of operators: {listed(model.groups_, most=None)}."]
    if model.bounds_:
        within = (f"{format_percent(bound)} in {_MEANT[metric]}" for metric, bound in model.bounds_.items())
        lines.append(f"Of the operators that were held out, nine of ten are within {', '.join(within)}.")
    content = {"devices": rows, "groups": list(model.groups_), "bounds": dict(model.bounds_)}
    nothing = "It does not say from which devices it learned: give the facts of a device with every estimate."
    return Report(Grid(rows, columns, "Devices that it learned from", nothing=nothing), content, after=lines)


def graph_report(found: graphs.GraphPredictor, after: Sequence[str] = ()) -> Report:
    """Report on a graph predictor: a line for each platform, with its errors on families that were held out."""
    rows = [_platform_row(found, number) for number in range(len(found.platforms_))]
    lines = [
        "Held out: families that were not learned from, and single networks of random blocks; of a platform that was "
        "added later, networks.",
        f"Learned from {number_of(len(found.families_), 'family', 'families')}: {listed(found.families_)}.",
        *after,
    ]
    return Report(Grid(rows, _PLATFORM_COLUMNS), {"platforms": rows, "families": list(found.families_)}, after=lines)


def _platform_row(found: graphs.GraphPredictor, number: int) -> dict[str, Any]:
    is_block = np.array([name in graphs.MIXED for name in found.held_out_families_], dtype=bool)
    published, blocks = (_held_out(found, number, chosen) for chosen in (~is_block, is_block))
    return {
        "platform": found.platforms_[number].id,
        "networks": int(found.counts_[number]),
        **published,
        **{f"blocks_{name}": value for name, value in blocks.items()},
    }


def _held_out(found: graphs.GraphPredictor, number: int, chosen: np.ndarray) -> dict[str, float | None]:
    """Return the errors of some of the networks that were held out, on one platform."""
    is_known = chosen & ~np.isnan(found.held_out_[:, number])
    if not is_known.any():
        return dict.fromkeys(("mape", "within10", "interval_factor", "inside"))
    errors, widths = found.held_out_[is_known, number], found.widths_[is_known, number]
    off = np.abs(np.exp(errors) - 1)
    return {
        "mape": float(off.mean()),
        "within10": float((off <= 0.1).mean()),
        "interval_factor": float(np.exp(np.median(widths))),
        "inside": float((np.abs(errors) <= widths).mean()),
    }


def acts_formula(estimator: acts.ActsEstimator) -> list[str]:
    """Say in lines what was fitted."""
    lines = [
        f"latency = {estimator.a_:.4g} s x ACTS + {estimator.b_:.4g} s x INP + {estimator.c_:.4g} s x FLOPs "
        f"+ {format_seconds(estimator.d_)}   (two FLOPs per multiply-add)"
    ]
    if estimator.breakpoint_:
        sign = "-" if estimator.offset_ < 0 else "+"
        lines.append(
            f"below {format_seconds(estimator.breakpoint_)}: {estimator.slope_:.4g} times that {sign} "
            f"{format_seconds(abs(estimator.offset_))}"
        )
    shares = ", ".join(f"{_TERMS[name]} {format_percent(share)}" for name, share in estimator.shares_.items())
    lines.append(f"The device is bound by {estimator.bound_}: {shares} of the latency on average.")
    if estimator.variant == "refined":
        what = {
            "none": "no correction of the efficiencies by operator group",
            "curve": "a monotone curve on the costs of operators",
            "residual": "factors by operator, learned from the residuals",
        }
        lines.append(f"Chosen by cross-validation: {what[estimator.correction_]}.")
    return lines


def constant_power_content(estimate: estimators.Estimate) -> dict[str, float]:
    """Return what a predicted energy would be by the time alone [J]; nothing of other costs."""
    return {CONSTANT: estimate.at_constant_power} if isinstance(estimate, energy.EnergyEstimate) else {}


def at_constant_power(total: estimators.Estimate | None, estimator: estimators.Estimator) -> list[str]:
    """Say what the energy of a network would be by the time alone; nothing of other costs."""
    if not (isinstance(total, energy.EnergyEstimate) and isinstance(estimator, energy.PortableEstimator)):
        return []
    joules, watts = (
        format_metric(number, metric)
        for number, metric in ((total.at_constant_power, "energy"), (estimator.constant_power, "power"))
    )
    return [f"At a constant power of {watts} it would be {joules}, by the predicted time alone."]
