"""The options of ``nni-latency build-lut`` alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from nni_latency.cli._estimator_options import ESTIMATOR
from nni_latency.cli._measuring_options import StoreOptions
from nni_latency.cli._option import BATCH_SIZES, option, output_option
from nni_latency.cli._output_options import OutputOptions
from nni_latency.cli._space_options import SpaceOptions
from nni_latency.units import COUNTED_METRICS


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
    sources: tuple[str, ...] = option(
        "Measure nothing: tabulate the estimates of this estimator for its platform, such as acts:FILE. With "
        "--samples, a table of a known device; repeat for several.",
        "--from",
        multiple=True,
        metavar=ESTIMATOR,
    )
    networks: int | None = option(
        "Number of networks to measure, for a space without a measure plan.  [default: 30]", type=click.IntRange(1)
    )
    samples: int | None = option(
        "With --from: measure this many networks, such as 10, and make a table of this device from those of others.",
        type=click.IntRange(3),
    )
    save: Path | None = output_option("With --from and --samples, also write the fitted estimator to this file.")
    seed: int = option("Random seed for the choice and order of networks.", type=click.IntRange(0), default=0)


@dataclass(frozen=True)
class TableJob:
    """The tables to be made: of which space, what they hold, and their files."""

    asked: SpaceOptions
    wanted: TableOptions
    output: OutputOptions
    store: StoreOptions
