"""The trade-off of a search as a picture: accuracy against cost, or one cost against another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import nni_latency.loading as loading
import nni_latency.nas as nas
import nni_latency.plots as plots
import nni_latency.spaces as spaces
from nni_latency.cli._estimator_options import ESTIMATOR
from nni_latency.cli._option import option, output_option
from nni_latency.cli._search_report import Found
from nni_latency.cli._searched import Searched
from nni_latency.errors import InvalidValueError


@dataclass(frozen=True)
class ParetoOptions:
    """What is drawn besides the path of the search."""

    plot: Path | None = output_option(
        "PNG file of the Pareto front: accuracy against cost of what was tried or, with --second-estimator, one cost "
        "against the other."
    )
    second_estimator: str | None = option(
        "Estimator of another cost, such as energy, for --plot: random networks of the space, and the one found.",
        metavar=ESTIMATOR,
    )
    samples: int = option("Random networks that --second-estimator costs.", type=click.IntRange(2), default=200)

    def second(self, space: Any, searched: Searched) -> nas.LatencyProfiler | None:
        """Return the costs of a space by the second estimator; an estimator that does not fit is told at once."""
        import torch

        if self.second_estimator is None:
            return None
        if self.plot is None:
            raise InvalidValueError("--second-estimator is drawn by --plot. Name a file for the picture.")
        estimator = loading.load_estimator(self.second_estimator)
        return nas.LatencyProfiler(space, torch.zeros(searched.input_shape), latency_estimator=estimator)


def draw_trade_off(found: Found, asked: ParetoOptions, second: nas.LatencyProfiler | None) -> None:
    """Draw the picture if it was asked for."""
    if asked.plot is None:
        return
    first, metric = found.aim.profiler, found.aim.profiler.cost.metric
    title = f"{found.searched.name}, {first.estimator.platform.id}"
    if second is None:
        points = [plots.ParetoPoint(step.latency, step.accuracy, str(step.index + 1)) for step in found.result.history]
        best = plots.ParetoPoint(found.result.latency, found.result.accuracy, found=True)
        names = "trials" if any(isinstance(step, nas.Trial) for step in found.result.history) else "epochs"
        title = f"{title}: {names} on {found.options.dataset}"
        plots.draw_pareto([*points, best], asked.plot, x=metric, y=plots.ACCURACY, title=title)
        return
    drawn = spaces.draw_samples(found.searched.make(), asked.samples, found.options.seed)
    points = [plots.ParetoPoint(first.profile(sample), second.profile(sample)) for sample in drawn]
    sample = found.result.sample
    points.append(plots.ParetoPoint(first.profile(sample), second.profile(sample), "found", found=True))
    if second.estimator.platform.id != first.estimator.platform.id:
        title = f"{title} and {second.estimator.platform.id}"
    plots.draw_pareto(points, asked.plot, x=metric, y=second.cost.metric, title=title)
