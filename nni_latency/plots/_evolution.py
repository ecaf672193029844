"""The picture of predictors that evolve: their errors against what they have learned from."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nni_latency.database import PredictorVersion
from nni_latency.errors import InvalidValueError
from nni_latency.plots._canvas import BLUE, GREY, plain, save_png


def draw_evolution(versions: Sequence[PredictorVersion], out: str | Path) -> Path:
    """Draw the errors of the versions of predictors against records and over time, as PNG, each predictor in a row.

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
    figure = Figure(figsize=(7.5, 0.5 + 3.1 * len(by_name)), layout="constrained")
    rows = figure.subplots(len(by_name), 2, squeeze=False, sharey="row")
    for pair, (name, found) in zip(rows, by_name.items(), strict=True):
        _draw_row(pair[0], pair[1], name, found)
    figure.suptitle("The blue version answers; rings are the version before, held to the same", fontsize=9)
    return save_png(figure, out)


def _draw_row(records: Axes, moments: Axes, name: str, versions: Sequence[PredictorVersion]) -> None:
    errors = [100 * version.errors["all"] for version in versions]
    places: tuple[list[Any], list[Any]] = (
        [version.n_records for version in versions],
        [datetime.fromtimestamp(version.at, UTC) for version in versions],
    )
    for axes, at, label in ((records, places[0], "records in the database"), (moments, places[1], "time (UTC)")):
        axes.plot(at, errors, color=GREY, lw=1)
        for x, error, version in zip(at, errors, versions, strict=True):
            axes.scatter([x], [error], color=BLUE if version.is_current else GREY, zorder=3)
            if "before" in version.errors:
                axes.scatter([x], [100 * version.errors["before"]], facecolors="none", edgecolors=GREY, zorder=3)
        axes.set_xlabel(label)
        plain(axes)
    moments.tick_params("x", labelrotation=30)
    records.set_ylabel("error on what is held out [%]")
    records.set_title(name, fontsize=9, loc="left")
    highest = max([*errors, *(100 * version.errors.get("before", 0.0) for version in versions)])
    records.set_ylim(0, 1.1 * highest or 1.0)
