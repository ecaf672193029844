# SPDX-License-Identifier: Apache-2.0
"""Pictures of predictors that evolve with a database."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from nni_latency.errors import InvalidValueError
from nni_latency.plots._canvas import BLUE, DARK, GREY, picture, plain
from nni_latency.units import format_percent, number_of

if TYPE_CHECKING:
    from nni_latency.database import PredictorVersion

#: Units of the time between versions, and their seconds.
_TIME_UNITS = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))


def draw_evolution(versions: Sequence[PredictorVersion], out: str | Path) -> Path:
    """Draw the errors of the versions of predictors against records and over time, each predictor in a row.

    Networks and kernels that are held out become more, so a ring shows the version before on the same ones.

    Parameters
    ----------
    versions : sequence of PredictorVersion
        At least one.
    out : str or Path
        The file.

    Raises
    ------
    InvalidValueError
        If there is no version.
    OutputError
        If it cannot be written.
    """
    if not versions:
        raise InvalidValueError("There is no version of the predictor to draw.")
    by_name: dict[str, list[PredictorVersion]] = {}
    for version in versions:
        by_name.setdefault(version.name, []).append(version)
    with picture(out, _evolution_conclusion(versions), height=0.5 + 2.1 * len(by_name)) as figure:
        rows = figure.subplots(len(by_name), 2, squeeze=False, sharey="row")
        for pair, (name, found) in zip(rows, by_name.items(), strict=True):
            _draw_row(pair[0], pair[1], name, found)
    return Path(out)


def _evolution_conclusion(versions: Sequence[PredictorVersion]) -> str:
    """Say how many versions are better than the one before them."""
    later = [version for version in versions if "before" in version.errors]
    better = sum(version.errors["all"] < version.errors["before"] for version in later)
    legend = "blue: the version that answers; rings: the version before it, on the same held-out records"
    if not later:
        return f"{number_of(len(versions), 'version')} of predictors, none to compare yet\n{legend}"
    return f"Better than the version before: {better} of {number_of(len(later), 'later version')}\n{legend}"


def _draw_row(records: Axes, moments: Axes, name: str, versions: Sequence[PredictorVersion]) -> None:
    errors = [100 * version.errors["all"] for version in versions]
    unit, seconds = _time_unit(versions[-1].at - versions[0].at)
    places: tuple[list[float], list[float]] = (
        [version.n_records for version in versions],
        [(version.at - versions[0].at) / seconds for version in versions],
    )
    for axes, at, label in (
        (records, places[0], "records in the database"),
        (moments, places[1], f"{unit} since the first version"),
    ):
        axes.plot(at, errors, color=GREY, lw=1)
        for x, error, version in zip(at, errors, versions, strict=True):
            axes.scatter([x], [error], s=30, color=BLUE if version.is_current else GREY, zorder=3)
            if "before" in version.errors:
                before = 100 * version.errors["before"]
                axes.scatter([x], [before], s=30, facecolors="none", edgecolors=DARK, zorder=3)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.margins(x=0.08)
        axes.set_xlabel(label)
        plain(axes)
    records.set_ylabel("held-out error [%]")
    last = versions[-1]
    earlier = f"; the version before {format_percent(last.errors['before'])}" if "before" in last.errors else ""
    records.set_title(f"{name}: {format_percent(last.errors['all'])}{earlier}")
    highest = max([*errors, *(100 * version.errors.get("before", 0.0) for version in versions)])
    records.set_ylim(0, 1.1 * highest or 1.0)


def _time_unit(span: float) -> tuple[str, float]:
    """Return the name of the largest unit of which a span has two, and its seconds."""
    return next((unit for unit in _TIME_UNITS if span >= 2 * unit[1]), _TIME_UNITS[-1])
