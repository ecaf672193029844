"""The options of ``nni-latency build-lut`` alone."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import click

import nni_latency.measurement as measurement
from nni_latency.cli._estimator_options import ESTIMATOR
from nni_latency.cli._measuring_options import EndingOptions, StoreOptions
from nni_latency.cli._option import BATCH_SIZES, DURATION, option
from nni_latency.cli._output_options import OutputOptions
from nni_latency.cli._space_options import SpaceOptions
from nni_latency.units import COUNTED_METRICS

_DEFAULTS = measurement.Protocol()


@dataclass(frozen=True)
class TableOptions:
    """What a table holds."""

    batch_sizes: tuple[int, ...] = option(
        "Images per run; several, such as 1,8,32, build one table each.",
        "--batch-size",
        type=BATCH_SIZES,
        default="1",
    )
    metric: str = option(
        "Metric of the table; memory is computed, not measured.",
        type=click.Choice(["latency", "throughput", "energy", "power", *COUNTED_METRICS]),
        default="latency",
    )
    networks: int | None = option(
        "Number of networks to measure, for a space without a measure plan.  [default: 30]", type=click.IntRange(1)
    )
    source: str | None = option(
        "Measure nothing: tabulate the estimates of this estimator for its platform, such as acts:FILE.",
        "--from",
        metavar=ESTIMATOR,
    )
    seed: int = option("Random seed for the choice and order of networks.", type=click.IntRange(0), default=0)


@dataclass(frozen=True)
class VisitOptions(EndingOptions):
    """How networks are measured, and when it ends."""

    timeout: float = option(
        "Time limit per candidate; a slower one is recorded as failed.",
        type=DURATION,
        default=f"{_DEFAULTS.timeout:g}s",
    )
    processes: int = option(
        "Number of worker processes that share the rounds; each places weights differently in memory.",
        type=click.IntRange(1),
        default=_DEFAULTS.processes,
    )
    n_warmup: int = option("Untimed runs per visit of a network.", type=click.IntRange(0), default=_DEFAULTS.n_warmup)
    n_run: int = option("Timed runs per visit of a network.", type=click.IntRange(1), default=_DEFAULTS.n_run)
    outlier: float = option("Share of samples to drop at each end.", default=_DEFAULTS.outlier)

    def protocol(self, threads: int, seed: int = 0) -> measurement.Protocol:
        """Return the protocol of a table."""
        return dataclasses.replace(
            super().protocol(threads, seed),
            timeout=self.timeout,
            processes=self.processes,
            n_warmup=self.n_warmup,
            n_run=self.n_run,
            outlier=self.outlier,
        )


@dataclass(frozen=True)
class TableJob:
    """The tables to be made: of which space, what they hold, and their files."""

    asked: SpaceOptions
    wanted: TableOptions
    output: OutputOptions
    store: StoreOptions
