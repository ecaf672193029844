"""The picture of a trade-off: networks in the plane of two quantities, and those that no other one beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from nni_latency.errors import InvalidValueError
from nni_latency.plots._canvas import BLUE, DARK, GREEN, GREY, plain, save_png
from nni_latency.units import METRICS, check_metric

#: A quantity that is no cost: more of it is better.
ACCURACY = "accuracy"

#: Points of the front that are named at most.
_NAMED = 12


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
