# SPDX-License-Identifier: Apache-2.0
"""The options that choose a space, and the space that they and an estimator's table stand for."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nni_latency.estimators as estimators
import nni_latency.spaces as spaces
import nni_latency.tables as tables
from nni_latency.cli._option import ARGUMENTS, option
from nni_latency.errors import InvalidValueError, MismatchError
from nni_latency.platforms import Platform

if TYPE_CHECKING:
    import torch

#: Names under which spaces take the number of their classes.
CLASSES = ("num_classes", "num_labels")

_SPACE = "Model space: a registered name, package.module:Class or path/to/file.py:Class."

#: The help of ``--space`` in commands that take an estimator.
SPACE_OF_TABLE = {"help": f"{_SPACE}  [default: that of the table, or fbnet]"}


@dataclass(frozen=True)
class SpaceArguments:
    """The options that choose a space, where what its networks take is one of its arguments."""

    space: str | None = option(f"{_SPACE}  [default: fbnet]")
    space_args: tuple[dict[str, Any], ...] = option(
        "Arguments of the space, such as width=0.5,num_classes=10, or as a JSON object. Those of fbnet: preset "
        "(imagenet, cifar or cifar10), input_size, num_classes, head_channels, and the multipliers width and depth.",
        type=ARGUMENTS,
        multiple=True,
    )

    @property
    def name(self) -> str:
        """Name of the space."""
        return self.space or "fbnet"

    @property
    def given(self) -> bool:
        """Whether anything but the name of the space was given."""
        return bool(self.space_args)

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the constructor that were given."""
        return {name: value for part in self.space_args for name, value in part.items()}

    def make(self) -> Any:
        """Make the space."""
        return spaces.make_space(self.name, self.arguments)


