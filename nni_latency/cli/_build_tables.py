# SPDX-License-Identifier: Apache-2.0
"""Tables that ``nni-latency build-lut`` makes: of candidates, operators, estimates, and tables of other devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.markup import escape

import nni_latency.estimators as estimators
import nni_latency.loading as loading
import nni_latency.measurement as measurement
import nni_latency.measurement.runtimes as runtimes
import nni_latency.spaces as spaces
import nni_latency.tables as tables
from nni_latency.cli._console import doubts, print_lines, progress, remarks, results
from nni_latency.cli._estimator_options import ESTIMATOR
from nni_latency.cli._measuring import Measuring, StoreOptions
from nni_latency.cli._option import BATCH_SIZES, OutputOptions, option
from nni_latency.cli._space_options import SpaceOptions, name_space, operator_table_name, plan_for, table_name
from nni_latency.errors import InvalidValueError, MeasurementError, MismatchError
from nni_latency.units import COUNTED_METRICS, format_percent, format_seconds, number_of

#: Random networks among which those to measure are chosen.
_POOL = 2000


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
        "Number of networks to measure, for a space without a measure plan.  [default: 30]",
        type=click.IntRange(1),
        rare=True,
    )
    samples: int | None = option(
        "With --from: measure this many networks, such as 10, and make a table of this device from those of others.",
        type=click.IntRange(3),
    )
    seed: int = option(
        "Random seed for the choice and order of networks.", type=click.IntRange(0), default=0, rare=True
    )


@dataclass(frozen=True)
class TableJob:
    """The tables to be made: of which space, what they hold, and their files."""

    asked: SpaceOptions
    wanted: TableOptions
    output: OutputOptions
    store: StoreOptions


def build_candidate_tables(
    space: Any,
    runtime: runtimes.Runtime,
    protocol: measurement.Protocol,
    job: TableJob,
    meters: tuple[measurement.Meter, ...],
) -> None:
    """Build a table of candidates for each batch size, and report on it; raises as `build_operator_tables` does."""
    metric = job.wanted.metric
    plans = [plan_for(space, job.asked.name, batch_size) for batch_size in job.wanted.batch_sizes]
    # All files are checked before the first table is measured.
    outs = [job.output.path(table_name(plan, runtime.platform, metric)) for plan in plans]
    for plan, out in zip(plans, outs, strict=True):
        if metric in COUNTED_METRICS:
            counted = tables.count_table(plan, metric, runtime.platform)
            table = tables.write_table(counted, out, overwrite=job.output.overwrite)
        else:
            what = f"{number_of(sum(plan.sizes), 'candidate')} of {plan.space}"
            table = _measured_table(plan, what, runtime, protocol, out, job, meters)
        _report_candidates(table, out)


def build_operator_tables(
    space: Any,
    runtime: runtimes.Runtime,
    protocol: measurement.Protocol,
    job: TableJob,
    meters: tuple[measurement.Meter, ...],
) -> None:
    """Build a table of operators for each batch size, and report on it.

    Raises
    ------
    InvalidValueError
        If another metric than latency or energy is asked for, or a file exists.
    MeasurementError
        If the runtime has no operators that could be timed, or nothing can be run.
    """
    asked, wanted = job.asked, job.wanted
    shapes = [
        tuple(spaces.example_inputs_of(space, batch_size, asked.input_size).shape) for batch_size in wanted.batch_sizes
    ]
    # All files are checked before the first table is measured.
    outs = [
        job.output.path(operator_table_name(asked.name, shape, runtime.platform, wanted.metric)) for shape in shapes
    ]
    for batch_size, out in zip(wanted.batch_sizes, outs, strict=True):
        plan = plan_operators(space, batch_size, job)
        operators = number_of(len(plan.ops), "different operator")
        what = f"{number_of(len(plan.networks), 'network')} of {asked.name} with {operators}"
        _report_operators(_measured_table(plan, what, runtime, protocol, out, job, meters), out)


def _measured_table(
    plan: tables.MeasurePlan | tables.OperatorPlan,
    what: str,
    runtime: runtimes.Runtime,
    protocol: measurement.Protocol,
    out: Path,
    job: TableJob,
    meters: tuple[measurement.Meter, ...],
) -> tables.LookupTable:
    """Measure a table behind a progress bar, which says what is measured, and write it."""
    with Measuring(what, runtime, job.store, meters) as measuring:
        return tables.build_table(
            plan, runtime, protocol, out, metric=job.wanted.metric, overwrite=job.output.overwrite, **measuring.how
        )


def _median_half_width(table: tables.LookupTable) -> str:
    spreads = sorted(entry.half_width / entry.value for entry in table.entries)
    return format_percent(spreads[len(spreads) // 2])


def plan_operators(space: Any, batch_size: int, job: TableJob) -> tables.OperatorPlan:
    """Draw the networks whose operators a table is to hold, behind a progress bar."""
    with progress(remarks()) as bar:
        task = bar.add_task(f"drawing networks of {escape(job.asked.name)}", total=1.0, left="")
        return spaces.operator_plan(
            space,
            n_networks=job.wanted.networks or spaces.N_NETWORKS,
            batch_size=batch_size,
            input_size=job.asked.input_size,
            seed=job.wanted.seed,
            on_progress=lambda share: bar.update(task, completed=share),
        )


def _report_candidates(table: tables.LookupTable, out: Path) -> None:
    console = results()
    console.print(f"Wrote {escape(str(out))}")
    if table.protocol is None:
        console.print(f"Computed the {table.metric} of {number_of(len(table.entries), 'candidate')}")
        return
    console.print(
        f"{number_of(table.rounds, 'round')} in {format_seconds(table.duration)}, coverage "
        f"{format_percent(table.coverage)}, median half-width of the {format_percent(table.protocol.confidence)} "
        f"intervals {_median_half_width(table)}"
    )
    print_lines(remarks(), doubts(table))


def _report_operators(table: tables.LookupTable, out: Path) -> None:
    console = results()
    console.print(f"Wrote {escape(str(out))}")
    console.print(
        f"{number_of(len(table.operators), 'operator')} in {number_of(len(table.networks), 'network')}, "
        f"{number_of(table.rounds, 'round')} in {format_seconds(table.duration)}; {format_percent(table.coverage)} of "
        f"the operators of other networks are among them, the rest are predicted; median half-width of the intervals "
        f"{_median_half_width(table)}"
    )
    print_lines(remarks(), doubts(table))


def build_estimated(space: Any, source: str, job: TableJob) -> None:
    """Write a table of estimates for each batch size, and report on it.

    Raises
    ------
    InvalidValueError
        If the estimator knows no layers, is of another metric, or a file exists.
    """
    estimator, metric = loading.load_estimator(source), job.wanted.metric
    if not isinstance(estimator, estimators.LayerEstimator):
        raise InvalidValueError(f"--from needs a layer-based estimator, but {source!r} estimates whole networks.")
    if estimator.metric != metric:
        raise InvalidValueError(f"The estimator {source!r} gives {estimator.metric}, but --metric is {metric}.")
    for batch_size in job.wanted.batch_sizes:
        if hasattr(space, "measure_plan"):
            plan = plan_for(space, job.asked.name, batch_size)
            out = job.output.path(table_name(plan, estimator.platform, metric))
            made = estimators.estimate_table(estimator, plan)
        else:
            operators = plan_operators(space, batch_size, job)
            name = operator_table_name(job.asked.name, operators.input_shape, estimator.platform, metric)
            out = job.output.path(name)
            made = estimators.estimate_table(estimator, operators)
        made.save(out)
        _report_estimates(made, out)


def _report_estimates(table: tables.LookupTable, out: Path) -> None:
    if table.layers:
        what = f"{number_of(len(table.entries), 'candidate')} of {number_of(len(table.layers), 'layer')}"
    else:
        share = format_percent(table.coverage)
        what = f"{number_of(len(table.operators), 'operator')}, {share} of those of other networks among them"
    results().print(f"Wrote {escape(str(out))}: {what}, estimated for {table.platform.id}")
    print_lines(remarks(), table.remarks[1:])


def build_adapted(job: TableJob, samples: int, runtime: runtimes.Runtime, protocol: measurement.Protocol) -> None:
    """Write a table of this device from a few measurements and tables of known devices, and report on it.

    Measures the most informative networks in interleaved rounds. The tables show which costs are typical.

    Raises
    ------
    InvalidValueError
        If a table is given twice or is of operators, or a file exists.
    MismatchError
        If the tables do not belong together.
    MeasurementError
        If no network can be measured.
    """
    seed = job.wanted.seed
    known = _known_tables(job.wanted.sources)
    plan = _plan_like(next(iter(known.values())), job.asked.space)
    estimator = estimators.TransferEstimator(plan, platform=runtime.platform, random_state=seed)
    out = job.output.path(table_name(plan, runtime.platform, estimator.metric))
    estimator.fit_tables(known)
    networks = _chosen_networks(estimator, plan, samples, seed)
    with Measuring(f"{number_of(len(networks), 'network')} of {plan.space}", runtime, job.store) as measuring:
        measured = tables.measure_networks(plan, networks, runtime, protocol, **measuring.how)
    table = _adapted_table(estimator, measured, protocol)
    tables.write_table(table, out, overwrite=job.output.overwrite)
    _report_adapted(estimator, table, measured, out)


def _known_tables(names: Sequence[str]) -> dict[str, tables.LookupTable]:
    """Read the tables of known devices, by their platforms or, where these are alike, by their files."""
    found: dict[str, tables.LookupTable] = {}
    for name in names:
        table = loading.load_table(name)
        table.check_layers(f"--samples with {name!r}")
        key = table.platform.id if table.platform.id not in found else str(name)
        if key in found:
            raise InvalidValueError(f"The table {name!r} is given twice. Name each known device once.")
        found[key] = table
    return found


def _plan_like(table: tables.LookupTable, asked: str | None) -> tables.MeasurePlan:
    name = name_space(table, asked)
    arguments = {key: value for key, value in table.space.arguments.items() if value is not None}
    plan = plan_for(spaces.make_space(name, arguments), name, table.batch_size)
    differences = table.space.differences(plan.space)
    if differences:
        raise MismatchError(f"The space of the table cannot be made as it was: {'; '.join(differences)}.")
    return plan


def _chosen_networks(
    estimator: estimators.TransferEstimator, plan: tables.MeasurePlan, count: int, seed: int
) -> dict[str, dict[str, str]]:
    """Choose networks of the space, ``{layer: choice}`` with every layer, by name."""
    generator = np.random.default_rng(seed)
    sizes = [len(layer.candidates) for layer in plan.searched]
    pool = np.stack([generator.integers(0, size, _POOL) for size in sizes], axis=1)
    fixed = {layer.name: layer.default or "" for layer in plan.layers if not layer.searched}
    found = {}
    for place, pick in enumerate(estimator.suggest(count, pool)):
        chosen = {
            layer.name: list(layer.candidates)[index]
            for layer, index in zip(plan.searched, pool[pick].tolist(), strict=True)
        }
        found[f"network {place + 1}"] = {layer.name: {**fixed, **chosen}[layer.name] for layer in plan.layers}
    return found


def _adapted_table(
    estimator: estimators.TransferEstimator, measured: tables.NetworkMeasurements, protocol: measurement.Protocol
) -> tables.LookupTable:
    """Adapt to what could be measured, and write the table of it."""
    if not measured.networks:
        raise MeasurementError(f"No network could be measured: {next(iter(measured.failures.values()), 'none given')}.")
    times = list(measured.networks.values())
    labels = estimator.labels_
    samples = [{label: item.selection[label] for label in labels} for item in times]
    estimator.fit(samples, [item.summary.value for item in times])
    return estimator.to_table(
        protocol=protocol, duration=measured.duration, reference=measured.reference, drift=measured.drift
    )


def _report_adapted(
    estimator: estimators.TransferEstimator, table: tables.LookupTable, measured: tables.NetworkMeasurements, out: Path
) -> None:
    console = results()
    console.print(f"Wrote {escape(str(out))}")
    entries = [entry for layer in table.searched for entry in layer.entries.values()]
    seen = sum(entry.n_samples > 0 for entry in entries)
    console.print(
        f"{number_of(len(measured.networks), 'network')} in {format_seconds(measured.duration)}; {seen} of "
        f"{number_of(len(entries), 'entry', 'entries')} in one of them, the others inferred from known devices; "
        "measurement noise "
        f"{format_percent(estimator.noise_)}",
    )
    print_lines(console, table.remarks)
    for name, reason in measured.failures.items():
        remarks().print(f"Could not be run: {escape(name)}: {escape(reason)}")
