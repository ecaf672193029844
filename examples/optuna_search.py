# SPDX-License-Identifier: Apache-2.0
"""A search by Optuna for accuracy and latency: the latency of every network is read from a table of this device.

The space is a small FBNet for images of 96x96. Every network that Optuna draws is trained for a moment on the digits of
scikit-learn, which are smaller, and the table says what it takes; nothing is timed during the search. In the end the
networks of the front are measured.

    pip install optuna
    python examples/optuna_search.py --trials 40

The table is measured for 20 seconds, and kept in ``optuna_search.json`` for the next run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import optuna
import torch
from torch import nn
from torch.utils.data import DataLoader

from nni_latency import FBNetSpace, Protocol, TableEstimator, load_estimator
from nni_latency.measurement.runtimes import TorchEager
from nni_latency.nas import Dataset, load_dataset
from nni_latency.tables import build_table, measure_networks
from nni_latency.validation import validate


def make_space() -> FBNetSpace:
    """Make the space: seven layers with nine candidates each; latencies are those of images of 96x96."""
    return FBNetSpace(num_classes=10, input_size=96, width=0.25, depth=0.25)


def table_of(path: Path) -> TableEstimator:
    """Return the table in a file; without the file, measure it on this device."""
    if not path.is_file():
        build_table(make_space().measure_plan(), TorchEager(), Protocol(time_budget=20), path)
    estimator = load_estimator(path)
    assert isinstance(estimator, TableEstimator)
    return estimator


def train(network: nn.Module, dataset: Dataset, epochs: int) -> float:
    """Train a network; return its accuracy on images held out."""
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    network.train()
    for _ in range(epochs):
        for images, classes in DataLoader(dataset.train, 64, shuffle=True, drop_last=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(images), classes).backward()
            optimizer.step()
    network.eval()
    with torch.no_grad():
        right = [network(images).argmax(1) == classes for images, classes in DataLoader(dataset.valid, 256)]
    return float(torch.cat(right).float().mean())


def search(estimator: TableEstimator, trials: int, epochs: int, sampler: str) -> optuna.Study:
    """Search networks that are accurate and fast."""
    dataset, known = load_dataset("digits"), dict[tuple[str, ...], float]()

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        sample = {
            layer.name: trial.suggest_categorical(layer.name, layer.choices) for layer in estimator.table.searched
        }
        key = tuple(sample.values())
        if key not in known:
            torch.manual_seed(0)
            known[key] = train(make_space().freeze(sample), dataset, epochs)
        return known[key], estimator.estimate_sample(sample).value

    made = {
        "nsga2": lambda: optuna.samplers.NSGAIISampler(population_size=12, seed=0),
        "tpe": lambda: optuna.samplers.TPESampler(seed=0),
    }
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=made[sampler]())
    study.optimize(objective, n_trials=trials)
    return study


def show(study: optuna.Study, estimator: TableEstimator) -> None:
    """Measure the networks of the front, and print them from the fastest to the most accurate."""
    front = {tuple(trial.params.items()): trial for trial in study.best_trials}
    trials = sorted(front.values(), key=lambda trial: trial.values[1])
    plan = make_space().measure_plan()
    selections = {
        str(trial.number): {layer.name: trial.params.get(layer.name, layer.default) for layer in plan.layers}
        for trial in trials
    }
    # In turns with reference networks of the space, which tell how fast the machine is now.
    measured = measure_networks(plan, selections, TorchEager(), Protocol(time_budget=10), store="memory")
    checked = validate(estimator, plan, measured)
    change = f"{abs(1 / checked.speed - 1):.1%} {'slower' if checked.speed < 1 else 'faster'}"
    print(f"The machine is {change} than when the table was built.")
    print("Measured latencies are at the speed of the table.")
    print(f"{'accuracy':>8}  {'table':>8}  {'measured':>8}  network")
    for trial, result in zip(trials, checked.results, strict=True):
        accuracy, latency = trial.values
        choices = " ".join(trial.params.values())
        print(f"{accuracy:>8.1%}  {1e3 * latency:>5.2f} ms  {1e3 * result.measured:>5.2f} ms  {choices}")


def main() -> None:
    """Read the arguments, search and show the front."""
    parser = argparse.ArgumentParser(description="A search by Optuna for accuracy and latency.")
    parser.add_argument("--trials", type=int, default=40, help="networks that are drawn [40]")
    parser.add_argument("--epochs", type=int, default=2, help="epochs of each network [2]")
    parser.add_argument("--sampler", choices=["nsga2", "tpe"], default="nsga2", help="Optuna's sampler [nsga2]")
    parser.add_argument("--table", type=Path, default=Path("optuna_search.json"), help="table [optuna_search.json]")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    estimator = table_of(arguments.table)
    different = estimator.platform.differences(TorchEager().platform)
    if different:
        parser.error(f"the table must be of this machine; it differs: {'; '.join(different)}")
    fastest, slowest = estimator.cost.range
    print(f"The space on {estimator.platform.id}: {1e3 * fastest:.2f} to {1e3 * slowest:.2f} ms")
    for remark in estimator.table.remarks:
        print(remark)
    show(search(estimator, arguments.trials, arguments.epochs, arguments.sampler), estimator)


if __name__ == "__main__":
    main()
