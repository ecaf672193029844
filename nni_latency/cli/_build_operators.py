"""``nni-latency build-lut`` for spaces without layers of their own: a table of operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.markup import escape

import nni_latency.measurement as measurement
import nni_latency.measurement.runtimes as runtimes
import nni_latency.spaces as spaces
import nni_latency.tables as tables
from nni_latency.cli._build_options import TableJob
from nni_latency.cli._console import print_lines, progress, remarks, results
from nni_latency.cli._progress import Measuring
from nni_latency.cli._space_options import operator_table_name
from nni_latency.units import format_percent, format_seconds, number_of


def build_operator_tables(
    space: Any,
    runtime: runtimes.Runtime,
    protocol: measurement.Protocol,
    job: TableJob,
    meters: tuple[measurement.Meter, ...] = (),
) -> None:
    """Build a table of operators for each batch size, and report on it.

    Parameters
    ----------
    space : ModelSpace
        The space.
    runtime : Runtime
        What executes its networks.
    protocol : Protocol
        How to measure.
    job : TableJob
        The tables to be made.
    meters : tuple of Meter, default=()
        What reads the energy.

    Raises
    ------
    InvalidValueError
        If another metric than latency or energy is asked for, or a file exists.
    MeasurementError
        If the runtime has no operators that could be timed, or nothing can be run.
    """
    asked, wanted = job.asked, job.wanted
    tables.check_sees_calls(runtime)
    shapes = [
        tuple(spaces.example_inputs_of(space, batch_size, asked.input_size).shape) for batch_size in wanted.batch_sizes
    ]
    # All files are checked before the first table is measured.
    outs = [
        job.output.path(operator_table_name(asked.name, shape, runtime.platform, wanted.metric)) for shape in shapes
    ]
    for batch_size, out in zip(wanted.batch_sizes, outs, strict=True):
        plan = plan_operators(space, batch_size, job)
        _report(_build(plan, runtime, protocol, out, job, meters), out)


def _build(
    plan: tables.OperatorPlan,
    runtime: runtimes.Runtime,
    protocol: measurement.Protocol,
    out: Path,
    job: TableJob,
    meters: tuple[measurement.Meter, ...],
) -> tables.OperatorTable:
    operators = number_of(len(plan.ops), "different operator")
    what = f"{number_of(len(plan.networks), 'network')} of {job.asked.name} with {operators}"
    with Measuring(what, runtime, job.store, meters) as measuring:
        return tables.build_operator_table(
            plan,
            runtime,
            protocol,
            out,
            metric=job.wanted.metric,
            overwrite=job.output.overwrite,
            **measuring.how,
        )


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


def _report(table: tables.OperatorTable, out: Path) -> None:
    console = results()
    console.print(f"Wrote {escape(str(out))}")
    spreads = sorted(entry.half_width / entry.value for entry in table.entries)
    console.print(
        f"{number_of(len(table.entries), 'operator')} in {number_of(len(table.networks), 'network')}, "
        f"{number_of(table.rounds, 'round')} in {format_seconds(table.duration)}; {format_percent(table.coverage)} of "
        f"the operators of other networks are among them, the rest are predicted; median half-width of the intervals "
        f"{format_percent(spreads[len(spreads) // 2])}"
    )
    print_lines(remarks(), operator_doubts(table))


def operator_doubts(table: tables.OperatorTable) -> list[str]:
    """Say what is doubtful about a table: networks that failed, and unsteady conditions."""
    return [*(f"Could not be measured: {name}: {reason}" for name, reason in table.failures.items()), *table.remarks]
