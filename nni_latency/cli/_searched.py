"""What ``nni-latency search`` searches: the space, made for the classes of the data set, and by which strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rich.markup import escape

import nni_latency.estimators as estimators
import nni_latency.nas as nas
import nni_latency.spaces as spaces
from nni_latency.cli._console import remarks
from nni_latency.cli._model import send_by_value
from nni_latency.cli._space_options import CLASSES, SpaceOptions, choose_space, plan_for
from nni_latency.errors import InvalidValueError, MismatchError
from nni_latency.plugins import load_registry
from nni_latency.units import number_of

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
