"""The picture of operator profiles: which kinds of operators take a model's time and energy, and what sums say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from nni_latency.plots._canvas import BLUE, DARK, GREY, ORANGE, PALETTE, VERMILION, plain, save_png
from nni_latency.profiling import OperatorProfile

#: Height of a row, and of what surrounds the rows of a platform [inch].
_ROW, _FRAME = 0.3, 2.2

#: Ways to add up operators, with their marks.
_WAYS = (
    ("memory", "alone, from memory", "s", BLUE),
    ("reused", "alone, input reused", "o", ORANGE),
    ("context", "in context", "D", VERMILION),
)

_NOUNS = {"latency": "time", "energy": "energy"}


def draw_operator_profile(profiles: Sequence[OperatorProfile], out: str | Path) -> Path:
    """Draw profiles as PNG: the shares of kinds of operators by model, and sums of operators over whole models.

    Parameters
    ----------
    profiles : sequence of OperatorProfile
        A row of the picture for each.
    out : str or Path
        The file.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    heights = [_FRAME + _ROW * len(_bars(profile)) for profile in profiles]
    figure = Figure(figsize=(12, sum(heights)), layout="constrained")
    grid = figure.subplots(len(profiles), 2, squeeze=False, width_ratios=(3, 2), height_ratios=heights)
    kinds = list(dict.fromkeys(kind for profile in profiles for kind in profile.significant))
    for (left, right), profile in zip(grid, profiles, strict=True):
        draw_shares(left, profile, kinds)
        draw_sums(right, profile)
    return save_png(figure, out)


def _bars(profile: OperatorProfile) -> list[tuple[str, str]]:
    """Return the metric and the model of every row, from the top; energy that is assumed looks like time."""
    metrics = profile.metrics[:1] if profile.assumption else profile.metrics
    return [(metric, model.name) for model in profile.models for metric in metrics]


def draw_shares(axes: Any, profile: OperatorProfile, kinds: Sequence[str] = ()) -> None:
    """Draw the share of every significant kind of operator in a bar a model, the rest in grey.

    Parameters
    ----------
    axes : Axes
        Where to.
    profile : OperatorProfile
        What to draw.
    kinds : sequence of str
        Kinds in the order of their colours; by default those of the profile.
    """
    known = list(kinds or profile.significant)
    bars = _bars(profile)
    shares = {metric: profile.shares(metric) for metric in profile.metrics}
    ends = [0.0] * len(bars)
    for number, kind in enumerate(known):
        if kind not in profile.significant:
            continue
        widths = [100 * shares[metric][name].get(kind, 0.0) for metric, name in bars]
        hatch = "//" if number >= len(PALETTE) - 1 else ""
        colour = PALETTE[number % (len(PALETTE) - 1)]
        axes.barh(range(len(bars)), widths, left=ends, color=colour, hatch=hatch, edgecolor="white", label=kind)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    axes.barh(range(len(bars)), [100 - end for end in ends], left=ends, color=GREY, alpha=0.4, label="not attributed")
    axes.axvline(100 * profile.target, color=DARK, linestyle="--", lw=1)
    several = len({metric for metric, _ in bars}) > 1
    names = [f"{name}, {_NOUNS[metric]}" if several else name for metric, name in bars]
    axes.set_yticks(range(len(bars)), names, fontsize=8)
    axes.invert_yaxis()
    what = "share of the model" if several else "share of the model's time"
    axes.set(xlim=(0, 100), xlabel=f"{what} [%]; dashed: the target")
    assumed = f"; energy is time times {profile.assumption}" if profile.assumption else ""
    axes.set_title(f"{profile.platform.id}, batch size {profile.batch_size}{assumed}", fontsize=10)
    plain(axes, "x")
    axes.legend(fontsize=7, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.28 * 3 / (_FRAME + _ROW * len(bars))))


def draw_sums(axes: Any, profile: OperatorProfile) -> None:
    """Draw the sum of a model's operators over the whole model, for every way to measure them."""
    bars, models = _bars(profile), {model.name: model for model in profile.models}
    for way, label, marker, colour in _WAYS:
        points = [
            (100 * ratio, row)
            for row, (metric, name) in enumerate(bars)
            if (ratio := profile.ratio(models[name], way, metric)) is not None
        ]
        if points:
            axes.plot(*zip(*points, strict=True), marker, color=colour, label=label, markersize=6, alpha=0.85)
    axes.axvline(100, color=DARK, lw=1)
    axes.set_yticks(range(len(bars)), [])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xlabel("sum of operators over the whole model [%]")
    axes.set_title("Operators added up", fontsize=10)
    plain(axes)
    axes.legend(fontsize=8, loc="best")
