# SPDX-License-Identifier: Apache-2.0
"""Build a table of operators for spaces of NNI's hub, and hold it to networks that nobody measured before.

    python examples/hub_spaces.py                                  # all eleven, about three minutes each
    python examples/hub_spaces.py darts autoformer --budget 30s
    python examples/hub_spaces.py --runtime openvino --out hub-openvino

For each space: a covering sample of networks is measured for the time of the budget, then ten random others are
measured whole in a run of their own, and compared with what the table says of them. The tables, and the results as
JSON, go to the folder of --out; a table that is there already is not built again.
"""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from nni_latency import Protocol, load_estimator
from nni_latency.estimators import TableEstimator
from nni_latency.loading import load_runtime
from nni_latency.measurement.runtimes import Runtime
from nni_latency.spaces import HUB_SPACES, SampledSpace, check_sample, make_space, operator_plan
from nni_latency.tables import LookupTable, build_table, measure_networks
from nni_latency.units import format_percent, format_seconds, parse_duration
from nni_latency.validation import Validation, draw_networks, predict_networks, save_validation, validate

COLUMNS = ("space", "networks", "latency", "operators", "coverage", "MAPE", "bias", "within 10 %", "repeats within")


def main(names: tuple[str, ...], runtime: Runtime, budget: str, check: str, networks: int, out: Path) -> None:
    """Build and validate every space in turn; print a row each as soon as it is there."""
    out.mkdir(parents=True, exist_ok=True)
    grid = Table(*COLUMNS, title=f"Estimates against measurements in {runtime.name}, per space", title_justify="left")
    console = Console()
    for name in names or tuple(HUB_SPACES):
        path = out / f"{name}.json"
        table = LookupTable.load(path) if path.exists() else build(name, runtime, parse_duration(budget), path)
        estimator = load_estimator(table)
        assert isinstance(estimator, TableEstimator)
        result = hold(estimator, name, runtime, parse_duration(check), networks, out / f"{name}.validation.json")
        grid.add_row(*row(name, table, result))
        console.print("  ".join(row(name, table, result)))
    console.print(grid)


def build(name: str, runtime: Runtime, budget: float, path: Path) -> LookupTable:
    """Measure a space's operators."""
    plan = operator_plan(make_space(name))
    with Progress(transient=True) as bar:
        task = bar.add_task(f"{name}: building", total=1.0)
        return build_table(
            plan,
            runtime,
            Protocol(time_budget=budget),
            path,
            on_progress=lambda state: bar.update(task, completed=state.share),
        )


def hold(estimator: TableEstimator, name: str, runtime: Runtime, budget: float, count: int, path: Path) -> Validation:
    """Measure other networks of the space, and compare."""
    table, space = estimator.table, make_space(name)
    known = tuple(check_sample(space, network.sample) for network in table.networks)
    source = SampledSpace(space, table.input_shape, known)
    networks = draw_networks(source, count)
    predicted = predict_networks(estimator, source, networks, runtime.platform)
    protocol = Protocol(time_budget=budget, half_width=0.01)
    with Progress(transient=True) as bar:
        task = bar.add_task(f"{name}: checking", total=1.0)
        measured = measure_networks(
            source,
            networks,
            runtime,
            protocol,
            on_progress=lambda state: bar.update(task, completed=state.share),
        )
    found = validate(estimator, source, measured, predicted=predicted)
    save_validation(found, path)
    return found


def row(name: str, table: LookupTable, found: Validation) -> list[str]:
    """Return a line of the report."""
    times = [item.measured for item in found.results]
    return [
        name,
        str(len(times)),
        f"{format_seconds(min(times))} to {format_seconds(max(times))}",
        str(len(table.entries)),
        format_percent(table.coverage),
        format_percent(found.scores.mape),
        f"{found.scores.bias:+.1%}",
        format_percent(found.scores.within10),
        format_percent(found.repeatability.mape),
    ]


@click.command(help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, type=click.Choice(list(HUB_SPACES)))
@click.option("--runtime", default="torch", show_default=True, help="NAME or NAME:PRECISION.")
@click.option("--budget", default="60s", show_default=True, help="Time spent measuring for a table.")
@click.option("--check", default="60s", show_default=True, help="Time spent measuring other networks.")
@click.option("--networks", default=10, show_default=True, help="Other networks.")
@click.option("--out", default="hub", show_default=True, type=click.Path(path_type=Path), help="Folder of the results.")
def command(names: tuple[str, ...], runtime: str, budget: str, check: str, networks: int, out: Path) -> None:
    """Read the options."""
    main(names, load_runtime(runtime), budget, check, networks, out)


if __name__ == "__main__":
    command()
