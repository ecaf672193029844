# SPDX-License-Identifier: Apache-2.0
"""What a table of eager torch is worth for a network that is deployed in another runtime.

Tables of both runtimes are built, and networks that neither has seen are measured in the deployed one. Then each table
picks the largest of many random networks which it predicts to meet a target, and both picks are measured.

    python examples/runtime_matters.py --runtime openvino --budget 90
"""

from __future__ import annotations

import argparse
import random
import statistics
from pathlib import Path

import numpy as np

from nni_latency import FBNetSpace, LookupTable, TableEstimator
from nni_latency.estimators import estimate_selection, score
from nni_latency.measurement import Protocol
from nni_latency.measurement.runtimes import Runtime, TorchEager
from nni_latency.operators import Features, features_of
from nni_latency.plots import picture
from nni_latency.plugins import load_registry
from nni_latency.tables import MeasurePlan, NetworkMeasurements, build_table, measure_networks, reference_networks
from nni_latency.units import format_slowdown
from nni_latency.validation import draw_networks

#: Networks among which each table picks.
N_CANDIDATES = 2000

Selection = dict[str, str]


def main() -> None:
    """Build, pick, measure, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime", default="openvino", help="where the network is deployed (default: openvino)")
    parser.add_argument("--budget", type=float, default=90.0, help="seconds of measuring for each step (default: 90)")
    parser.add_argument("--size", type=int, default=224, help="side of the input image (default: 224)")
    parser.add_argument("--out", type=Path, default=Path("runtime-matters.png"), help="the picture")
    options = parser.parse_args()
    plan = FBNetSpace(input_size=options.size).measure_plan()
    deployed: Runtime = load_registry().find("runtime", options.runtime).make("cpu", threads=1, precision="fp32")
    protocol = Protocol(time_budget=options.budget)
    tables = {
        runtime.name: TableEstimator(build(plan, runtime, protocol, options.out.parent))
        for runtime in (TorchEager(), deployed)
    }
    networks = draw_networks(plan, 16)
    target = choose_target(tables[deployed.name])
    picks = {f"pick of {name}": pick(plan, table, target) for name, table in tables.items()}
    measured = measure_networks(plan, {**networks, **picks}, deployed, protocol)
    speed = slowdown(plan, tables[deployed.name], {**networks, **picks}, measured)
    print(f"The machine is {format_slowdown(speed)} than when the last table was built, which is taken out.")
    truth = {name: item.summary.value / speed for name, item in measured.networks.items()}
    report(plan, tables, {**networks, **picks}, truth, target)
    draw(plan, tables, {**networks, **picks}, truth, options.out)
    print(f"Wrote {options.out}")


def build(plan: MeasurePlan, runtime: Runtime, protocol: Protocol, folder: Path) -> LookupTable:
    """Build the table of a runtime."""
    print(f"Building the table of {runtime.platform.id}", flush=True)
    return build_table(plan, runtime, protocol, folder / f"fbnet.{runtime.platform.id}.json", overwrite=True)


def choose_target(table: TableEstimator) -> float:
    """Return a latency a third of the way from the fastest to the slowest network [s]."""
    low, high = table.cost.range
    return low + (high - low) / 3


def pick(plan: MeasurePlan, table: TableEstimator, target: float) -> Selection:
    """Return the network with the most multiply-adds of those that a table predicts to meet a target."""
    draw, best, most = random.Random(0), None, -1.0
    for _ in range(N_CANDIDATES):
        # Some networks are mostly skips, so that fast ones are among them.
        share = draw.random()
        selection = {
            layer.name: "skip"
            if "skip" in layer.candidates and draw.random() < share
            else draw.choice([*layer.candidates])
            for layer in plan.layers
        }
        work = sum(map(features_of, plan.ops_of(selection)), Features()).macs
        if work > most and predict(table, plan, selection) <= target:
            best, most = selection, work
    if best is None:
        raise SystemExit(
            f"None of {N_CANDIDATES} networks meets {target * 1e3:.2f} ms by the table of {table.platform.id}."
        )
    return best


def slowdown(
    plan: MeasurePlan, table: TableEstimator, networks: dict[str, Selection], measured: NetworkMeasurements
) -> float:
    """Return how much longer the space's reference networks take now than a table says."""
    known = reference_networks(plan, networks)
    return statistics.median(
        item.summary.value / predict(table, plan, dict(known[name])) for name, item in measured.references.items()
    )


def predict(table: TableEstimator, plan: MeasurePlan, selection: Selection) -> float:
    """Return what a table predicts of a network [s]."""
    return estimate_selection(table, plan, selection).value


def report(
    plan: MeasurePlan,
    tables: dict[str, TableEstimator],
    networks: dict[str, Selection],
    truth: dict[str, float],
    target: float,
) -> None:
    """Print how well each table predicts the deployed runtime, and what each would have picked."""
    names = [name for name in truth if not name.startswith("pick")]
    print(f"\n{'table of':14}  bias    MAPE   within 10 %  Spearman    its pick for {target * 1e3:.2f} ms takes")
    for name, table in tables.items():
        found = score([predict(table, plan, networks[key]) for key in names], [truth[key] for key in names])
        chosen = truth[f"pick of {name}"]
        print(
            f"{name:14} {found.bias:+6.1%}  {found.mape:6.1%}  {found.within10:10.0%}  {found.spearman:8.3f}"
            f"    {chosen * 1e3:.2f} ms ({chosen / target - 1:+.0%})"
        )


def draw(
    plan: MeasurePlan,
    tables: dict[str, TableEstimator],
    networks: dict[str, Selection],
    truth: dict[str, float],
    out: Path,
) -> None:
    """Draw what each table predicts against what was measured in the deployed runtime."""
    names = [name for name in truth if not name.startswith("pick")]
    measured = np.array([truth[name] for name in names]) * 1e3
    predicted = {
        name: np.array([predict(table, plan, networks[key]) for key in names]) * 1e3 for name, table in tables.items()
    }
    (other, deployed) = tables
    off = {name: float(np.mean(np.abs(values / measured - 1))) for name, values in predicted.items()}
    title = (
        f"Latency in {deployed}: its own table is {off[deployed]:.1%} off, that of {other} {off[other]:.0%}\n"
        f"{len(names)} networks of FBNet's space, measured in {deployed}"
    ).replace("%", " %")
    with picture(out, title, height=4.2) as figure:
        axes = figure.subplots()
        for (name, values), marker in zip(predicted.items(), "so", strict=True):
            axes.plot(measured, values, marker, label=f"table of {name}", alpha=0.8)
        limits = [0, float(measured.max()) * 1.1]
        axes.plot(limits, limits, color="grey", lw=1, label="as measured")
        axes.set(xlabel=f"measured in {deployed} [ms]", ylabel="predicted [ms]", xlim=limits)
        axes.set_ylim(bottom=0)
        axes.legend()


if __name__ == "__main__":
    main()
