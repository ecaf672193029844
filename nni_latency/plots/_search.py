"""Pictures of searches: the network found, the way to it, and the trade-off of two quantities."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from nni_latency.errors import InvalidValueError
from nni_latency.plots._canvas import BLUE, DARK, GREEN, GREY, ORANGE, plain, save_png
from nni_latency.units import METRICS, check_metric

#: Letters in a line below the picture, and lines.
_WIDTH, _LINES = 220, 8

#: A quantity that is not a cost: more of it is better.
ACCURACY = "accuracy"

#: Points of the front that are named at most.
_NAMED = 12


@dataclass(frozen=True)
class SearchPicture:
    """What the picture shows; all latencies in seconds.

    Parameters
    ----------
    layers : sequence of (str, str, float)
        Name, choice and estimated latency of every layer of the network found.
    path : sequence of (float, float)
        Expected latency and accuracy of the supernet after every epoch, or those of the network of every trial.
    predicted : float
        Estimated latency of the network found.
    accuracy : float
        Accuracy of the network found.
    target : float or None
        Latency target.
    measured : float or None
        Measured latency of the network found, at the speed that the machine had when the estimator was made.
    title : str
        What was searched where.
    trials : bool, default=False
        Whether the path is of trials, each a separate network.
    raw : float or None
        The latency as it was measured.
    choices : sequence of (str, str), default=()
        What was chosen by label, where the layers do not say it.
    metric : str, default="latency"
        What the latencies are, where they are something else, in its SI unit.
    """

    layers: Sequence[tuple[str, str, float]]
    path: Sequence[tuple[float, float]]
    predicted: float
    accuracy: float
    target: float | None
    measured: float | None
    title: str
    trials: bool = False
    raw: float | None = None
    choices: Sequence[tuple[str, str]] = ()
    metric: str = "latency"

    @property
    def shown(self) -> tuple[float, str]:
        """By what costs are multiplied where they are drawn, and their unit then."""
        return METRICS[self.metric].shown


def draw_search(picture: SearchPicture, out: str | Path) -> Path:
    """Draw a search as PNG: latency by layer, and the path in the plane of latency and accuracy.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    figure = Figure(figsize=(12, 5.5), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    figure.suptitle(picture.title, fontsize=11)
    _draw_layers(left, picture)
    _draw_path(right, picture)
    if picture.choices:
        figure.supxlabel(_listed(picture.choices), x=0.01, horizontalalignment="left", fontsize=7)
    return save_png(figure, out)


def _listed(choices: Sequence[tuple[str, str]]) -> str:
    """List what was chosen in a few lines."""
    text = "Network found: " + ", ".join(f"{label} = {choice}" for label, choice in choices)
    return textwrap.fill(text, _WIDTH, max_lines=_LINES, placeholder=" ...")


def _draw_layers(axes: Any, picture: SearchPicture) -> None:
    factor, unit = picture.shown
    positions = range(len(picture.layers))
    costs = [latency * factor for _, _, latency in picture.layers]
    axes.bar(positions, costs, color=BLUE)
    axes.set_xticks(positions, [f"{name}\n{choice}" for name, choice, _ in picture.layers], rotation=90, fontsize=7)
    axes.set_ylabel(f"estimated {picture.metric} [{unit}]")
    axes.set_title(f"Network found: {picture.predicted * factor:.3g} {unit} estimated, by layer", fontsize=10)
    plain(axes, "y")


def _draw_path(axes: Any, picture: SearchPicture) -> None:
    factor, unit = picture.shown
    latencies = [latency * factor for latency, _ in picture.path]
    accuracies = [accuracy * 100 for _, accuracy in picture.path]
    name = "networks of the trials" if picture.trials else f"supernet, after each epoch (expected {picture.metric})"
    axes.plot(latencies, accuracies, "o" if picture.trials else "o-", color=ORANGE, label=name)
    for index in {0, len(latencies) - 1} if latencies else ():
        axes.annotate(
            str(index + 1), (latencies[index], accuracies[index]), xytext=(5, 6), textcoords="offset points", fontsize=8
        )
    height = picture.accuracy * 100
    axes.plot(picture.predicted * factor, height, "*", markersize=15, color=GREEN, label="network found, estimated")
    if picture.measured is not None:
        axes.plot(
            picture.measured * factor,
            height,
            "D",
            markersize=7,
            markerfacecolor="none",
            markeredgecolor=GREEN,
            markeredgewidth=2,
            label="network found, measured, at the estimator's speed",
        )
    if picture.raw is not None:
        axes.plot(picture.raw * factor, height, "x", markersize=7, color=DARK, label="network found, as measured")
    if picture.target is not None:
        label = f"target {picture.target * factor:.3g} {unit}"
        axes.axvline(picture.target * factor, color=DARK, linestyle="--", label=label)
    axes.set_xlabel(f"{picture.metric} [{unit}]")
    axes.set_ylabel("accuracy on held-out images [%]")
    axes.set_title("Trials of the search" if picture.trials else "Path of the search", fontsize=10)
    plain(axes)
    # Below the axes, where it covers nothing.
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14))


