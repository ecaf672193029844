# SPDX-License-Identifier: Apache-2.0
"""Pictures of searches: the network found, the way to it, and the trade-off of two quantities."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nni_latency.errors import InvalidValueError
from nni_latency.plots._canvas import BLUE, DARK, GREEN, GREY, ORANGE, SMALL, name_columns, picture, plain
from nni_latency.units import METRICS, check_metric, format_metric, format_percent, number_of

#: Letters in a line below the picture, and lines.
_WIDTH, _LINES = 120, 8

#: Letters of the name and the choice of a layer.
_LAYER = 28

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


def draw_search(found: SearchPicture, out: str | Path) -> Path:
    """Draw a search: cost by layer, and the path in the plane of cost and accuracy.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    with picture(out, f"{_conclusion(found)}\n{found.title}", height=6.4) as figure:
        above, below = figure.subplots(2, 1)
        _draw_layers(above, found)
        _draw_path(below, found)
        if found.choices:
            figure.supxlabel(_listed(found.choices), x=0.012, horizontalalignment="left", fontsize=SMALL)
    return Path(out)


def _conclusion(found: SearchPicture) -> str:
    """Say what the network found costs, and how well that was predicted."""
    said = format_metric(found.predicted, found.metric)
    target = "" if found.target is None else f"; target {format_metric(found.target, found.metric)}"
    if found.measured is None:
        return f"The network found takes {said} as predicted{target}; accuracy {format_percent(found.accuracy)}"
    error = format_percent(found.predicted / found.measured - 1, signed=True)
    took = format_metric(found.measured, found.metric)
    return f"The network found takes {took}, its prediction is {error} off{target}"


def _listed(choices: Sequence[tuple[str, str]]) -> str:
    """List what was chosen in a few lines."""
    text = "Network found: " + ", ".join(f"{label} = {choice}" for label, choice in choices)
    return textwrap.fill(text, _WIDTH, max_lines=_LINES, placeholder=" ...")


def _draw_layers(axes: Any, found: SearchPicture) -> None:
    factor, unit = found.shown
    costs = [latency * factor for _, _, latency in found.layers]
    axes.bar(range(len(costs)), costs, color=BLUE)
    names = [textwrap.shorten(f"{name} {choice}", _LAYER, placeholder="...") for name, choice, _ in found.layers]
    name_columns(axes, names)
    axes.margins(x=0.01)
    axes.set_ylabel(f"estimated {found.metric} [{unit}]")
    axes.set_title(f"The network found, layer by layer: {found.predicted * factor:.3g} {unit} as estimated")
    plain(axes, "y")


def _draw_path(axes: Any, found: SearchPicture) -> None:
    factor, unit = found.shown
    latencies = [latency * factor for latency, _ in found.path]
    accuracies = [accuracy * 100 for _, accuracy in found.path]
    name = "networks of the trials" if found.trials else f"supernet after each epoch,\nexpected {found.metric}"
    axes.plot(latencies, accuracies, "o" if found.trials else "o-", color=ORANGE, label=name)
    for index in {0, len(latencies) - 1} if latencies else ():
        axes.annotate(
            str(index + 1),
            (latencies[index], accuracies[index]),
            xytext=(4, 5),
            textcoords="offset points",
            fontsize=SMALL,
        )
    height = found.accuracy * 100
    axes.plot(found.predicted * factor, height, "*", markersize=13, color=GREEN, label="network found, estimated")
    if found.measured is not None:
        axes.plot(
            found.measured * factor,
            height,
            "D",
            markersize=7,
            markerfacecolor="none",
            markeredgecolor=GREEN,
            markeredgewidth=1.5,
            label="network found, measured,\nat the estimator's speed",
        )
    if found.raw is not None:
        axes.plot(found.raw * factor, height, "x", markersize=7, color=DARK, label="network found, as measured")
    if found.target is not None:
        label = f"target {found.target * factor:.3g} {unit}"
        axes.axvline(found.target * factor, color=DARK, linestyle="--", label=label)
    axes.set_xlabel(f"{found.metric} [{unit}]")
    axes.set_ylabel("accuracy on held-out images [%]")
    axes.set_title("Trials of the search" if found.trials else "Path of the search")
    plain(axes)
    # Beside the axes, where it covers nothing.
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


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
    searched : bool, default=False
        Whether it comes from a search, and not from drawing at random.
    """

    x: float
    y: float
    name: str = ""
    found: bool = False
    searched: bool = False


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
    limit: float | None = None,
) -> Path:
    """Draw networks in the plane of two quantities, and the front of those that no other one beats.

    Parameters
    ----------
    points : sequence of ParetoPoint
        The networks.
    out : str or Path
        The file.
    x, y : str
        As for `pareto_front`.
    title : str, default=""
        What is compared; the conclusion stands above.
    limit : float, optional
        What x may be at most, in its SI unit: a line.

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
    for quantity in (x, y):
        _shown(quantity)
    with picture(out, "\n".join(filter(None, [_compared(points, x, y, limit), title])), height=4.6) as figure:
        axes = figure.subplots()
        _draw_front(axes, points, x, y)
        if limit is not None:
            label = f"target {format_metric(limit, x)}"
            axes.axvline(limit * _shown(x)[0], color=DARK, linestyle="--", lw=1, label=label)
        # Below the axes, where it covers nothing.
        figure.legend(loc="outside lower center", ncols=2)
    return Path(out)


