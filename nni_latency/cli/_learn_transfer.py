# SPDX-License-Identifier: Apache-2.0
"""``nni-latency learn transfer``."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from numpy.typing import NDArray
from rich.markup import escape

import nni_latency.estimators as estimators
import nni_latency.estimators.transfer as transfer
from nni_latency.cli._console import results
from nni_latency.cli._option import grouped, option, output_option, parsed
from nni_latency.cli._outputs import WritingCommand
from nni_latency.cli._space_options import SpaceArguments
from nni_latency.errors import InvalidValueError
from nni_latency.files import is_file, naming, write_atomically
from nni_latency.platforms import Platform
from nni_latency.units import format_percent, format_rank_correlation, format_seconds, number_of


class _Series(NamedTuple):
    """Series of latencies in a file; without names, all of them."""

    path: Path
    names: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> _Series:
        """Read ``FILE`` or ``FILE:NAME,...``; a file that exists is a file, whatever colons its name has."""
        path, colon, names = text.rpartition(":")
        if not (path and colon) or is_file(text) or re.search(r"[/\\]", names):
            return cls(Path(text))
        found = tuple(name.strip() for name in names.split(",") if name.strip())
        if not found:
            raise InvalidValueError(f"Names of series must follow the colon, as in {path}:NAME. Got {text!r}.")
        return cls(Path(path), found)


_SERIES = parsed("file[:name,...]", _Series.parse)


@dataclass(frozen=True)
class _FileOptions:
    """The files of architectures and latencies."""

    architectures: Path = option("CSV file: an index, and one column per layer or one of strings.", required=True)
    sources: _Series = option(
        "CSV file: an index, and one series of latencies per known device. Behind a colon, the series to use.",
        "--from",
        type=_SERIES,
        required=True,
    )
    target: _Series | None = option(
        "CSV file: an index and latencies of the new device; of several series, name one behind a colon. Without it, "
        "the networks to measure are written.",
        "--measured",
        type=_SERIES,
    )
    unit: str = option("Unit of the latencies in all files.", type=click.Choice(list(transfer.UNITS)), default="ms")
    check_unit: bool = option("Refuse series that seem to have another unit, or accept them.", default=True, rare=True)


@dataclass(frozen=True)
class _FitOptions:
    """What is learned from."""

    samples: int = option("Number of networks to measure in all.", type=click.IntRange(3), default=10)
    platform: str | None = option("The new device, to be recorded in its table.", metavar="DEVICE|ID")
    seed: int = option("Random seed for the choice of networks.", type=click.IntRange(0), default=0, rare=True)


@dataclass(frozen=True)
class _ResultOptions:
    """The files that are written."""

    out: Path = output_option(
        "CSV file of the predictions, or of the networks to measure.", "-o", "--out", required=True
    )
    table: Path | None = output_option("Also write the lookup table of the new device to this file.")
    save: Path | None = output_option("Also write the fitted estimator to this file.", rare=True)

    @property
    def paths(self) -> list[Path]:
        """All files that are written."""
        return [path for path in (self.out, self.table, self.save) if path]


@click.command("transfer", cls=WritingCommand)
@grouped()
def learn_transfer(asked: SpaceArguments, files: _FileOptions, fit: _FitOptions, written: _ResultOptions) -> None:
    """Learn a new device from a few networks and known devices.

    If --measured holds more networks than --samples, the most informative ones are learned from, and the others show
    how good the predictions are. Otherwise all are learned from.
    """
    networks = transfer.read_columns(files.architectures)
    encoding = _encoding(asked)
    with naming(files.architectures):
        indices = encoding.indices(transfer.architectures_of(networks, encoding.labels))
    platform = Platform.parse(fit.platform) if fit.platform else None
    estimator = estimators.TransferEstimator(
        encoding, platform=platform, check_units=files.check_unit, random_state=fit.seed
    )
    with naming(files.sources.path):
        estimator.fit_sources(indices, _sources(files, networks))
    if files.target is None:
        picks = estimator.suggest(fit.samples)
        write_atomically(written.out, _csv(_listing(networks, picks)))
        results().print(
            f"Measure these {number_of(len(picks), 'network')} and give their latencies with --measured; wrote "
            f"{escape(str(written.out))}",
        )
        return
    target = _target(files, files.target, networks)
    picks = _picks(estimator, indices, target, fit.samples)
    estimator.fit(indices[picks], target[picks])
    _write(estimator, indices, networks, files.unit, written)
    _report(estimator, indices, networks, target, picks)
    results().print(f"Wrote {escape(', '.join(map(str, written.paths)))}")


def _encoding(asked: SpaceArguments) -> transfer.Encoding:
    if asked.name.lower().replace("-", "") == "nasbench201":
        return transfer.encoding_of("nasbench201")
    if asked.name == "fbnet" and not asked.given:
        # Both presets have the same layers and choices; the candidates compute what they do for small images.
        asked = replace(asked, space_args=({"preset": "cifar"},))
    return transfer.encoding_of(asked.make())


def _sources(files: _FileOptions, networks: transfer.CsvColumns) -> dict[str, NDArray[np.float64]]:
    content = transfer.read_columns(files.sources.path)
    return dict(transfer.latencies_of(content, networks.index, files.unit, list(files.sources.names)))


def _target(files: _FileOptions, asked: _Series, networks: transfer.CsvColumns) -> NDArray[np.float64]:
    """Return the latencies of the new device [s], NaN for networks that were not measured."""
    content = transfer.read_columns(asked.path)
    names = asked.names or tuple(content.columns)
    if len(names) != 1:
        raise InvalidValueError(
            f"The new device is one series. The file {str(content.path)!r} has {', '.join(content.columns)}. Name one "
            f"of them: --measured {asked.path}:NAME."
        )
    series = transfer.latencies_of(content, networks.index, files.unit, list(names))
    return next(iter(series.values()))


def _picks(
    estimator: estimators.TransferEstimator,
    indices: NDArray[np.int64],
    target: NDArray[np.float64],
    samples: int,
) -> NDArray[np.int64]:
    """Return the rows that are learned from."""
    measured = np.flatnonzero(~np.isnan(target))
    if len(measured) <= samples:
        return measured
    return measured[estimator.suggest(samples, indices[measured])]


def _write(
    estimator: estimators.TransferEstimator,
    indices: NDArray[np.int64],
    networks: transfer.CsvColumns,
    unit: str,
    written: _ResultOptions,
) -> None:
    ends = np.stack(estimator.predict_interval(indices)) / transfer.UNITS[unit]
    header = ["index", *(f"{name}_{unit}" for name in ("predicted", "low", "high"))]
    lines = [[name, *(f"{value:.6g}" for value in row)] for name, row in zip(networks.index, ends.T, strict=True)]
    if written.table:
        estimator.to_table().save(written.table)
    if written.save:
        estimator.save(written.save)
    write_atomically(written.out, _csv([header, *lines]))


def _report(
    estimator: estimators.TransferEstimator,
    indices: NDArray[np.int64],
    networks: transfer.CsvColumns,
    target: NDArray[np.float64],
    picks: NDArray[np.int64],
) -> None:
    console = results()
    names = [networks.index[place] for place in picks]
    console.print(f"Measured: {number_of(len(picks), 'network')}, {escape(', '.join(names))}")
    alike = sorted(estimator.similarity_.items(), key=lambda item: -item[1])[:3]
    similar = ", ".join(f"{name} ({format_percent(share)})" for name, share in alike if share > 0.005)
    console.print(f"Most similar: {escape(similar)}")
    console.print(f"Measurement noise: {format_percent(estimator.noise_)}")
    for place in estimator.suspects_:
        console.print(
            f"The latency of the network {escape(names[place])} does not fit the others and counts less: "
            f"{format_seconds(float(target[picks[place]]))}. Measure it again."
        )
    others = np.setdiff1d(np.flatnonzero(np.isfinite(target) & (target > 0)), picks)
    if len(others):
        values, low, high = estimator.predict_interval(indices[others])
        scores, truth = estimators.score(values, target[others]), target[others]
        console.print(
            f"On {number_of(scores.n, 'other network')}: Spearman {format_rank_correlation(scores.spearman)}, MAPE "
            f"{format_percent(scores.mape)}, within 10 % {format_percent(scores.within10)}, inside the interval "
            f"{format_percent(float(np.mean((truth >= low) & (truth <= high))))}"
        )


def _listing(networks: transfer.CsvColumns, picks: NDArray[np.int64]) -> list[list[str]]:
    rows = [[networks.index[place], *(column[place] for column in networks.columns.values())] for place in picks]
    return [["index", *networks.columns], *rows]


def _csv(rows: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
