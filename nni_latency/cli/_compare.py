"""``nni-latency compare``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from nni_latency.cli._option import grouped, option
from nni_latency.cli._predict import chosen_platforms, predicted_rows
from nni_latency.cli._predictor_options import OnnxOptions, PredictorOptions
from nni_latency.cli._report import Column, Grid, Report, ReportingCommand, print_report
from nni_latency.errors import InvalidValueError
from nni_latency.units import format_seconds


@dataclass(frozen=True)
class _WhereOptions:
    """Where they are compared."""

    platform: tuple[str, ...] = option("Platform; repeat for several.  [default: all]", "--platform", multiple=True)


@click.command("compare", cls=ReportingCommand)
@click.argument("models", nargs=-1, required=True, type=click.Path(path_type=Path))
@grouped()
def command(models: tuple[Path, ...], predictor: PredictorOptions, network: OnnxOptions, where: _WhereOptions) -> None:
    """Compare the predicted latencies of ONNX files, platform by platform.

    MODELS are two ONNX files or more. A difference is sure where the intervals do not meet.
    """
    if len(models) < 2:
        raise InvalidValueError("Name two ONNX files or more to compare.")
    if len(set(models)) < len(models):
        raise InvalidValueError("An ONNX file is compared with itself. Name each file once.")
    known = predictor.load()
    wanted = chosen_platforms(known, where.platform)
    predicted = [
        {"model": str(path), **row} for path in models for row in predicted_rows(known, network.read(path), wanted)
    ]
    rows = []
    for name in wanted:
        first, *others = sorted((row for row in predicted if row["platform"] == name), key=lambda row: row["latency_s"])
        last = others[-1]
        rows.append(
            {
                "platform": name,
                **{
                    str(path): next(r["latency_s"] for r in (first, *others) if r["model"] == str(path))
                    for path in models
                },
                "fastest": first["model"],
                "factor": last["latency_s"] / first["latency_s"],
                "sure": first["high_s"] < others[0]["low_s"],
            }
        )
    columns = [
        Column("platform", "platform"),
        *(Column(path.name, str(path), metric="latency") for path in models),
        Column("fastest", "fastest"),
        Column("by a factor of", "factor", "{:.2f}".format),
        Column("sure", "sure", lambda sure: "yes" if sure else "no"),
    ]
    ranked = sorted(predicted, key=lambda row: row["latency_s"])
    best, worst = ranked[0], ranked[-1]
    lines = [
        f"Fastest: {best['model']} on {best['platform']}, {format_seconds(best['latency_s'])}.",
        f"Slowest: {worst['model']} on {worst['platform']}, {format_seconds(worst['latency_s'])}.",
    ]
    print_report(Report(Grid(rows, columns), {"platforms": rows, "predictions": ranked}, after=lines))