@dataclass(frozen=True)
class SpaceOptions(SpaceArguments):
    """The options that choose a space; those that are not given are left to the space, or to the table."""

    input_size: int | None = option("Input image size [pixels].  [default: the space's]")

    @property
    def given(self) -> bool:
        """Whether anything but the name of the space was given."""
        return super().given or self.input_size is not None

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the constructor that were given, the input size among them where it is one."""
        found = super().arguments
        # Of a class the input size says what its networks take, and not what makes it.
        size = None if ":" in self.name else "input_size"
        if self.name in spaces.HUB_SPACES:
            size = spaces.HUB_SPACES[self.name].size_argument
        return {size: self.input_size, **found} if size and self.input_size is not None else found


@dataclass(frozen=True)
class ChosenSpace:
    """A space and what its networks take: that of an estimator's table where there is one.

    Parameters
    ----------
    name : str
        Its name.
    arguments : dict
        Arguments that make it.
    input_size : int or None
        Input image size [pixels]; None leaves it to the space.
    batch_size : int
        Images per run.
    input_shape : tuple of int or None
        Shape of the input, batch first, where a table says it.
    """

    name: str
    arguments: dict[str, Any]
    input_size: int | None
    batch_size: int
    input_shape: tuple[int, ...] | None = None

    def make(self) -> Any:
        """Make the space."""
        return spaces.make_space(self.name, self.arguments)

    def example_inputs(self, space: Any) -> torch.Tensor:
        """Return an input of the space's networks.

        Raises
        ------
        MismatchError
            If the space takes other inputs than the table is for.
        InvalidValueError
            If neither the table nor the space says what it takes.
        """
        import torch

        if self.input_shape is not None and not hasattr(space, "example_inputs"):
            return torch.zeros(self.input_shape)
        inputs = spaces.example_inputs_of(space, self.batch_size, self.input_size)
        if self.input_shape not in (None, tuple(inputs.shape)):
            raise MismatchError(
                f"The table is for inputs of the shape {self.input_shape}. Those of the space {self.name!r} have the "
                f"shape {tuple(inputs.shape)}."
            )
        return inputs


def choose_space(
    estimator: estimators.Estimator, asked: SpaceOptions, batch_size: int | None, *, ignore: tuple[str, ...] = ()
) -> ChosenSpace:
    """Return the space that the options name, by default that of the estimator's table.

    Parameters
    ----------
    estimator : Estimator
        May answer from a table. A table of operators also answers for other spaces than its own.
    asked : SpaceOptions
        Those that are given must agree with the table.
    batch_size : int or None
        Must be that of the table, which is the default.
    ignore : tuple of str
        Arguments of the space that may differ from the table's.

    Raises
    ------
    MismatchError
        If the table belongs to another space, input size or batch size.
    InvalidValueError
        If the table does not say which space it belongs to, and the options do not either; or if it names a class, and
        the options do not.
    """
    table = _table_of(estimator)
    if table is None or (table.operators and not _is_asked(table.space, asked.space)):
        return ChosenSpace(asked.name, asked.arguments, asked.input_size, batch_size or 1)
    if batch_size is not None:
        table.check_batch_size(batch_size)
    if table.space.name == tables.OPERATORS:
        return ChosenSpace(asked.name, asked.arguments, asked.input_size, table.batch_size)
    name = name_space(table, asked.space)
    given = dataclasses.replace(asked, space=name).arguments
    # A table by hand may know the batch size alone.
    size = table.input_shape[-1] if len(table.input_shape) == 4 else None
    known = given if table.space.name == tables.UNKNOWN_SPACE else table.space.arguments
    _check_arguments({**known, "input_size": size}, given, asked.input_size if size else None, ignore)
    arguments = {**known, **{own: given[own] for own in ignore if own in given}}
    shape = table.input_shape if len(table.input_shape) > 1 else None
    return ChosenSpace(name, arguments, size or asked.input_size, table.batch_size, shape)


def _is_asked(known: tables.SpaceReference, asked: str | None) -> bool:
    """Whether the space of a table is the one that the user names; a class may be written in several ways."""
    if asked in (None, known.name) or known.name == tables.UNKNOWN_SPACE:
        return True
    if ":" not in known.name or not (":" in asked or asked in spaces.HUB_SPACES):
        return False
    return known.is_of(spaces.class_of(asked))


def _check_arguments(
    own: Mapping[str, Any], given: Mapping[str, Any], input_size: int | None, ignore: tuple[str, ...]
) -> None:
    """Raise `MismatchError` unless the arguments that were given are those of a table."""
    wanted = {**given, **({"input_size": input_size} if input_size else {})}
    wrong = [
        f"{name}={own.get(name)} in the table, {name}={value} requested"
        for name, value in wanted.items()
        # As JSON a list is a tuple.
        if name not in ignore and json.dumps(own.get(name)) != json.dumps(value)
    ]
    if wrong:
        raise MismatchError(f"The table does not match the options: {'; '.join(wrong)}.")


def name_space(table: tables.LookupTable, asked: str | None) -> str:
    """Return the name by which the space of a table is made. A file from a stranger runs no code.

    Raises
    ------
    MismatchError
        If the user names another space.
    InvalidValueError
        If the user names none, and the space is a class or the table does not say which.
    """
    known = table.space
    if not _is_asked(known, asked):
        raise MismatchError(f"The table belongs to the space {known.name!r}, not to {asked!r}.")
    if asked is None and known.name == tables.UNKNOWN_SPACE:
        raise InvalidValueError(
            "The table was made of labels and choices, and does not say which space they belong to. Name it with "
            "--space, such as --space my_space.py:MySpace."
        )
    if asked is None and ":" in known.name:
        raise InvalidValueError(
            f"The table names the class {known.name!r} as its space. Code is not run because a file names it: if you "
            f"trust the class, name it yourself with --space {known.name}."
        )
    return asked or known.name


def _table_of(estimator: estimators.Estimator) -> tables.LookupTable | None:
    """Return the table that an estimator answers from first, if there is one."""
    if isinstance(estimator, estimators.TableEstimator):
        return estimator.table
    return estimator.base_table if isinstance(estimator, estimators.LayerEstimator) else None


def plan_for(space: Any, name: str, batch_size: int) -> tables.MeasurePlan:
    """Return the plan of a space for a batch size; a space without one is an error."""
    if not hasattr(space, "measure_plan"):
        raise InvalidValueError(
            f"The space {name!r} has no measure plan, that is, no fixed layers with a few candidates each."
        )
    return tables.measure_plan_of(space, batch_size)


def table_name(plan: tables.MeasurePlan, platform: Platform, metric: str) -> str:
    """Name a table's file after its space, platform, and metric if it is not latency.

    Only arguments that differ from the space's usual ones are spelt out.
    """
    arguments = plan.space.arguments
    parts = [plan.space.name]
    parts += [f"{name[0]}{arguments[name]:g}" for name in ("width", "depth") if arguments.get(name, 1.0) != 1.0]
    return _file_name("-".join(parts), plan.input_shape, platform, metric)


def operator_table_name(space: str, shape: tuple[int, ...], platform: Platform, metric: str) -> str:
    """Name the file of a table of operators after its space, input, platform, and metric if it is not latency.

    Examples
    --------
    >>> operator_table_name("folder/space.py:Mine", (2, 3, 16, 16), Platform("cpu", "torch"), "energy")
    'space-Mine-16x16-b2.cpu.torch.fp32.t1.energy.json'
    """
    place, _, class_name = space.rpartition(":")
    place = Path(place).stem if place.endswith(".py") else place
    stem = re.sub(r"[^\w.-]+", "-", f"{place}-{class_name}" if place else class_name)
    return _file_name(stem, shape, platform, metric)


def _file_name(stem: str, shape: tuple[int, ...], platform: Platform, metric: str) -> str:
    size = "x".join(map(str, shape[2:] or shape))
    return f"{stem}-{size}-b{shape[0]}.{platform.id}{'' if metric == 'latency' else f'.{metric}'}.json"
