"""``nni-latency build-lut --from --samples``: a table of this device from tables of other devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.markup import escape

import nni_latency.estimators as estimators
import nni_latency.loading as loading
import nni_latency.measurement as measurement
import nni_latency.measurement.runtimes as runtimes
import nni_latency.spaces as spaces
import nni_latency.tables as tables
from nni_latency.cli._build_options import TableJob
from nni_latency.cli._console import print_lines, remarks, results
from nni_latency.cli._progress import Measuring
from nni_latency.cli._space_options import name_space, plan_for, table_name
from nni_latency.errors import InvalidValueError, MeasurementError, MismatchError
from nni_latency.units import format_percent, format_seconds, number_of

#: Random networks among which those to measure are chosen.
_POOL = 2000


def build_adapted(job: TableJob, samples: int, runtime: runtimes.Runtime, protocol: measurement.Protocol) -> None:
    """Write a table of this device from a few measurements and tables of known devices, and report on it.

    Measures the most informative networks in interleaved rounds. The tables show which costs are typical.

    Parameters
    ----------
    job : TableJob
        The table to be made, with the names of the known tables.
    samples : int
        Number of networks to measure.
    runtime : Runtime
        What executes them.
    protocol : Protocol
        How to measure.

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
    known = _tables(job.wanted.sources)
    plan = _plan(next(iter(known.values())), job.asked.space)
    estimator = estimators.TransferEstimator(plan, platform=runtime.platform, random_state=seed)
    out = job.output.path(table_name(plan, runtime.platform, estimator.metric))
    estimator.fit_tables(known)
    networks = _networks(estimator, plan, samples, seed)
    with Measuring(f"{number_of(len(networks), 'network')} of {plan.space}", runtime, job.store) as measuring:
        measured = tables.measure_networks(plan, networks, runtime, protocol, **measuring.how)
    table = _fit(estimator, measured, protocol)
    tables.write_table(table, out, overwrite=job.output.overwrite)
    if job.wanted.save:
        estimator.save(job.wanted.save)
    _report(estimator, table, measured, out)


def _tables(names: Sequence[str]) -> dict[str, tables.LookupTable]:
    """Read the tables of known devices, by their platforms or, where these are alike, by their files."""
    found: dict[str, tables.LookupTable] = {}
    for name in names:
        table = loading.load_table(name)
        if not isinstance(table, tables.LookupTable):
            raise InvalidValueError(f"{name!r} is a table of operators. A table is adapted from those of layers.")
        key = table.platform.id if table.platform.id not in found else str(name)
        if key in found:
            raise InvalidValueError(f"The table {name!r} is given twice. Name each known device once.")
        found[key] = table
    return found


def _plan(table: tables.LookupTable, asked: str | None) -> tables.MeasurePlan:
    name = name_space(table, asked)
    arguments = {key: value for key, value in table.space.arguments.items() if value is not None}
    plan = plan_for(spaces.make_space(name, arguments), name, table.batch_size)
    differences = table.space.differences(plan.space)
    if differences:
        raise MismatchError(f"The space of the table cannot be made as it was: {'; '.join(differences)}.")
    return plan


def _networks(
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


def _fit(
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


def _report(
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
