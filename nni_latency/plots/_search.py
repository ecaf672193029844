"""The picture of a search: where the network found spends its time, and how the search came to it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from nni_latency.plots._canvas import BLUE, DARK, GREEN, ORANGE, plain, save_png
from nni_latency.units import METRICS

#: Letters in a line below the picture, and lines.
_WIDTH, _LINES = 220, 8


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
        Whether the path is of trials, each a network of its own.
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
