# SPDX-License-Identifier: Apache-2.0
"""Pictures of networks: the kernels that a runtime makes of them, and their operators' shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.patches import Patch, Rectangle

from nni_latency.errors import InvalidValueError
from nni_latency.operators import FusionRules, OpSpec, Trace, divide, family_of, group_of
from nni_latency.plots._canvas import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    PALETTE,
    SMALL,
    TEXT,
    VERMILION,
    WIDTH,
    picture,
    plain,
)
from nni_latency.units import format_percent, number_of

if TYPE_CHECKING:
    from nni_latency.profiling import OperatorProfile

#: Colour of a box by what it computes, and whether white letters can be read on it.
_COLOURS = {
    "convolution": (BLUE, True),
    "depthwise convolution": ("#56B4E9", False),
    "matrix product": ("#CC79A7", False),
    "normalisation": (ORANGE, False),
    "of one tensor": (GREEN, True),
    "of several tensors": (VERMILION, True),
    "pooling": ("#F0E442", False),
    "other": (GREY, False),
}

#: Sizes [inch]: a row, a box, a letter, space around a text, between columns, between lanes of edges, above everything.
_ROW, _BOX, _LETTER, _PADDING, _GAP, _LANE, _HEAD = 0.185, 0.15, 0.0605, 0.1, 0.3, 0.06, 0.85

#: Height of a caption, width of the number beside a row, and of both margins [inch].
_CAPTION, _NUMBER, _MARGIN = 0.3, 0.2, 0.1

#: Rows of a column at least, and operators of a network that is still drawn.
_ROWS, _MOST = 8, 500

#: Height of a row, and of what surrounds the rows of a platform [inch].
_BAR, _FRAME = 0.3, 1.5

#: Ways to add up operators, with their marks.
_WAYS = (
    ("memory", "alone, from memory", "s", BLUE),
    ("reused", "alone, input reused", "o", ORANGE),
    ("context", "in context", "D", VERMILION),
)

_NOUNS = {"latency": "time", "energy": "energy"}


@dataclass
class _Row:
    """One operator, or one kernel with its operators side by side; and the rows whose results it takes."""

    number: str
    ops: Sequence[OpSpec]
    sources: Sequence[int]
    x: float = 0.0
    y: float = 0.0
    column: int = 0
    widths: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.widths = [len(family_of(op)) * _LETTER + _PADDING for op in self.ops]

    @property
    def middle(self) -> float:
        """Height of its middle."""
        return self.y - _BOX / 2


def draw_fusion(network: Trace, rules: FusionRules, out: str | Path, *, title: str = "") -> Path:
    """Draw a network before and after its operators are divided into kernels.

    Operators stand in the order of execution, from top to bottom and column by column. A line leads from each to the
    next that takes its result; where that is in another column, the number of the source stands beside it.

    Parameters
    ----------
    network : Trace
        The network.
    rules : FusionRules
        What its runtime fuses.
    out : str or Path
        The file.
    title : str, optional
        What is drawn, below the conclusion; by default the runtime.

    Raises
    ------
    InvalidValueError
        If the network has no operators, or too many to be readable.
    OutputError
        If it cannot be written.
    """
    if not 1 <= len(network.operators) <= _MOST:
        raise InvalidValueError(
            f"A network of {number_of(len(network.operators), 'operator')} cannot be drawn: it must have 1 to {_MOST} "
            "of them."
        )
    before = [_Row(str(place), [item.op], item.sources) for place, item in enumerate(network.operators)]
    after = _kernels(network, rules)
    bottom = _place(after, _place(before, -_CAPTION) - 2 * _CAPTION)
    height = _HEAD - bottom + _MARGIN
    conclusion = f"{number_of(len(before), 'operator')} run as {number_of(len(after), 'kernel')}"
    whole = f"{conclusion}\n{title or f'Kernels of {rules.platform.id}'}"
    with picture(out, whole, height=height, layout=None) as figure:
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, WIDTH), ylim=(_HEAD - height, _HEAD))
        axes.axis("off")
        _draw_legend(axes, network)
        _draw_rows(axes, before, f"before: {number_of(len(before), 'operator')}")
        _draw_rows(axes, after, f"after: {number_of(len(after), 'kernel')}, whose operators stand side by side")
    return Path(out)


def _kernels(network: Trace, rules: FusionRules) -> list[_Row]:
    kernels = divide(network, rules)
    kernel_of = {number: place for place, kernel in enumerate(kernels) for number in kernel}
    rows = []
    for place, kernel in enumerate(kernels):
        items = [network.operators[number] for number in kernel]
        sources = sorted({kernel_of[source] for item in items for source in item.sources} - {place})
        rows.append(_Row(str(place), [item.op for item in items], sources))
    return rows


def _place(rows: Sequence[_Row], top: float) -> float:
    """Put rows into as many columns of about the same length as are beside each other; return where they end below."""
    for columns in range(-(-len(rows) // _ROWS), 0, -1):
        length = -(-len(rows) // columns)
        if _put(rows, length, top) <= WIDTH - _MARGIN or columns == 1:
            break
    return top - length * _ROW


def _put(rows: Sequence[_Row], length: int, top: float) -> float:
    """Put rows into columns of a length; return where the last one ends on the right."""
    for number, row in enumerate(rows):
        row.column = number // length
    left = _MARGIN - _GAP + _NUMBER
    for first in range(0, len(rows), length):
        members = rows[first : first + length]
        left += _GAP + _LANE * _lanes(rows, members)
        for place, row in enumerate(members):
            row.x, row.y = left, top - place * _ROW
        far = max((len(_far(rows, row)) for row in members), default=0)
        left += max(sum(row.widths) for row in members) + _LETTER * far
    return left


def _far(rows: Sequence[_Row], row: _Row) -> str:
    """Name the sources that no line leads to."""
    numbers = [rows[source].number for source in row.sources if rows[source].column != row.column]
    return f"  from {', '.join(numbers)}" if numbers else ""


def _lanes(rows: Sequence[_Row], members: Sequence[_Row]) -> int:
    """Count the edges of a column that pass other rows, at most, side by side."""
    numbers = [int(row.number) for row in members]
    spans = [
        (source, number)
        for number in numbers
        for source in rows[number].sources
        if source >= numbers[0] and number - source > 1
    ]
    return max((sum(low <= number <= high for low, high in spans) for number in numbers), default=0)


def _draw_rows(axes: Any, rows: Sequence[_Row], caption: str) -> None:
    axes.text(_MARGIN, rows[0].y + 0.6 * _CAPTION, caption, fontsize=TEXT, va="center")
    lanes: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for place, row in enumerate(rows):
        _draw_row(axes, row)
        axes.text(row.x + sum(row.widths), row.middle, _far(rows, row), fontsize=SMALL, va="center", color=DARK)
        for source in row.sources:
            if rows[source].column == row.column:
                _draw_edge(axes, rows[source], row, lanes, passes=place - source > 1)


def _draw_row(axes: Any, row: _Row) -> None:
    x = row.x
    axes.text(x - 0.03, row.middle, row.number, fontsize=SMALL, va="center", ha="right", color=DARK)
    for op, width in zip(row.ops, row.widths, strict=True):
        colour, white = _COLOURS[_category(op)]
        axes.add_patch(Rectangle((x, row.y - _BOX), width, _BOX, facecolor=colour, edgecolor="white", lw=0.5))
        axes.text(
            x + width / 2, row.middle, family_of(op), fontsize=SMALL, va="center", ha="center", color="wk"[not white]
        )
        x += width
    if len(row.ops) > 1:
        axes.add_patch(Rectangle((row.x, row.y - _BOX), sum(row.widths), _BOX, fill=False, edgecolor="black", lw=0.9))


def _draw_edge(
    axes: Any, source: _Row, row: _Row, lanes: dict[tuple[int, int], list[tuple[float, float]]], *, passes: bool
) -> None:
    """Draw a line to the row below, or around the rows between, in the first lane that is free."""
    if not passes:
        axes.plot([source.x + 0.12] * 2, [source.y - _BOX, row.y], color=DARK, lw=0.9)
        return
    lane, span = 0, (row.y, source.y)
    while any(low < span[1] and span[0] < high for low, high in lanes.get((row.column, lane), [])):
        lane += 1
    lanes.setdefault((row.column, lane), []).append(span)
    inner, outer = row.x - _NUMBER, row.x - _NUMBER - _LANE * (lane + 1)
    ends = (inner, outer, outer, inner)
    axes.plot(ends, [source.middle - 0.04] * 2 + [row.middle + 0.04] * 2, color=VERMILION, lw=0.8, zorder=0)


def _category(op: OpSpec) -> str:
    group = group_of(op)
    if group.endswith("convolution"):
        return group if group in _COLOURS else "convolution"
    if group in ("matrix product", "attention"):
        return "matrix product"
    if group.endswith("pooling") or group == "reduction":
        return "pooling"
    if group == "elementwise":
        return "of several tensors" if len(op.input_shapes) > 1 else "of one tensor"
    return group if group in _COLOURS else "other"


def _draw_legend(axes: Any, network: Trace) -> None:
    found = {_category(item.op) for item in network.operators}
    x = _MARGIN
    for name in (name for name in _COLOURS if name in found):
        axes.add_patch(Rectangle((x, 0.11), 0.12, 0.12, facecolor=_COLOURS[name][0]))
        axes.text(x + 0.17, 0.17, name, fontsize=SMALL, va="center")
        x += 0.3 + len(name) * _LETTER


def draw_operator_profile(profiles: Sequence[OperatorProfile], out: str | Path) -> Path:
    """Draw profiles: the shares of kinds of operators by model, and sums of operators over whole models.

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
    heights = [_FRAME + _BAR * len(_bars(profile)) for profile in profiles]
    kinds = list(dict.fromkeys(kind for profile in profiles for kind in profile.significant))
    head = 0.5 + 0.16 * -(-(len(kinds) + 1) // 4)
    with picture(out, _shares_conclusion(profiles), height=sum(heights) + head) as figure:
        grid = figure.subplots(len(profiles), 2, squeeze=False, width_ratios=(3, 2), height_ratios=heights)
        for (left, right), profile in zip(grid, profiles, strict=True):
            draw_shares(left, profile, kinds)
            left.get_legend().remove()
            draw_sums(right, profile)
        handles = [Patch(**_look(place), label=kind) for place, kind in enumerate(kinds)]
        handles.append(Patch(color=GREY, alpha=0.4, label="not attributed"))
        figure.legend(handles=handles, loc="outside lower left", ncols=4)
    return Path(out)


def _shares_conclusion(profiles: Sequence[OperatorProfile]) -> str:
    """Say which kind of operator takes the largest share."""
    shares = [
        (share, kind, model.name, profile)
        for profile in profiles
        for model in profile.models
        for kind, share in profile.shares(profile.metrics[0])[model.name].items()
        if kind in profile.significant
    ]
    where = ", ".join(dict.fromkeys(f"{item.platform.id} at batch size {item.batch_size}" for item in profiles))
    assumed = "".join(
        dict.fromkeys(f"; energy is time times {item.assumption}" for item in profiles if item.assumption)
    )
    if not shares:
        return f"Operators of networks on {where}{assumed}"
    share, kind, name, profile = max(shares, key=lambda item: item[0])
    noun = _NOUNS[profile.metrics[0]]
    return f"{kind} takes {format_percent(share)} of the {noun} of {name}, the largest share\n{where}{assumed}"


def _look(place: int) -> dict[str, Any]:
    """Return the colour of a kind, and hatches where the colours repeat."""
    return {
        "facecolor": PALETTE[place % (len(PALETTE) - 1)],
        "hatch": "//" if place >= len(PALETTE) - 1 else "",
        "edgecolor": "white",
    }


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
        axes.barh(range(len(bars)), widths, left=ends, **_look(number), label=kind)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    axes.barh(range(len(bars)), [100 - end for end in ends], left=ends, color=GREY, alpha=0.4, label="not attributed")
    axes.axvline(100 * profile.target, color=DARK, linestyle="--", lw=1)
    several = len({metric for metric, _ in bars}) > 1
    names = [f"{name}, {_NOUNS[metric]}" if several else name for metric, name in bars]
    axes.set_yticks(range(len(bars)), names)
    axes.invert_yaxis()
    what = "share of the model" if several else "share of the model's time"
    axes.set(xlim=(0, 100), xlabel=f"{what} [%]; dashed: target of {format_percent(profile.target)}")
    axes.set_title(profile.platform.id)
    plain(axes, "x")
    axes.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.28 * 3 / (_FRAME + _BAR * len(bars))))


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
    axes.set_xlabel("sum over the whole model [%]")
    axes.set_title("Operators added up")
    plain(axes)
    axes.legend(loc="best")
