"""``nni-latency adapt``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from rich.markup import escape

import nni_latency.estimators as estimators
import nni_latency.loading as loading
import nni_latency.measurement as measurement
import nni_latency.spaces as spaces
import nni_latency.tables as tables
from nni_latency.cli._console import print_lines, remarks, results
from nni_latency.cli._measuring_options import EndingOptions, PlatformOptions, StoreOptions, make_runtime
from nni_latency.cli._option import grouped, option, output_option
from nni_latency.cli._output_options import OutputOptions
from nni_latency.cli._outputs import WritingCommand
from nni_latency.cli._progress import Measuring
from nni_latency.cli._space_options import name_space, plan_for, table_name
from nni_latency.errors import InvalidValueError, MeasurementError, MismatchError
from nni_latency.units import format_percent, format_seconds, number_of

#: Random networks among which those to measure are chosen.
_POOL = 2000


@dataclass(frozen=True)
class _AdaptOptions:
    """What a table is adapted from."""

    sources: tuple[str, ...] = option(
        "Table of a known device: a file, a shipped table or a registered estimator; more may follow.",
        "--from",
        multiple=True,
        required=True,
        metavar="TABLE",
    )
    space: str | None = option("Model space; required if a table names a class of your own, as package.module:Class.")
    samples: int = option("Number of networks to measure.", type=click.IntRange(3), default=10)
    seed: int = option("Random seed for the choice of networks.", type=click.IntRange(0), default=0)
    save: Path | None = output_option("Also write the fitted estimator to this file.")


@click.command("adapt", cls=WritingCommand)
@click.argument("more", nargs=-1, metavar="[TABLE]...")
@grouped(budget={"default": "30s"}, out={"help": "File of the table.  [default: as build-lut names it]"})
def command(
    more: tuple[str, ...],
    adapt: _AdaptOptions,
    platform: PlatformOptions,
    ending: EndingOptions,
    output: OutputOptions,
    store: StoreOptions,
) -> None:
    """Make a lookup table of this device from a few measurements and the tables of other devices.

    Measures the most informative networks in interleaved rounds. The tables given by --from show which costs are
    typical. With only one table, the errors are larger, because nothing is known about how devices differ.

    An interrupted run can be resumed: run the same command again.
    """
    known = _tables([*adapt.sources, *more])
    plan = _plan(next(iter(known.values())), adapt.space)
    runtime = make_runtime(platform)
    estimator = estimators.TransferEstimator(plan, platform=runtime.platform, random_state=adapt.seed)
    out = output.path(table_name(plan, runtime.platform, estimator.metric))
    estimator.fit_tables(known)
    protocol = ending.protocol(platform.threads, adapt.seed)
    networks = _networks(estimator, plan, adapt.samples, adapt.seed)
    with Measuring(f"{number_of(len(networks), 'network')} of {plan.space}", runtime, store) as measuring:
        measured = tables.measure_networks(plan, networks, runtime, protocol, **measuring.how)
    table = _fit(estimator, measured, protocol)
    tables.write_table(table, out, overwrite=output.overwrite)
    if adapt.save:
        estimator.save(adapt.save)
    _report(estimator, table, measured, out)


def _tables(names: list[str]) -> dict[str, tables.LookupTable]:
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
