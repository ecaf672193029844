"""``nni-latency show`` for estimators other than tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import nni_latency.energy as energy
import nni_latency.estimators as estimators
from nni_latency.cli._acts_formula import acts_formula
from nni_latency.cli._report import Column, Grid, Report
from nni_latency.errors import listed
from nni_latency.units import format_percent

#: What the bounds of a portable model are of.
_MEANT = {"latency": "time", "energy": "energy"}


def estimator_report(estimator: estimators.Estimator, after: Sequence[str] = ()) -> Report:
    """Report on any estimator: what it is, its metric and its platform.

    Parameters
    ----------
    estimator : Estimator
        The estimator.
    after : sequence of str
        What is said below.
    """
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
