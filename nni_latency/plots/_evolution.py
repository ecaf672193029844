"""The picture of a predictor that evolves: its error against what it has learned from."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from matplotlib.figure import Figure

from nni_latency.database import PredictorVersion
from nni_latency.errors import InvalidValueError
from nni_latency.plots._canvas import BLUE, GREY, plain, save_png


def draw_evolution(versions: Sequence[PredictorVersion], out: str | Path) -> Path:
    """Draw the errors of the versions of a predictor against records and over time, as PNG.

    Networks that are held out become more, so a ring beside a version shows the one before on the same networks.

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
    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    records, moments = figure.subplots(1, 2, sharey=True)
    errors = [100 * version.errors["all"] for version in versions]
    places = ([version.n_records for version in versions], [datetime.fromtimestamp(v.at, UTC) for v in versions])
    for axes, at, label in ((records, places[0], "records in the database"), (moments, places[1], "time (UTC)")):
        axes.plot(at, errors, color=GREY, lw=1)
        for x, error, version in zip(at, errors, versions, strict=True):
            axes.scatter([x], [error], color=BLUE if version.is_current else GREY, zorder=3)
            if "before" in version.errors:
                axes.scatter([x], [100 * version.errors["before"]], facecolors="none", edgecolors=GREY, zorder=3)
        axes.set_xlabel(label)
        plain(axes)
    moments.tick_params("x", labelrotation=30)
    records.set_ylabel("error on networks held out [%]")
    highest = max([*errors, *(100 * version.errors.get("before", 0.0) for version in versions)])
    records.set_ylim(0, 1.1 * highest or 1.0)
    figure.suptitle(
        f"Versions of {versions[0].name!r}: the blue one answers; rings are the version before, on the same networks",
        fontsize=9,
    )
    return save_png(figure, out)
