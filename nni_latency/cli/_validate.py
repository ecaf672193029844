# SPDX-License-Identifier: Apache-2.0
"""``nni-latency validate``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

import nni_latency.estimators as estimators
import nni_latency.loading as loading
import nni_latency.measurement as measurement
import nni_latency.plots as plots
import nni_latency.spaces as spaces
import nni_latency.tables as tables
import nni_latency.validation as validation
from nni_latency.cli._console import check_reached, loading_remark, print_lines, remarks
from nni_latency.cli._estimator_options import missing_option
from nni_latency.cli._measuring import (
    DeviceOptions,
    Measuring,
    MeterOptions,
    ProtocolOptions,
    StoreOptions,
    check_known,
)
from nni_latency.cli._option import grouped, option, output_option, parsed
from nni_latency.cli._outputs import outputs
from nni_latency.cli._record_report import validation_report
from nni_latency.cli._remote_options import RemoteOptions
from nni_latency.cli._report import ReportingCommand, print_report
from nni_latency.cli._space_options import SPACE_OF_TABLE, SpaceOptions, choose_space, plan_for
from nni_latency.errors import MismatchError
from nni_latency.units import number_of

#: How networks are measured; budget and number of threads are those of the command.
_USUAL = measurement.Protocol(half_width=0.01)


@dataclass(frozen=True)
class _ValidateOptions:
    """Which networks are measured, and what the estimator must reach."""

    networks: int = option("Number of random networks.", type=click.IntRange(0), default=24, rare=True)
    seed: int = option("Random seed for the networks.", type=click.IntRange(0), default=0, rare=True)
    batch_size: int | None = option(
        "Images per run.  [default: the table's; a different value is an error]", type=click.IntRange(1)
    )
    normalise: bool = option(
        "Correct for a change of machine speed since the table was built.", default=True, rare=True
    )
    missing: Literal["error", "nearest", "predict"] | None = missing_option(rare=True)
    requirements: tuple[validation.Requirement, ...] = option(
        "Exit with code 1 if the score misses this limit, such as within10=0.95 or mape=0.05; repeat for several.",
        "--require",
        type=parsed("score=limit", validation.Requirement.parse),
        multiple=True,
        rare=True,
    )
    out: Path | None = output_option("JSON file of the result.  [default: named after the table]", "-o", "--out")
    plot: Path | None = output_option("PNG file of the plots.  [default: next to the JSON file]", rare=True)


@click.command("validate", cls=ReportingCommand)
@click.argument("estimator", metavar="TABLE")
@grouped(space=SPACE_OF_TABLE, budget={"default": "90s"})
def command(
    estimator: str,
    asked: SpaceOptions,
    wanted: _ValidateOptions,
    device: DeviceOptions,
    ending: ProtocolOptions,
    metered: MeterOptions,
    store: StoreOptions,
    where: RemoteOptions,
) -> None:
    """Validate a table, or any other estimator, on unseen networks.

    TABLE is a file, a shipped table or a registered estimator. Measures random networks, published networks and the
    extremes of the space as a whole, in interleaved rounds, and compares them with the estimates.

    An interrupted run can be resumed: run the same command again.
    """
    name = Path(estimator).name.removesuffix(".json").replace(":", "-") or "estimator"
    out = wanted.out or outputs().claim(Path(f"{name}.validation.json"))
    plot = wanted.plot or outputs().claim(out.with_suffix(".png"))
    with loading_remark("Loading PyTorch, the estimator and the networks"):
        made = loading.load_estimator(estimator, missing=wanted.missing)
        plan = _source(made, asked, wanted.batch_size)
        check_known(made.platform)
        platform = device.of(made.platform)
        runtime = where.runtime_like(made.platform, platform)
        networks = validation.draw_networks(plan, wanted.networks, seed=wanted.seed)
        # Before measuring, so that a mismatch is reported at once.
        predicted = validation.predict_networks(made, plan, networks, runtime.platform)
        if wanted.normalise:
            predicted |= validation.predict_references(made, plan, tables.reference_networks(plan, networks))
    meters = where.meters(metered, made.metric, platform.device, runtime)
    protocol = ending.of(_USUAL, platform.threads)
    title = str(plan.space) if isinstance(plan, tables.MeasurePlan) else plan.space.name
    with Measuring(f"{number_of(len(networks), 'network')} of {title}", runtime, store, meters) as measuring:
        measured = tables.measure_networks(plan, networks, runtime, protocol, metric=made.metric, **measuring.how)
    found = validation.validate(made, plan, measured, normalise=wanted.normalise, predicted=predicted)
    validation.save_validation(found, out)
    plots.draw_validation(found, plot)
    print_report(validation_report(found, [f"Wrote {out} and {plot}"]))
    print_lines(remarks(), (f"Could not be run: {name}: {reason}" for name, reason in found.failures.items()))
    print_lines(remarks(), found.fallbacks)
    check_reached(wanted.requirements, found.scores)


def _source(
    estimator: estimators.Estimator, asked: SpaceOptions, batch_size: int | None
) -> tables.MeasurePlan | spaces.SampledSpace:
    """Return the space whose networks are measured: the estimator's own, or the one asked for."""
    chosen = choose_space(estimator, asked, batch_size)
    space = chosen.make()
    table = estimator.table if isinstance(estimator, estimators.TableEstimator) else None
    if table is not None and table.operators and table.space.name != tables.OPERATORS:
        if not spaces.is_space(table.space, space):
            raise MismatchError(f"The table belongs to the space {table.space.name!r}, not to {chosen.name!r}.")
        seen = tuple(spaces.check_sample(space, network.sample) for network in table.networks)
        return spaces.SampledSpace(space, table.input_shape, seen)
    if hasattr(space, "measure_plan"):
        return plan_for(space, chosen.name, chosen.batch_size)
    return spaces.SampledSpace(space, tuple(chosen.example_inputs(space).shape))