def _compared(points: Sequence[ParetoPoint], x: str, y: str, limit: float | None) -> str:
    """Say how many networks of a search are on the front, or how good they are within the limit."""
    searched, drawn = ([point for point in points if point.searched is kind] for kind in (True, False))
    drawn = [point for point in drawn if not point.found]
    if not searched or not drawn:
        front, count = len(pareto_front(points, x, y)), number_of(len(points), "network")
        return f"{front} of {count} are beaten by no other one in both {_named(x)} and {_named(y)}"
    if limit is not None and y == ACCURACY:
        best = [max((point.y for point in group if point.x <= limit), default=None) for group in (searched, drawn)]
        if best[0] is not None and best[1] is not None:
            return (
                f"Within the target, the best of {number_of(len(searched), 'searched network')} reaches "
                f"{format_percent(best[0])}, of {number_of(len(drawn), 'random one')} {format_percent(best[1])}"
            )
    best_of_both = pareto_front([*searched, *drawn], x, y)
    ours = sum(point.searched for point in best_of_both)
    return (
        f"{ours} of the {number_of(len(best_of_both), 'network')} on the front were searched: {len(searched)} searched "
        f"against {number_of(len(drawn), 'random one')}"
    )


def _draw_front(axes: Any, points: Sequence[ParetoPoint], x: str, y: str) -> None:
    (across, unit_x), (up, unit_y) = _shown(x), _shown(y)
    found = [point for point in points if point.found]
    # The front of the others, which the network found may lie beyond: it has learned on.
    others = [point for point in points if not point.found] or found
    searched, drawn = ([point for point in others if point.searched is kind] for kind in (True, False))
    front = pareto_front(others, x, y)

    def at(chosen: Sequence[ParetoPoint]) -> tuple[list[float], list[float]]:
        return [point.x * across for point in chosen], [point.y * up for point in chosen]

    label = f"front: no other one beats these in both {_named(x)} and {_named(y)}"
    axes.plot(*at(front), "-", color=DARK, lw=1, label=label)
    if drawn:
        axes.plot(
            *at(drawn), "o", color=GREY, alpha=0.7, label=f"{len(drawn)} drawn at random" if searched else "networks"
        )
    if searched:
        axes.plot(*at(searched), "D", color=BLUE, label=f"{len(searched)} searched, each for a limit of its own")
    if found:
        axes.plot(*at(found), "*", color=GREEN, markersize=13, label="network found, trained to the end")
    for point in front[:_NAMED] if len(front) <= _NAMED else ():
        if point.name:
            place = (point.x * across, point.y * up)
            axes.annotate(point.name, place, xytext=(5, 5), textcoords="offset points", fontsize=SMALL, color=DARK)
    axes.set_xlabel(_labelled(x, unit_x))
    axes.set_ylabel(_labelled(y, unit_y))
    plain(axes)


def _named(quantity: str) -> str:
    return "weighted sum" if quantity == "weighted" else quantity.replace("_", " ")


def _labelled(quantity: str, unit: str) -> str:
    return _named(quantity) if unit == "1" else f"{_named(quantity)} [{unit}]"


def _shown(quantity: str) -> tuple[float, str]:
    """Return by what a quantity is multiplied where it is drawn, and its unit then."""
    return (100.0, "%") if quantity == ACCURACY else METRICS[check_metric(quantity)].shown
