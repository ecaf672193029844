# SPDX-License-Identifier: Apache-2.0
"""A multi-trial experiment of NNI whose web page shows every network's latency beside its accuracy.

First a table of this device is built, in a small version of the space of FBNet. Then random search: no network slower
than the limit is ever tried. Every trial is a process of its own; it trains for a moment on scikit-learn's digits and
reports both numbers.

    python examples/report_latency_to_nni.py --trials 4

While it runs, open the page that it prints, choose "Trials detail" and then "latency_ms" in the list of metrics; with
``--stay 600`` it stays for ten minutes more. It takes a minute or two on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from nni_latency import FBNetSpace, LatencyError, LatencyProfiler
from nni_latency.imports import quiet_nni
from nni_latency.nas import LatencyFilter, load_dataset, report_with_cost

with quiet_nni():
    from nni.nas.evaluator import FunctionalEvaluator
    from nni.nas.experiment import NasExperiment
    from nni.nas.strategy import Random
    from nni.nas.strategy.middleware import Chain, Filter

#: The space: the same arguments for the command line and for the class.
WIDTH, DEPTH, SIZE, CLASSES = 0.25, 0.25, 32, 10


class Pictures(FBNetSpace):
    """The space of the table, as trials can make it without arguments."""

    def __init__(self) -> None:
        super().__init__(num_classes=CLASSES, input_size=SIZE, width=WIDTH, depth=DEPTH)


def build_table(folder: Path) -> Path:
    """Measure the candidates on this device; an earlier table is used again."""
    table = folder / "table.json"
    if not table.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        space = [
            "--input-size",
            SIZE,
            "--space-args",
            json.dumps({"width": WIDTH, "depth": DEPTH, "num_classes": CLASSES}),
        ]
        command = ["build-lut", "--space", "fbnet", *map(str, space), "--budget", "15s", "--out", str(table)]
        print("$ nni-latency " + " ".join(command), flush=True)
        subprocess.run([sys.executable, "-m", "nni_latency", *command], check=True)
    return table


def train_and_report(model: nn.Module, table: str, epochs: int) -> None:
    """Train a network for a moment; report its accuracy for the strategy, and its latency beside it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dataset = load_dataset("digits")
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    loader = DataLoader(dataset.train, 64, shuffle=True, drop_last=True)
    model.train()
    for _ in range(epochs):
        for inputs, classes in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), classes).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        right = [model(inputs).argmax(1) == classes for inputs, classes in DataLoader(dataset.valid, 128)]
    accuracy = float(torch.cat(right).float().mean())
    report_with_cost(accuracy, table, model, torch.zeros(1, 3, SIZE, SIZE))


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(arguments: argparse.Namespace) -> None:
    """Run the experiment and print what its web page shows."""
    folder = Path(arguments.folder).resolve()
    table = str(build_table(folder))
    space = Pictures()
    profiler = LatencyProfiler(space, latency_estimator=table)
    limit = 1e-3 * arguments.max_ms if arguments.max_ms else sum(profiler.cost.range) / 2
    strategy = Chain(Random(seed=0), Filter(LatencyFilter(profiler, max=limit)))
    evaluator = FunctionalEvaluator(train_and_report, table=table, epochs=arguments.epochs)
    experiment = NasExperiment(space, evaluator, strategy)
    experiment.config.experiment_name = "latency beside accuracy"
    experiment.config.max_trial_number = arguments.trials
    experiment.config.trial_concurrency = 2
    experiment.config.experiment_working_directory = folder
    # Trials start in the folder in which the experiment starts, and import this module there.
    os.chdir(Path(__file__).parent)
    try:
        experiment.run(arguments.port or free_port())
        show(experiment, profiler, limit)
        time.sleep(arguments.stay)
    finally:
        experiment.stop()


def show(experiment: NasExperiment, profiler: LatencyProfiler, limit: float) -> None:
    """Print what was reported, as NNI has it, and the best network."""
    print(f"\n{'trial':8}{'accuracy':>10}{'latency':>12}   as reported to NNI")
    for trial, records in experiment.get_job_metrics().items():
        for result in (record.data for record in records if record.type == "FINAL"):
            print(f"{trial:8}{result['default']:>10.1%}{result['latency_ms']:>9.2f} ms")
    best = experiment.export_top_models(1, formatter="dict")[0]
    print(f"\nmost accurate: {' '.join(best.values())}")
    print(f"it takes {1e3 * profiler.profile(best):.2f} ms, the limit is {1e3 * limit:.2f} ms")


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description="A search whose web page shows latency beside accuracy.")
    parser.add_argument("--trials", type=int, default=4, help="networks to try [4]")
    parser.add_argument("--max-ms", type=float, help="slowest network that may be tried [middle of the space's range]")
    parser.add_argument("--epochs", type=int, default=2, help="epochs of each trial [2]")
    parser.add_argument("--folder", default="report_latency", help="where table and experiment go [report_latency]")
    parser.add_argument("--port", type=int, help="port of the web page [a free one]")
    parser.add_argument("--stay", type=float, default=0.0, help="seconds for which the web page stays afterwards [0]")
    arguments = parser.parse_args()
    try:
        run(arguments)
    except LatencyError as error:
        parser.error(str(error))


if __name__ == "__main__":
    # Under the module's own name, so that NNI can tell the trials where to find what they need.
    from report_latency_to_nni import main as start

    start()