@dataclass(frozen=True)
class ParetoPoint:
    """A network by two quantities, in SI units. Immutable.

    Parameters
    ----------
    x, y : float
        The quantities; an accuracy is a share in [0, 1].
    name : str, default=""
        What is written beside it if it is on the front.
    found : bool, default=False
        Whether it is the one that a search found.
    """

    x: float
    y: float
    name: str = ""
    found: bool = False


def pareto_front(points: Sequence[ParetoPoint], x: str = "latency", y: str = "energy") -> list[ParetoPoint]:
    """Return the points that no other one beats in one quantity without being worse in the other, by rising x.

    Parameters
    ----------
    points : sequence of ParetoPoint
        The networks.
    x, y : str
        What the quantities are: a metric of `nni_latency.units.METRICS`, of which less is better but for a throughput,
        or ``accuracy``.

    Examples
    --------
    >>> points = [ParetoPoint(1.0, 5.0), ParetoPoint(2.0, 6.0), ParetoPoint(3.0, 1.0)]
    >>> [(point.x, point.y) for point in pareto_front(points)]
    [(1.0, 5.0), (3.0, 1.0)]
    """
    signs = [-1.0 if quantity in (ACCURACY, "throughput") else 1.0 for quantity in (x, y)]
    found: list[ParetoPoint] = []
    for point in sorted(points, key=lambda point: (signs[0] * point.x, signs[1] * point.y)):
        if not found or signs[1] * point.y < signs[1] * found[-1].y:
            found.append(point)
    return sorted(found, key=lambda point: point.x)


def draw_pareto(
    points: Sequence[ParetoPoint],
    out: str | Path,
    *,
    x: str = "latency",
    y: str = "energy",
    title: str = "",
    target: tuple[float, float, float] | None = None,
) -> Path:
    """Draw networks in the plane of two quantities as PNG, and the front of those that no other one beats.

    Parameters
    ----------
    points : sequence of ParetoPoint
        The networks.
    out : str or Path
        The file.
    x, y : str
        As for `pareto_front`.
    title : str, default=""
        What stands above.
    target : tuple of float, optional
        Weights of x and of y, in one over their SI units, and what their weighted sum may be at most: it is a line.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    InvalidValueError
        If there is no point, or no quantity of a name.
    OutputError
        If the file cannot be written.
    """
    if not points:
        raise InvalidValueError("A Pareto front needs at least one network. Got none.")
    figure = Figure(figsize=(8, 5.5), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=10)
    _draw_front(axes, points, x, y)
    if target is not None:
        _draw_target(axes, target, (_shown(x)[0], _shown(y)[0]))
    axes.legend(fontsize=8, loc="best")
    return save_png(figure, out)


def _draw_target(axes: Any, target: tuple[float, float, float], shown: tuple[float, float]) -> None:
    """Draw where a weighted sum is its target, and keep the axes as they are."""
    across, up, most = target[0] / shown[0], target[1] / shown[1], target[2]
    limits = axes.get_xlim(), axes.get_ylim()
    ends = limits[0]
    label = f"weighted sum of {most:g}, the target"
    axes.plot(ends, [(most - across * end) / up for end in ends], "--", color=DARK, lw=1, label=label)
    axes.set(xlim=limits[0], ylim=limits[1])


def _draw_front(axes: Any, points: Sequence[ParetoPoint], x: str, y: str) -> None:
    (across, unit_x), (up, unit_y) = _shown(x), _shown(y)
    found = [point for point in points if point.found]
    # The front of the others, which the network found may lie beyond.
    others = [point for point in points if not point.found] or found
    front = pareto_front(others, x, y)

    def at(chosen: Sequence[ParetoPoint]) -> tuple[list[float], list[float]]:
        return [point.x * across for point in chosen], [point.y * up for point in chosen]

    axes.plot(*at(others), "o", color=GREY, markersize=4, alpha=0.6, label="networks")
    axes.plot(*at(front), "o-", color=BLUE, markersize=5, lw=1.2, label="those that no other one beats in both")
    if found:
        axes.plot(*at(found), "*", color=GREEN, markersize=15, label="network found")
    for point in front[:_NAMED] if len(front) <= _NAMED else ():
        if point.name:
            place = (point.x * across, point.y * up)
            axes.annotate(point.name, place, xytext=(5, 5), textcoords="offset points", fontsize=7, color=DARK)
    axes.set_xlabel(f"{x} [{unit_x}]")
    axes.set_ylabel(f"{y} [{unit_y}]")
    plain(axes)


def _shown(quantity: str) -> tuple[float, str]:
    """Return by what a quantity is multiplied where it is drawn, and its unit then."""
    return (100.0, "%") if quantity == ACCURACY else METRICS[check_metric(quantity)].shown
