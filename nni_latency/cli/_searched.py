"""What ``nni-latency search`` searches: the space, made for the classes of the data set, and by which strategy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click
import torch
from click.core import ParameterSource
from rich.markup import escape

import nni_latency.spaces as spaces
from nni_latency.cli._console import remarks
from nni_latency.cli._model import send_by_value
from nni_latency.cli._options import arguments_for, check_batch_size, given_arguments, make_space
from nni_latency.cli._space_options import plan_for
from nni_latency.errors import InvalidValueError, MismatchError
from nni_latency.estimators import Estimator, OperatorTableEstimator
from nni_latency.nas import Dataset, check_strategy
from nni_latency.plugins import load_registry

#: Names under which spaces take the number of their classes.
_CLASSES = ("num_classes", "num_labels")

#: Strategies in the order in which one is looked for that can search a space.
_PREFERRED = ("fbnet", "enas", "evolution")


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
        space = make_space(self.name, dict(self.arguments))
        send_by_value(space)
        return space


def searched_space(estimator: Estimator, options: dict[str, Any], dataset: Dataset) -> Searched:
    """Return the space that the options name: that of the estimator's table where there is one.

    Raises
    ------
    MismatchError
        If the table, or the data set, belongs to another space than the options ask for.
    """
    if isinstance(estimator, OperatorTableEstimator):
        options = _with_the_table_s_space(estimator, options)
    name = options["space"]
    batch_size = check_batch_size(estimator, options["batch_size"])
    asked = given_arguments(options)
    _check_classes(asked, dataset)
    arguments = arguments_for(estimator, name, options, ignore=_CLASSES)
    arguments = {**arguments, **_for_data_set(name, arguments, dataset)}
    space = make_space(name, arguments)
    if hasattr(space, "measure_plan"):
        return Searched(name, arguments, plan_for(space, name, batch_size).input_shape)
    size = options["input_size"]
    if size is None and name not in spaces.HUB_SPACES and not hasattr(space, "example_inputs"):
        size = dataset.input_size
    inputs = spaces.example_inputs_of(space, batch_size, size)
    return Searched(name, arguments, tuple(inputs.shape))


def few_pictures(dataset: Dataset) -> torch.Tensor:
    """Return two pictures of a data set, (2, 3, size, size)."""
    return torch.stack([torch.as_tensor(dataset.train[index][0]) for index in range(2)])


def choose_strategy(asked: str | None, searched: Searched, cost: Any, dataset: Dataset) -> str:
    """Return the strategy asked for, or the first that can search the space.

    Raises
    ------
    InvalidValueError
        If the one asked for cannot search it; the message names one that can.
    """
    pictures = few_pictures(dataset)

    def complaint(name: str) -> InvalidValueError | None:
        try:
            check_strategy(name, cost, searched.make, pictures)
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
        remarks().print(
            f"The strategy {name!r} cannot search {searched.name!r}: {escape(_phrase(error))}", soft_wrap=True
        )
    raise AssertionError("trials of single networks need nothing of a space")


def _phrase(error: InvalidValueError) -> str:
    return f"{str(error).rstrip('.')}."


def _with_the_table_s_space(estimator: OperatorTableEstimator, options: dict[str, Any]) -> dict[str, Any]:
    """Take space and input from a table of operators, if it is that of the space which is searched.

    Raises
    ------
    MismatchError
        If the table is of that space, but of other arguments, another input or batch size than asked.
    """
    table = estimator.table
    if click.get_current_context().get_parameter_source("space") is ParameterSource.DEFAULT:
        options = {**options, "space": table.space.name}
    if options["space"] != table.space.name:
        return options
    own = dict(table.space.arguments)
    wrong = [
        f"{name}={own.get(name)} against {name}={value}"
        for name, value in given_arguments(options).items()
        if name not in _CLASSES and own.get(name) != value
    ]
    for name, value in (("input_size", table.input_shape[-1]), ("batch_size", table.batch_size)):
        if options[name] not in (None, value):
            wrong.append(f"{name}={value} against {name}={options[name]}")
    if wrong:
        raise MismatchError(f"The table belongs to another space or input than asked: {'; '.join(wrong)}.")
    asked = {**own, **{name: value for name, value in given_arguments(options).items() if name in _CLASSES}}
    return {
        **options,
        "space_args": asked,
        "num_classes": None,
        "input_size": table.input_shape[-1],
        "batch_size": table.batch_size,
    }


def _check_classes(asked: Mapping[str, Any], dataset: Dataset) -> None:
    for name in _CLASSES:
        if asked.get(name) not in (None, dataset.num_classes):
            raise MismatchError(
                f"The data set {dataset.name} has {dataset.num_classes} classes, asked is {asked[name]}."
            )


def _for_data_set(name: str, arguments: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """Return the arguments that the data set decides: the classes, and the size of its pictures where one is asked."""
    found: dict[str, Any] = {}
    known = _parameters(name)
    found.update(dict.fromkeys([parameter for parameter in _CLASSES if parameter in known], dataset.num_classes))
    size = spaces.HUB_SPACES[name].size_argument if name in spaces.HUB_SPACES else None
    if size is not None and size not in arguments:
        found[size] = dataset.input_size
    return found


def _parameters(name: str) -> tuple[str, ...]:
    """Return the names of a space's arguments."""
    if name in spaces.HUB_SPACES or ":" in name:
        return spaces.parameters_of(name)
    return tuple(inspect.signature(load_registry().find("space", name).factory).parameters)
