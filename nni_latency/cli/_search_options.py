"""The options of ``nni-latency search``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

import nni_latency.nas as nas
from nni_latency.cli._option import DURATION, QUANTITY, option
from nni_latency.cli._outputs import OutputFolder
from nni_latency.units import Quantity

#: What a search writes.
FILES = ("result.json", "weights.safetensors", "search.json", "search.png")

#: Where it writes, and saves itself while it is not over.
FOLDER = OutputFolder(FILES, "checkpoint.safetensors")

_SETTINGS = nas.SearchSettings()


@dataclass(frozen=True)
class SearchOptions:
    """What is searched for, how it is learned, and where the results go."""

    quantity: Quantity = option(
        "Maximum cost of the network, such as 12ms of latency or 20mJ of energy.",
        "--target",
        type=QUANTITY,
        required=True,
    )
    margin: float = option(
        "Share of the target kept free for the error of the estimate.", type=click.FloatRange(0, 0.5), default=0.05
    )
    fill: float | None = option("Minimum share of the target, less its margin, to be used, such as 0.95.")
    strategy: str | None = option(
        "Search strategy.  [default: the first of fbnet, enas and evolution that can search the space]",
        type=click.Choice(nas.STRATEGIES),
    )
    dataset: str = option(
        "Data set: digits, cifar10, folder:PATH, a file of arrays (.npz), package.module:function or "
        "path/to/file.py:function.",
        default="digits",
    )
    batch_size: int | None = option(
        "Images per run on the device.  [default: the table's; a different value is an error]", type=click.IntRange(1)
    )
    data_folder: Path = option("Folder where cifar10 is kept.", default=Path("data"))
    epochs: int = option("Epochs of the search; of every trial of a strategy with trials.", default=_SETTINGS.epochs)
    trials: int = option("Number of trials of evolution and random.", type=click.IntRange(1), default=20)
    final_epochs: int = option("Epochs of the final training.", default=_SETTINGS.final_epochs)
    train_batch_size: int = option("Images per training step.", default=_SETTINGS.batch_size)
    learning_rate: float = option("Learning rate of the weights (Adam).", default=_SETTINGS.learning_rate)
    arc_learning_rate: float = option(
        "Learning rate of the architecture parameters, or of the controller (Adam).", default=0.05
    )
    weight: float = option("Weight of the latency in the loss.", default=1.0)
    measure: bool = option("Measure the network found.", default=True)
    budget: float = option(
        "Maximum time spent measuring the network found. Starting and loading come on top.",
        type=DURATION,
        default="10s",
    )
    threads: int = option("Threads used for training; small images gain little from more.", default=_SETTINGS.threads)
    seed: int = option("Random seed.", default=0)
    out: Path = option("Folder of the results.", "-o", "--out", type=FOLDER, default=Path("search"))

    @property
    def target(self) -> float:
        """Maximum cost of the network, in the SI unit of the metric."""
        return self.quantity.value

    @property
    def limit(self) -> float:
        """The target less its margin, in the same unit."""
        return self.target * (1 - self.margin)

    @property
    def settings(self) -> nas.SearchSettings:
        """How long and how fast the search learns."""
        return nas.SearchSettings(
            epochs=self.epochs,
            final_epochs=self.final_epochs,
            batch_size=self.train_batch_size,
            learning_rate=self.learning_rate,
            seed=self.seed,
            threads=self.threads,
        )
