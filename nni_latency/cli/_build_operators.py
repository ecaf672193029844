"""``nni-latency build-lut`` for spaces without layers of their own: a table of operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.markup import escape

import nni_latency.spaces as spaces
from nni_latency.cli._console import progress, remarks, results
from nni_latency.cli._progress import Measuring
from nni_latency.cli._spaces import file_stem
from nni_latency.errors import InvalidValueError
from nni_latency.files import check_writable
from nni_latency.measurement import Protocol
from nni_latency.measurement.runtimes import Runtime
from nni_latency.platforms import Platform
from nni_latency.tables import OperatorPlan, OperatorTable, build_operator_table, check_new, check_sees_calls
from nni_latency.units import format_percent, format_seconds


def build_operator_tables(space: Any, runtime: Runtime, protocol: Protocol, options: dict[str, Any]) -> None:
    """Build a table of operators for each batch size, and say what came of it.

    Parameters
    ----------
    space : ModelSpace
        The space.
    runtime : Runtime
        What executes its networks.
    protocol : Protocol
        How to measure.
    options : dict
        Those of the command.

    Raises
    ------
    InvalidValueError
        If another metric than latency is asked for, or a file exists.
    MeasurementError
        If the runtime has no operators that could be timed, or nothing can be run.
    """
    if options["metric"] != "latency":
        raise InvalidValueError(
            f"A table of operators holds latencies. Got --metric {options['metric']} for {options['space']!r}, which "
            "has no measure plan."
        )
    check_sees_calls(runtime)
    shapes = [_shape(space, batch_size, options) for batch_size in options["batch_sizes"]]
    outs = [options["out"] or Path(default_name(options["space"], shape, runtime.platform)) for shape in shapes]
    for out in outs:
        # All of them, before the first is measured.
        check_writable(out)
        check_new(out, overwrite=options["overwrite"])
    for batch_size, out in zip(options["batch_sizes"], outs, strict=True):
        _report(_build(space, batch_size, runtime, protocol, out, options), out)


def default_name(space: str, shape: tuple[int, ...], platform: Platform) -> str:
    """Name a table's file after its space, input and platform."""
    return f"{file_stem(space)}-{'x'.join(map(str, shape[2:] or shape))}-b{shape[0]}.{platform.id}.json"


def _shape(space: Any, batch_size: int, options: dict[str, Any]) -> tuple[int, ...]:
    return tuple(spaces.example_inputs_of(space, batch_size, options["input_size"]).shape)


def _build(
    space: Any, batch_size: int, runtime: Runtime, protocol: Protocol, out: Path, options: dict[str, Any]
) -> OperatorTable:
    plan = plan_operators(space, batch_size, options)
    what = f"{len(plan.networks)} networks of {options['space']} with {len(plan.ops)} different operators"
    with Measuring(what, runtime, options["database"], fresh=options["fresh"]) as measuring:
        return build_operator_table(
            plan,
            runtime,
            protocol,
            out,
            overwrite=options["overwrite"],
            **measuring.how,
        )


def plan_operators(space: Any, batch_size: int, options: dict[str, Any]) -> OperatorPlan:
    """Draw the networks whose operators a table is to hold, behind a progress bar."""
    with progress(remarks()) as bar:
        task = bar.add_task(f"drawing networks of {escape(options['space'])}", total=1.0, left="")
        return spaces.operator_plan(
            space,
            n_networks=options["networks"] or spaces.N_NETWORKS,
            batch_size=batch_size,
            input_size=options["input_size"],
            seed=options["seed"],
            on_progress=lambda share: bar.update(task, completed=share),
        )


def _report(table: OperatorTable, out: Path) -> None:
    console = results()
    console.print(f"Wrote {escape(str(out))}", soft_wrap=True)
    spreads = sorted(entry.half_width / entry.value for entry in table.entries)
    console.print(
        f"{len(table.entries)} operators in {len(table.networks)} networks, {table.rounds} rounds in "
        f"{format_seconds(table.duration)}; {format_percent(table.coverage)} of the operators of other networks are "
        f"among them, the rest is predicted; median half-width of the intervals "
        f"{format_percent(spreads[len(spreads) // 2])}"
    )
    print_operator_doubts(table)


def print_operator_doubts(table: OperatorTable) -> None:
    """Say what is doubtful about a table: networks that failed, and unsteady conditions."""
    console = remarks()
    for network, reason in table.failures.items():
        console.print(f"Could not be measured: {escape(f'{network}: {reason}')}", soft_wrap=True)
    for remark in table.remarks:
        console.print(escape(remark), soft_wrap=True)
