"""``nni-latency build-lut``."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from nni_latency.cli._console import progress, remarks, results
from nni_latency.cli._options import Duration, given_arguments, make_space, plan_for, space_options
from nni_latency.measurement import Protocol
from nni_latency.platforms import Platform
from nni_latency.plugins import load_registry
from nni_latency.tables import BuildProgress, LookupTable, MeasurePlan, build_table, journal_path
from nni_latency.units import format_percent, format_seconds

_DEFAULTS = Protocol()


@click.command("build-lut")
@space_options
@click.option("--batch-size", type=click.IntRange(1), default=1, show_default=True, help="Pictures per run.")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:N.")
@click.option("--runtime", default="torch", show_default=True, help="What executes the candidates.")
@click.option("--precision", type=click.Choice(["fp32", "bf16", "fp16"]), default="fp32", show_default=True)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Threads per network.")
@click.option(
    "--budget",
    type=Duration(),
    default=f"{_DEFAULTS.time_budget:g}s",
    show_default=True,
    help="Time spent measuring, such as 30s or 5min.",
)
@click.option("--rounds", type=click.IntRange(1), default=_DEFAULTS.rounds, show_default=True, help="Most rounds.")
@click.option(
    "--n-warmup",
    type=click.IntRange(0),
    default=_DEFAULTS.n_warmup,
    show_default=True,
    help="Untimed runs per visit of a network.",
)
@click.option(
    "--n-run",
    type=click.IntRange(1),
    default=_DEFAULTS.n_run,
    show_default=True,
    help="Timed runs per visit of a network.",
)
@click.option(
    "--outlier", type=float, default=_DEFAULTS.outlier, show_default=True, help="Share of samples dropped at each end."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the order of the networks.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="File of the table.  [default: named after space and platform]"
)
@click.option(
    "--resume/--no-resume", default=True, show_default=True, help="Go on with the journal of an interrupted build."
)
@click.option("--overwrite", is_flag=True, help="Replace a finished table.")
def command(**options: Any) -> None:
    """Measure the candidates of a space on this device and write a lookup table.

    It can be interrupted at any moment: the same command goes on where it was.
    """
    space = make_space(options["space"], given_arguments(options))
    plan = plan_for(space, options["space"], options["batch_size"])
    runtime = (
        load_registry()
        .find("runtime", options["runtime"])
        .make(options["device"], threads=options["threads"], precision=options["precision"])
    )
    protocol = Protocol(
        n_warmup=options["n_warmup"],
        n_run=options["n_run"],
        outlier=options["outlier"],
        rounds=options["rounds"],
        threads=options["threads"],
        time_budget=options["budget"],
        seed=options["seed"],
    )
    out = options["out"] or Path(default_name(plan, runtime.platform))
    table = build_with_progress(plan, runtime, protocol, out, options["resume"], options["overwrite"])
    _report(table, out)


def build_with_progress(
    plan: MeasurePlan, runtime: Any, protocol: Protocol, out: Path, resume: bool, overwrite: bool
) -> LookupTable:
    """Build a table behind a progress bar; an interruption says how to go on."""
    console = remarks()
    with contextlib.ExitStack() as stack:
        bar = progress(console)
        task = bar.add_task("warming up", total=1.0, left="")

        def on_start(rounds: int) -> None:
            # Only now is everything checked: a mistake is told without a bar before it.
            going_on = f", going on after {rounds} rounds" if rounds else ""
            console.print(
                f"Measuring {sum(plan.sizes)} candidates of {plan.space} on {runtime.platform.id}{going_on}",
                markup=False,
            )
            stack.enter_context(bar)

        def on_progress(state: BuildProgress) -> None:
            bar.update(
                task,
                completed=state.share,
                description=f"round {state.rounds}",
                left=f"{format_seconds(state.remaining) if state.remaining > 0 else '0 s'} left",
            )

        try:
            return build_table(
                plan,
                runtime,
                protocol,
                out,
                resume=resume,
                overwrite=overwrite,
                on_progress=on_progress,
                on_start=on_start,
            )
        except KeyboardInterrupt:
            stack.close()
            console.print(
                f"Interrupted. Finished rounds are in {escape(str(journal_path(out)))}; the same command goes on."
            )
            raise click.exceptions.Exit(130) from None


def default_name(plan: MeasurePlan, platform: Platform) -> str:
    """Name a table's file after its space and platform.

    Only arguments that differ from the space's usual ones are spelt out.
    """
    arguments = plan.space.arguments
    parts = [plan.space.name]
    parts += [f"{name[0]}{arguments[name]:g}" for name in ("width", "depth") if arguments.get(name, 1.0) != 1.0]
    parts += ["x".join(map(str, plan.input_shape[2:] or plan.input_shape)) + f"-b{plan.batch_size}"]
    return f"{'-'.join(parts)}.{platform.id}.json"


def _report(table: LookupTable, out: Path) -> None:
    spreads = sorted(
        (entry.high - entry.low) / (2 * entry.value) for layer in table.layers for entry in layer.entries.values()
    )
    console = results()
    console.print(f"Wrote {escape(str(out))}", soft_wrap=True)
    console.print(
        f"{table.rounds} rounds in {format_seconds(table.duration)}, coverage {format_percent(table.coverage)}, "
        f"median half-width of the {format_percent(table.protocol.confidence if table.protocol else 0.95)} intervals "
        f"{format_percent(spreads[len(spreads) // 2])}"
    )
