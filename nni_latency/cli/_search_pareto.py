"""The trade-off of a search as a picture: accuracy against cost, or one cost against another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import click

import nni_latency.estimators as estimators
import nni_latency.loading as loading
import nni_latency.nas as nas
import nni_latency.plots as plots
import nni_latency.spaces as spaces
from nni_latency.cli._estimator_options import ESTIMATOR
from nni_latency.cli._option import option, output_option
from nni_latency.cli._search_report import Found
from nni_latency.cli._searched import Searched
from nni_latency.errors import InvalidValueError

#: The costs of a space by two estimators.
_Plane: TypeAlias = "tuple[nas.LatencyProfiler, nas.LatencyProfiler]"


@dataclass(frozen=True)
class ParetoOptions:
    """What is drawn besides the path of the search."""

    plot: Path | None = output_option(
        "PNG file of the Pareto front: accuracy against cost of what was tried or, with --second-estimator and for a "
        "weighted sum, one cost against the other."
    )
    second_estimator: str | None = option(
        "Estimator of another cost, such as energy, for --plot: random networks of the space, and the one found.",
        metavar=ESTIMATOR,
    )
    samples: int = option("Random networks that are drawn by their two costs.", type=click.IntRange(2), default=200)

    def plane(self, first: nas.LatencyProfiler, searched: Searched) -> _Plane | None:
        """Return the two costs that are drawn against each other; None where it is accuracy against cost.

        An estimator that does not fit is told at once.

        Parameters
        ----------
        first : LatencyProfiler
            The costs that the search obeys; of a weighted sum the first two that it adds up are drawn.
        searched : Searched
            The space.
        """
        if self.second_estimator is not None:
            if self.plot is None:
                raise InvalidValueError("--second-estimator is drawn by --plot. Name a file for the picture.")
            return first, _profiler(searched, loading.load_estimator(self.second_estimator))
        estimator = first.estimator
        if self.plot is None or not (isinstance(estimator, estimators.TableEstimator) and estimator.addends):
            return None
        across, up = (_profiler(searched, part) for _, part in estimator.addends[:2])
        return across, up


def _profiler(searched: Searched, estimator: estimators.Estimator) -> nas.LatencyProfiler:
    import torch

    return nas.LatencyProfiler(searched.make(), torch.zeros(searched.input_shape), latency_estimator=estimator)


def draw_trade_off(found: Found, asked: ParetoOptions, plane: _Plane | None) -> None:
    """Draw the picture if it was asked for."""
    if asked.plot is None:
        return
    title = f"{found.searched.name}, {found.aim.profiler.estimator.platform.id}"
    if plane is None:
        points = [plots.ParetoPoint(step.latency, step.accuracy, str(step.index + 1)) for step in found.result.history]
        best = plots.ParetoPoint(found.result.latency, found.result.accuracy, found=True)
        names = "trials" if any(isinstance(step, nas.Trial) for step in found.result.history) else "epochs"
        title = f"{title}: {names} on {found.options.dataset}"
        metric = found.aim.profiler.cost.metric
        plots.draw_pareto([*points, best], asked.plot, x=metric, y=plots.ACCURACY, title=title)
        return
    first, second = plane
    drawn = spaces.draw_samples(found.searched.make(), asked.samples, found.options.seed)
    points = [plots.ParetoPoint(first.profile(sample), second.profile(sample)) for sample in drawn]
    sample = found.result.sample
    points.append(plots.ParetoPoint(first.profile(sample), second.profile(sample), "found", found=True))
    if second.estimator.platform.id != first.estimator.platform.id:
        title = f"{title} and {second.estimator.platform.id}"
    metrics = {"x": first.cost.metric, "y": second.cost.metric}
    plots.draw_pareto(points, asked.plot, **metrics, title=title, target=_target(found, asked))


def _target(found: Found, asked: ParetoOptions) -> tuple[float, float, float] | None:
    """Return the weights and the target of a weighted sum whose two costs are drawn."""
    if asked.second_estimator is not None or len(found.addends) != 2:
        return None
    first, second = found.addends
    return first.weight, second.weight, found.options.target
