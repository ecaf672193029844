"""``nni-latency adapt``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.markup import escape

from nni_latency.cli._build_lut import default_name
from nni_latency.cli._console import remarks, results
from nni_latency.cli._options import ending_options, make_runtime, make_space, plan_for, platform_options
from nni_latency.cli._progress import Measuring
from nni_latency.errors import InvalidValueError, MeasurementError, MismatchError
from nni_latency.estimators import FewSourcesWarning, TransferEstimator
from nni_latency.files import check_writable
from nni_latency.measurement import Protocol
from nni_latency.tables import (
    LookupTable,
    MeasurePlan,
    NetworkMeasurements,
    check_new,
    find_table,
    measure_networks,
    write_table,
)
from nni_latency.units import format_percent, format_seconds

#: Random networks among which those to measure are chosen.
_POOL = 2000


@click.command("adapt")
@click.argument("more", nargs=-1, metavar="[TABLE]...")
@click.option(
    "--from",
    "sources",
    multiple=True,
    required=True,
    metavar="TABLE",
    help="Table of a known device: a file, or one that ships; several may follow.",
)
@click.option("--samples", type=click.IntRange(3), default=10, show_default=True, help="Networks that are measured.")
@platform_options("networks", "network")
@ending_options("30s", "Most time spent measuring.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of what is drawn.")
@click.option("--out", type=click.Path(path_type=Path), help="File of the table.  [default: as build-lut names it]")
@click.option("--save", type=click.Path(path_type=Path), help="Write the fitted estimator, too.")
@click.option("--overwrite", is_flag=True, help="Replace a finished table.")
def command(**options: Any) -> None:
    """Make a lookup table of this device of a few measured networks and the tables of other devices.

    The networks that tell most are measured whole, in interleaved rounds; devices that are known, given by --from, say
    what is usual. With one table alone nothing is known about how devices differ: the errors are larger.
    """
    tables = _tables([*options["sources"], *options["more"]])
    plan = _plan(next(iter(tables.values())))
    runtime = make_runtime(options["runtime"], options["device"], options["threads"], options["precision"])
    out = options["out"] or Path(default_name(plan, runtime.platform))
    check_new(out, overwrite=options["overwrite"])
    check_writable(out)
    if options["save"]:
        check_writable(options["save"])
    estimator = TransferEstimator(plan, platform=runtime.platform, random_state=options["seed"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FewSourcesWarning)
        estimator.fit_tables(tables)
    for warning in caught:
        remarks().print(escape(str(warning.message)), soft_wrap=True)
    protocol = Protocol(
        rounds=options["rounds"],
        threads=options["threads"],
        time_budget=options["budget"],
        half_width=options["half_width"],
        seed=options["seed"],
    )
    networks = _networks(estimator, plan, options["samples"], options["seed"])
    with Measuring(
        f"{len(networks)} networks of {plan.space}", runtime, options["database"], fresh=options["fresh"]
    ) as measuring:
        measured = measure_networks(
            plan,
            networks,
            runtime,
            protocol,
            **measuring.how,
        )
    table = _fit(estimator, measured, protocol)
    write_table(table, out, overwrite=options["overwrite"])
    if options["save"]:
        estimator.save(options["save"])
    _report(estimator, table, measured, out)


def _tables(names: list[str]) -> dict[str, LookupTable]:
    """Read the tables of known devices, by their platforms or, where these are alike, by their files."""
    tables: dict[str, LookupTable] = {}
    for name in names:
        table = LookupTable.load(find_table(name))
        key = table.platform.id if table.platform.id not in tables else str(name)
        if key in tables:
            raise InvalidValueError(f"The table {name!r} is given twice. Give every known device once.")
        tables[key] = table
    return tables


def _plan(table: LookupTable) -> MeasurePlan:
    arguments = {name: value for name, value in table.space.arguments.items() if value is not None}
    plan = plan_for(make_space(table.space.name, arguments), table.space.name, table.batch_size)
    differences = table.space.differences(plan.space)
    if differences:
        raise MismatchError(f"The table's space cannot be made any more: {'; '.join(differences)}.")
    return plan


def _networks(estimator: TransferEstimator, plan: MeasurePlan, count: int, seed: int) -> dict[str, dict[str, str]]:
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


def _fit(estimator: TransferEstimator, measured: NetworkMeasurements, protocol: Protocol) -> LookupTable:
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


def _report(estimator: TransferEstimator, table: LookupTable, measured: NetworkMeasurements, out: Path) -> None:
    console = results()
    console.print(f"Wrote {escape(str(out))}", soft_wrap=True)
    entries = [entry for layer in table.searched for entry in layer.entries.values()]
    seen = sum(entry.n_samples > 0 for entry in entries)
    console.print(
        f"{len(measured.networks)} networks in {format_seconds(measured.duration)}; of {len(entries)} entries {seen} "
        "stand in one of them, the others rest on known devices; noise of a measurement "
        f"{format_percent(estimator.noise_)}",
        soft_wrap=True,
    )
    for remark in table.remarks:
        console.print(escape(remark), soft_wrap=True)
    for name, reason in measured.failures.items():
        remarks().print(f"Could not be run: {escape(name)}: {escape(reason)}")
