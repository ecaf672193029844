# SPDX-License-Identifier: Apache-2.0
"""What ``nni-latency search`` searches for: its options, and the space, estimator and strategy that they name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

import nni_latency.estimators as estimators
import nni_latency.nas as nas
import nni_latency.spaces as spaces
from nni_latency.cli._console import remarks
from nni_latency.cli._model import send_by_value
from nni_latency.cli._option import QUANTITY, option
from nni_latency.cli._outputs import OutputFolder
from nni_latency.cli._space_options import CLASSES, SpaceOptions, choose_space, plan_for
from nni_latency.cli._training import check_number, check_whole, training_of, training_option
from nni_latency.errors import InvalidValueError, MismatchError
from nni_latency.plugins import load_registry
from nni_latency.units import Quantity, number_of

#: What a search writes.
FILES = ("result.json", "weights.safetensors", "search.json", "search.png")

#: Where it writes, and saves itself while it is not over.
FOLDER = OutputFolder(FILES, "checkpoint.safetensors")

_SETTINGS = nas.SearchSettings()

#: Strategies in the order in which one is looked for that can search a space.
_PREFERRED = ("fbnet", "enas", "evolution")


@dataclass(frozen=True)
class Training:
    """How networks learn in a search: the fields of ``--training``.

    Parameters
    ----------
    final_epochs : int
        Epochs of the final training.
    batch_size : int
        Images per training step.
    learning_rate : float
        Of the weights (Adam).
    arc_learning_rate : float
        Of the architecture parameters, or of the controller (Adam).
    weight : float
        Of the cost in the loss, where there is one.
    threads : int
        Threads of torch; small images gain little from more.
    """

    final_epochs: int = _SETTINGS.final_epochs
    batch_size: int = _SETTINGS.batch_size
    learning_rate: float = _SETTINGS.learning_rate
    arc_learning_rate: float = 0.05
    weight: float = 1.0
    threads: int = _SETTINGS.threads

    def __post_init__(self) -> None:
        check_whole(self, final_epochs=0, batch_size=2, threads=1)
        check_number(self, "learning_rate")
        check_number(self, "arc_learning_rate")
        check_number(self, "weight", zero=True)


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
    fill: float | None = option("Minimum share of the target, less its margin, to be used, such as 0.95.", rare=True)
    strategy: str | None = option(
        "Search strategy.  [default: the first of fbnet, enas and evolution that can search the space]",
        type=click.Choice(nas.STRATEGIES),
    )
    dataset: str = option(
        "Data set: digits, cifar10, which is kept in the folder data, or cifar10:FOLDER, folder:PATH, a file of "
        "arrays (.npz), package.module:function or path/to/file.py:function.",
        default="digits",
    )
    batch_size: int | None = option(
        "Images per run on the device.  [default: the table's; a different value is an error]", type=click.IntRange(1)
    )
    epochs: int = option("Epochs of the search; of every trial of a strategy with trials.", default=_SETTINGS.epochs)
    trials: int = option("Number of trials of evolution and random.", type=click.IntRange(1), default=20)
    training_fields: tuple[tuple[str, Any], ...] = training_option(
        "How networks learn, such as final_epochs=5,batch_size=32", Training
    )
    measure: bool = option("Measure the network found.", default=True)
    seed: int = option("Random seed.", default=0, rare=True)
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
    def training(self) -> Training:
        """How networks learn.

        Raises
        ------
        UnknownNameError
            If ``--training`` has no such field.
        InvalidValueError
            If a value is outside its range.
        """
        return training_of(Training(), self.training_fields)

    @property
    def settings(self) -> nas.SearchSettings:
        """How long and how fast the search learns."""
        training = self.training
        return nas.SearchSettings(
            epochs=self.epochs,
            final_epochs=training.final_epochs,
            batch_size=training.batch_size,
            learning_rate=training.learning_rate,
            seed=self.seed,
            threads=training.threads,
        )


@dataclass(frozen=True)
class Searched:
    """A space that is searched.

    Parameters
    ----------
    name : str
        Its name.
    arguments : mapping
        What it is made with.
    input_shape : tuple of int
        What its networks take on the device, batch first.
    """

    name: str
    arguments: Mapping[str, Any]
    input_shape: tuple[int, ...]

    def make(self) -> Any:
        """Return the space, made anew; an estimator that measures may send its networks to other processes."""
        space = spaces.make_space(self.name, dict(self.arguments))
        send_by_value(space)
        return space


def searched_space(
    estimator: estimators.Estimator, asked: SpaceOptions, batch_size: int | None, dataset: nas.Dataset
) -> Searched:
    """Return the space that the options name: that of the estimator's table where there is one.

    Raises
    ------
    MismatchError
        If the table, or the data set, belongs to another space than the options ask for.
    """
    chosen = choose_space(estimator, asked, batch_size, ignore=CLASSES)
    name = chosen.name
    _check_classes(replace(asked, space=name).arguments, dataset)
    arguments = {**chosen.arguments, **_for_data_set(name, chosen.arguments, dataset)}
    space = spaces.make_space(name, arguments)
    if hasattr(space, "measure_plan"):
        return Searched(name, arguments, plan_for(space, name, chosen.batch_size).input_shape)
    size = chosen.input_size
    if chosen.input_shape is None and not spaces.knows_inputs(space):
        channels, *sides = dataset.image_shape
        return Searched(name, arguments, (chosen.batch_size, channels, *([size, size] if size else sides)))
    return Searched(name, arguments, tuple(chosen.example_inputs(space).shape))


def choose_strategy(asked: str | None, searched: Searched, cost: Any, dataset: nas.Dataset) -> str:
    """Return the strategy asked for, or the first that can search the space.

    Raises
    ------
    InvalidValueError
        If the one asked for cannot search it; the message names one that can.
    """
    images = dataset.few(2)

    def complaint(name: str) -> InvalidValueError | None:
        try:
            nas.check_strategy(name, cost, searched.make, images)
        except InvalidValueError as error:
            return error
        return None

    if asked is None:
        return _first_that_can(searched, complaint)
    error = complaint(asked)
    if error is not None:
        other = next(name for name in _PREFERRED if name != asked and complaint(name) is None)
        raise InvalidValueError(
            f"The strategy {asked!r} cannot search {searched.name!r}: {_phrase(error)} Take --strategy {other}."
        ) from error
    return asked


def _first_that_can(searched: Searched, complaint: Callable[[str], InvalidValueError | None]) -> str:
    for name in _PREFERRED:
        error = complaint(name)
        if error is None:
            return name
        remarks().print(f"The strategy {name!r} cannot search {searched.name!r}: {escape(_phrase(error))}")
    raise AssertionError("trials of single networks need nothing of a space")


def _phrase(error: InvalidValueError) -> str:
    return f"{str(error).rstrip('.')}."


def _check_classes(asked: Mapping[str, Any], dataset: nas.Dataset) -> None:
    for name in CLASSES:
        if asked.get(name) not in (None, dataset.num_classes):
            raise MismatchError(
                f"The data set {dataset.name} has {number_of(dataset.num_classes, 'class', 'classes')}, not "
                f"{asked[name]}."
            )


def _for_data_set(name: str, arguments: Mapping[str, Any], dataset: nas.Dataset) -> dict[str, Any]:
    """Return the arguments that the data set decides: the classes, and the size of its images where one is asked."""
    found: dict[str, Any] = {}
    known = _parameters(name)
    found.update(dict.fromkeys([parameter for parameter in CLASSES if parameter in known], dataset.num_classes))
    size = spaces.HUB_SPACES[name].size_argument if name in spaces.HUB_SPACES else None
    if size is not None and size not in arguments:
        found[size] = dataset.input_size
    return found


def _parameters(name: str) -> tuple[str, ...]:
    """Return the names of a space's arguments."""
    if name in spaces.HUB_SPACES or ":" in name:
        return spaces.parameters_of(name)
    return tuple(load_registry().find("space", name).parameters())
