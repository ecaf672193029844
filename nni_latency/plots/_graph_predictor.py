"""The picture of a graph predictor: networks that it had not seen, predicted against measured, and its errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from nni_latency.errors import InvalidValueError
from nni_latency.graphs import GraphPredictor
from nni_latency.plots._canvas import save_png
from nni_latency.plots._held_out import HeldOut, draw_held_out, draw_ratios
from nni_latency.units import format_percent, number_of


def draw_graph_predictor(predictor: GraphPredictor, out: str | Path) -> Path:
    """Draw what a graph predictor says of networks of families that it had not seen, as PNG.

    Left: predicted against measured, by platform. Right: errors by platform, beside the intervals of predictions.

    Parameters
    ----------
    predictor : GraphPredictor
        Any that is fitted.
    out : str or Path
        The file.

    Raises
    ------
    InvalidValueError
        If it knows no network that was held out.
    OutputError
        If it cannot be written.
    """
    known = _held_out(predictor)
    if not known:
        raise InvalidValueError("The graph predictor knows no network that was held out, so there is nothing to draw.")
    figure = Figure(figsize=(12.5, 6.0), layout="constrained")
    figure.suptitle(_title(predictor, known), fontsize=11)
    left, right = figure.subplots(1, 2)
    draw_held_out(left, known, "latency [ms]")
    draw_ratios(right, known)
    right.set_title("Errors by platform", fontsize=10)
    return save_png(figure, out)


def _held_out(predictor: GraphPredictor) -> dict[str, HeldOut]:
    """Return what was measured and predicted by platform [ms]."""
    found = {}
    for place, platform in enumerate(predictor.platforms_):
        errors = predictor.held_out_[:, place]
        known = ~np.isnan(errors)
        if known.any():
            measured = predictor.latencies_[known, place] * 1e3
            name = platform.id if _device(predictor) is None else platform.id.removeprefix(f"{platform.device}.")
            factor = float(np.exp(predictor.spreads_[place]))
            found[name] = HeldOut(measured, measured * np.exp(errors[known]), factor=factor)
    return found


def _device(predictor: GraphPredictor) -> str | None:
    """Return the device of the platforms where all have the same."""
    names = {platform.device for platform in predictor.platforms_}
    return names.pop() if len(names) == 1 else None


def _title(predictor: GraphPredictor, known: dict[str, HeldOut]) -> str:
    errors = np.abs(np.concatenate([item.ratios for item in known.values()]) - 1)
    device = _device(predictor)
    where = f" on {device}" if device is not None else ""
    return (
        f"{number_of(len(errors), 'latency', 'latencies')}{where} of networks that a graph network had not seen:\n"
        f"median error {format_percent(float(np.median(errors)))}, {format_percent(float((errors <= 0.1).mean()))} "
        "within 10 %"
    )
