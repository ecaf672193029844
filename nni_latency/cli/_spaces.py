"""What the options of a space stand for: its arguments, and what is measured of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click

import nni_latency.spaces as spaces
from nni_latency.errors import InvalidValueError, MismatchError
from nni_latency.tables import OperatorTable

#: Options that only some spaces know as arguments.
_NAMED = ("preset", "width", "depth")


class JsonObject(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """Names and values as JSON, such as ``{"num_labels": 10}``."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """Read it, or fail with a sentence."""
        if isinstance(value, dict):
            return value
        try:
            content = json.loads(value)
        except ValueError as error:
            self.fail(f'It must be a JSON object such as {{"num_labels": 10}}: {error}. Got {value!r}.', param, ctx)
        if not isinstance(content, dict):
            self.fail(f'It must be a JSON object such as {{"num_labels": 10}}. Got {value!r}.', param, ctx)
        return content


def own_arguments(name: str, given: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a space's constructor.

    Parameters
    ----------
    name : str
        The space.
    given : dict
        Options that were given: ``preset``, ``input_size``, ``num_classes``, ``width``, ``depth``.
    extra : dict
        Arguments by their own names.

    Raises
    ------
    InvalidValueError
        If the space does not know an option.
    """
    if name not in spaces.HUB_SPACES and ":" not in name:
        return {**given, **extra}
    strange = [f"--{option}" for option in _NAMED if option in given]
    if strange:
        raise InvalidValueError(
            f"The space {name!r} does not know {' and '.join(strange)}. Give its own arguments with --space-args, such "
            "as --space-args '{\"width\": 16}'."
        )
    arguments = {}
    if "num_classes" in given:
        # As NNI's hub calls it.
        arguments["num_labels"] = given["num_classes"]
    size_argument = spaces.HUB_SPACES[name].size_argument if name in spaces.HUB_SPACES else None
    if size_argument and "input_size" in given:
        arguments[size_argument] = given["input_size"]
    return {**arguments, **extra}


def sampled_space(
    table: OperatorTable, asked: str | None, given: dict[str, Any], input_size: int | None, batch_size: int | None
) -> spaces.SampledSpace:
    """Return the space of a table of operators, with what it was measured with; options must agree with it.

    Raises
    ------
    MismatchError
        If the table belongs to another space, input size or batch size than the options ask for.
    """
    reference = table.space
    if asked not in (None, reference.name):
        raise MismatchError(f"The table belongs to the space {reference.name!r}, asked is {asked!r}.")
    wrong = [
        f"{name}={reference.arguments.get(name)} against {name}={value}"
        for name, value in given.items()
        if json.dumps(reference.arguments.get(name)) != json.dumps(value)
    ]
    if input_size not in (None, table.input_shape[-1]):
        wrong.append(f"an input of {'x'.join(map(str, table.input_shape))} against --input-size {input_size}")
    if batch_size not in (None, table.batch_size):
        wrong.append(f"batch size {table.batch_size} against batch size {batch_size}")
    if wrong:
        raise MismatchError(f"The table belongs to another space or input than asked: {'; '.join(wrong)}.")
    space = spaces.make_space(reference.name, reference.arguments)
    return spaces.SampledSpace(
        space, table.input_shape, tuple(spaces.check_sample(space, network.sample) for network in table.networks)
    )


def file_stem(name: str) -> str:
    """Return a space's name as part of a file's name.

    Examples
    --------
    >>> file_stem("folder/space.py:Mine"), file_stem("package.module:Mine"), file_stem("darts")
    ('space-Mine', 'package.module-Mine', 'darts')
    """
    place, _, class_name = name.rpartition(":")
    place = Path(place).stem if place.endswith(".py") else place
    return re.sub(r"[^\w.-]+", "-", f"{place}-{class_name}" if place else class_name)
