"""``nni-latency transfer``."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.markup import escape

from nni_latency.cli._console import results
from nni_latency.cli._options import given_arguments, make_space, space_options
from nni_latency.errors import InvalidValueError
from nni_latency.estimators import TransferEstimator, score
from nni_latency.estimators.transfer import (
    UNITS,
    CsvColumns,
    Encoding,
    architectures_of,
    encoding_of,
    latencies_of,
    read_columns,
)
from nni_latency.files import check_writable, write_atomically
from nni_latency.platforms import Platform
from nni_latency.units import format_percent, format_seconds

_ROWS = re.compile(r"(\d+)-(\d+)")

_FILE = click.Path(path_type=Path)


@click.command("transfer")
@space_options
@click.option("--architectures", required=True, type=_FILE, help="CSV: index, and a column by layer or of strings.")
@click.option("--sources", required=True, type=_FILE, help="CSV: index, and a series of latencies by known device.")
@click.option("--target", type=_FILE, help="CSV: index and latencies of the new device; without it, what to measure.")
@click.option("--source-devices", metavar="NAME,...", help="Series of --sources that are used.  [default: all]")
@click.option("--target-device", metavar="NAME", help="Series of --target, if it has several.")
@click.option("--samples", type=click.IntRange(3), default=10, show_default=True, help="Networks measured in all.")
@click.option("--fit-rows", metavar="FIRST-LAST", help="Rows that may be learned from and measured.  [default: all]")
@click.option("--unit", type=click.Choice(list(UNITS)), default="ms", show_default=True, help="Unit in all the files.")
@click.option("--check-units/--no-check-units", default=True, show_default=True, help="Refuse series of another unit.")
@click.option("--platform", metavar="DEVICE|ID", help="The new device, as its table will say.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of what is drawn.")
@click.option("--out", required=True, type=_FILE, help="CSV of the predictions, or of the networks to measure.")
@click.option("--table", type=_FILE, help="Write the new device's lookup table, too.")
@click.option("--save", type=_FILE, help="Write the fitted estimator, too.")
def command(**options: Any) -> None:
    """Learn a new device from a few networks and devices that are known.

    Where --target holds more networks than --samples, the most telling ones are taken for measured, and the others show
    how good the predictions are. Where it holds no more, all of them are.
    """
    outputs = [options[name] for name in ("out", "table", "save") if options[name]]
    if options["table"] and not given_arguments(options):
        raise InvalidValueError(
            "The --table says what its candidates compute: give the space's --preset, or more of it."
        )
    for path in outputs:
        check_writable(path)
    files = read_columns(options["architectures"])
    encoding = _encoding(options)
    indices = encoding.indices(architectures_of(files, encoding.labels))
    rows = _fit_rows(options["fit_rows"], len(indices))
    platform = Platform.parse(options["platform"]) if options["platform"] else None
    estimator = TransferEstimator(
        encoding, platform=platform, check_units=options["check_units"], random_state=options["seed"]
    ).fit_sources(indices[rows], _sources(options, files, rows))
    if options["target"] is None:
        picks = rows[estimator.suggest(options["samples"])]
        write_atomically(options["out"], _csv(_listing(files, picks)))
        results().print(
            f"Measure these {len(picks)} networks and give their latencies with --target; wrote "
            f"{escape(str(options['out']))}",
            soft_wrap=True,
        )
        return
    target = _target(options, files)
    picks = _picks(estimator, indices, rows, target, options["samples"])
    estimator.fit(indices[picks], target[picks])
    _write(estimator, indices, files, options)
    _report(estimator, indices, files, target, picks, rows if options["fit_rows"] else picks)
    results().print(f"Wrote {escape(', '.join(map(str, outputs)))}", soft_wrap=True)


def _encoding(options: dict[str, Any]) -> Encoding:
    name, given = options["space"], given_arguments(options)
    if name.lower().replace("-", "") == "nasbench201":
        return encoding_of("nasbench201")
    if name == "fbnet" and not given:
        # Layers and choices are the same in both presets; what candidates compute is that of small pictures.
        given = {"preset": "cifar"}
    return encoding_of(make_space(name, given))


def _fit_rows(text: str | None, count: int) -> NDArray[np.int64]:
    if text is None:
        return np.arange(count)
    match = _ROWS.fullmatch(text.strip())
    first, last = (int(match[1]), int(match[2])) if match else (1, 0)
    if not first <= last < count:
        raise InvalidValueError(f"The --fit-rows must be FIRST-LAST, from 0 to {count - 1}. Got {text!r}.")
    return np.arange(first, last + 1)


def _sources(options: dict[str, Any], files: CsvColumns, rows: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
    wanted = [name.strip() for name in (options["source_devices"] or "").split(",") if name.strip()]
    series = latencies_of(read_columns(options["sources"]), files.index, options["unit"], wanted)
    return {name: values[rows] for name, values in series.items()}


def _target(options: dict[str, Any], files: CsvColumns) -> NDArray[np.float64]:
    """Return the latencies of the new device [s], NaN for networks that were not measured."""
    content, device = read_columns(options["target"]), options["target_device"]
    if device is None and len(content.columns) != 1:
        raise InvalidValueError(
            f"The file {str(content.path)!r} has {len(content.columns)} series: {', '.join(content.columns)}. "
            "Name the new device with --target-device."
        )
    series = latencies_of(content, files.index, options["unit"], [device] if device else [])
    return next(iter(series.values()))


def _picks(
    estimator: TransferEstimator,
    indices: NDArray[np.int64],
    rows: NDArray[np.int64],
    target: NDArray[np.float64],
    samples: int,
) -> NDArray[np.int64]:
    """Return the rows that are taken for measured."""
    measured = rows[~np.isnan(target[rows])]
    if len(measured) <= samples:
        return measured
    return measured[estimator.suggest(samples, indices[measured])]


def _write(
    estimator: TransferEstimator, indices: NDArray[np.int64], files: CsvColumns, options: dict[str, Any]
) -> None:
    unit = options["unit"]
    ends = np.stack(estimator.predict_interval(indices)) / UNITS[unit]
    header = ["index", *(f"{name}_{unit}" for name in ("predicted", "low", "high"))]
    lines = [[name, *(f"{value:.6g}" for value in row)] for name, row in zip(files.index, ends.T, strict=True)]
    if options["table"]:
        estimator.to_table().save(options["table"])
    if options["save"]:
        estimator.save(options["save"])
    write_atomically(options["out"], _csv([header, *lines]))


def _report(
    estimator: TransferEstimator,
    indices: NDArray[np.int64],
    files: CsvColumns,
    target: NDArray[np.float64],
    picks: NDArray[np.int64],
    left_out: NDArray[np.int64],
) -> None:
    console = results()
    names = [files.index[place] for place in picks]
    console.print(f"Measured: {len(picks)} networks, {escape(', '.join(names))}", soft_wrap=True)
    alike = sorted(estimator.similarity_.items(), key=lambda item: -item[1])[:3]
    console.print(f"Most like: {escape(', '.join(f'{name} ({share:.0%})' for name, share in alike if share > 0.005))}")
    console.print(f"Noise of a measurement: {format_percent(estimator.noise_)}")
    for place in estimator.suspects_:
        console.print(
            f"The latency of the network {escape(names[place])} does not fit the rest and counts less: "
            f"{format_seconds(float(target[picks[place]]))}. Measure it again."
        )
    others = np.setdiff1d(np.flatnonzero(np.isfinite(target) & (target > 0)), np.union1d(picks, left_out))
    if len(others):
        values, low, high = estimator.predict_interval(indices[others])
        scores, truth = score(values, target[others]), target[others]
        console.print(
            f"On {scores.n} other networks: Spearman {scores.spearman:.3f}, MAPE {format_percent(scores.mape)}, within "
            f"10 % {format_percent(scores.within10)}, inside the interval "
            f"{format_percent(float(np.mean((truth >= low) & (truth <= high))))}"
        )


def _listing(files: CsvColumns, picks: NDArray[np.int64]) -> list[list[str]]:
    rows = [[files.index[place], *(column[place] for column in files.columns.values())] for place in picks]
    return [["index", *files.columns], *rows]


def _csv(rows: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
