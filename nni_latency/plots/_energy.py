# SPDX-License-Identifier: Apache-2.0
"""Pictures of portable models of energy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.patches import Patch

from nni_latency.errors import InvalidValueError
from nni_latency.plots._canvas import BLUE, GREY, HeldOut, draw_held_out, logarithmic, picture, plain
from nni_latency.units import format_percent, number_of

if TYPE_CHECKING:
    from nni_latency.energy import HeldOutOperator, PortableModel

#: Height of a row of pictures of energy [inch].
_ROW_OF_ENERGY = 4.6

#: Shares of the errors that an axis leaves out at both ends.
_OUTSIDE = 0.01

#: Operators that a group needs to have its own box.
_FEWEST = 3


def draw_portable(model: PortableModel, out: str | Path) -> Path:
    """Draw what a portable model says of the energy of operators that it had not seen.

    A row is of operators that were held out, and a second one, where there are several devices, of whole devices. Left:
    predicted against measured. Right: predicted over measured by group of operators, beside the same time, times a
    constant power.

    Parameters
    ----------
    model : PortableModel
        Any with `PortableModel.held_out_`.
    out : str or Path
        The file.

    Raises
    ------
    InvalidValueError
        If it does not know what was predicted of operators that it had not seen.
    OutputError
        If it cannot be written.
    """
    rows = {
        f"operators that were held out, {_devices(model)}": [item for item in model.held_out_ if not item.whole_device],
        "devices that were held out": [item for item in model.held_out_ if item.whole_device],
    }
    rows = {title: items for title, items in rows.items() if items}
    if not rows:
        raise InvalidValueError(
            "The portable model does not say what was predicted of operators that it had not seen. Fit it again with "
            "'nni-latency learn energy'."
        )
    height = _ROW_OF_ENERGY * len(rows)
    with picture(out, _energy_conclusion(rows), height=height) as figure:
        pairs = figure.subplots(len(rows), 2, squeeze=False, width_ratios=(2, 3))
        for (left, right), items in zip(pairs, rows.values(), strict=True):
            draw_held_out(left, _by_device(items), "energy [mJ]")
            left.set_title("Predicted against measured")
            _draw_groups(right, items, model.bounds_.get("energy"))
        figure.legend(handles=_of_groups(model.bounds_.get("energy")), loc="outside lower center", ncols=3)
    return Path(out)


def _energy_conclusion(rows: Mapping[str, Sequence[HeldOutOperator]]) -> str:
    """Say, row by row, how far off the energy is, and what a constant power would say."""
    return "\n".join(
        f"{len(items)} {what}: median error {_median(items, 'predicted_joules')}; at a constant power "
        f"{_median(items, 'constant_joules')}"
        for what, items in rows.items()
    )


def _devices(model: PortableModel) -> str:
    names = ", ".join(model.devices_)
    return f"on {names}" if len(names) < 40 else f"on {number_of(len(model.devices_), 'device')}"


def _by_device(items: Sequence[HeldOutOperator]) -> dict[str, HeldOut]:
    found = {}
    for name in dict.fromkeys(item.device for item in items):
        mine = [item for item in items if item.device == name]
        found[name] = HeldOut(
            np.array([item.joules for item in mine]) * 1e3, np.array([item.predicted_joules for item in mine]) * 1e3
        )
    return found


def _draw_groups(axes: Any, items: Sequence[HeldOutOperator], bound: float | None) -> None:
    """Draw predicted over measured energy by group of operators: by the model, and by a constant power."""
    sizes = {name: sum(item.group == name for item in items) for name in dict.fromkeys(item.group for item in items)}
    names = sorted((name for name in sizes if sizes[name] >= _FEWEST), key=lambda name: -sizes[name])
    names = names or list(sizes)
    ratios = {
        BLUE: [[item.predicted_joules / item.joules for item in items if item.group == name] for name in names],
        GREY: [[item.constant_joules / item.joules for item in items if item.group == name] for name in names],
    }
    for shift, (colour, boxes) in zip((-0.2, 0.2), ratios.items(), strict=True):
        axes.boxplot(
            boxes,
            positions=np.arange(len(names)) + shift,
            widths=0.34,
            patch_artist=True,
            manage_ticks=False,
            flierprops={"marker": ".", "markersize": 3, "markeredgecolor": colour},
            medianprops={"color": "black"},
            boxprops={"facecolor": colour, "alpha": 0.6, "lw": 0},
        )
    every = np.array([ratio for boxes in ratios.values() for box in boxes for ratio in box])
    low, high = np.quantile(every, [_OUTSIDE, 1 - _OUTSIDE])
    axes.set_ylim(min(low, 0.8) / 1.1, max(high, 1.25) * 1.1)
    axes.axhline(1, color=GREY, lw=1)
    logarithmic(axes, "y")
    axes.set_xticks(
        range(len(names)), [f"{name}, {sizes[name]}" for name in names], rotation=45, ha="right", rotation_mode="anchor"
    )
    axes.set_ylabel("predicted energy over measured")
    if bound is not None:
        axes.axhspan(1 / (1 + bound), 1 + bound, color=BLUE, alpha=0.08, lw=0)
    axes.set_title("By group of operators, and how many they are")
    plain(axes, "y")


def _of_groups(bound: float | None) -> list[Patch]:
    """Say what the boxes of groups are."""
    handles = [
        Patch(color=BLUE, alpha=0.6, label="power times time, as predicted"),
        Patch(color=GREY, alpha=0.6, label="the same time, times a constant power"),
    ]
    if bound is not None:
        handles.append(Patch(color=BLUE, alpha=0.08, label="interval of a prediction"))
    return handles


def _median(items: Sequence[HeldOutOperator], name: str) -> str:
    errors = [abs(getattr(item, name) / item.joules - 1) for item in items]
    return format_percent(float(np.median(errors)))
