# SPDX-License-Identifier: Apache-2.0
"""Typed options of commands: a group is a frozen dataclass, each of its fields an option."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

from nni_latency.cli._help import Option
from nni_latency.cli._outputs import OutputFile, outputs
from nni_latency.errors import InvalidValueError, LatencyError, UnknownNameError
from nni_latency.units import parse_duration, parse_quantity, whole_number

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = TypeVar("Value")

Record = TypeVar("Record", bound="DataclassInstance")


def option(text: str, *flags: str, rare: bool = False, **attributes: Any) -> Any:
    """Make a field of a group.

    Parameters
    ----------
    text : str
        Help text.
    flags : str
        Flags of the option, such as ``--top``. By default one flag with the name of the field, and
        ``-o`` besides ``--out``.
    rare : bool, default=False
        Whether only ``--help-all`` lists it, because most people never need it.
    attributes
        Attributes of `click.option`. By default the type follows from the annotation of the field; a bool that is
        True by default has a flag ``--no-NAME`` too.
    """
    return dataclasses.field(metadata={"flags": flags, "rare": rare, "attributes": {"help": text, **attributes}})


def output_option(text: str, *flags: str, **attributes: Any) -> Any:
    """Make a field of a group that names a file which the command writes."""
    return option(text, *flags, type=OutputFile(), **attributes)


def names_option(text: str, flag: str, **attributes: Any) -> Any:
    """Make a field of a group that holds names: the option is repeated, or its names are separated by commas.

    Parameters
    ----------
    text : str
        Help text.
    flag : str
        Flag of the option, such as ``--platform``.
    attributes
        As for `option`.
    """
    attributes = {"metavar": "NAME", **attributes}
    return option(text, flag, type=NAMES, multiple=True, callback=_joined, **attributes)


def _joined(context: click.Context, parameter: click.Parameter, given: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for names in given for name in names))


def fields_option(text: str, flag: str, **attributes: Any) -> Any:
    """Make the field of an option that takes names and values; several of them are joined."""
    return option(text, flag, type=ARGUMENTS, multiple=True, callback=_joined_fields, **attributes)


def _joined_fields(
    context: click.Context, parameter: click.Parameter, given: tuple[Mapping[str, Any], ...]
) -> tuple[tuple[str, Any], ...]:
    return tuple(item for part in given for item in part.items())


def grouped(**changes: Mapping[str, Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of every group in a command's signature, and call the command with the groups.

    Parameters
    ----------
    changes
        Attributes of `click.option` that differ in this command, by field.

    Examples
    --------
    >>> @dataclasses.dataclass(frozen=True)
    ... class Ending:
    ...     rounds: int = option("Maximum number of rounds.", default=9)
    >>> @click.command()
    ... @grouped(rounds={"default": 3})
    ... def command(ending: Ending) -> None:
    ...     print(ending)
    >>> command([], standalone_mode=False)
    Ending(rounds=3)
    """

    def add(command: Callable[..., None]) -> Callable[..., None]:
        groups: dict[str, Any] = {
            name: kind for name, kind in get_type_hints(command).items() if dataclasses.is_dataclass(kind)
        }

        @functools.wraps(command)
        def run(*objects: Any, **values: Any) -> None:
            made = {
                name: kind(**{item.name: values.pop(item.name) for item in dataclasses.fields(kind)})
                for name, kind in groups.items()
            }
            command(*objects, **values, **made)

        for kind in reversed(groups.values()):
            hints = get_type_hints(kind)
            for item in reversed(dataclasses.fields(kind)):
                title = (kind.__doc__ or "").partition("\n")[0].partition(";")[0].rstrip(".")
                declare = _declare(item, hints[item.name], changes.get(item.name, {}), title)
                run = declare(run)
        return run

    return add


def _declare(item: dataclasses.Field[Any], hint: Any, changes: Mapping[str, Any], section: str) -> Callable[..., Any]:
    """Make the option of a field."""
    attributes = {**item.metadata["attributes"], **changes}
    flag = item.name.replace("_", "-")
    default = attributes.get("default")
    if hint is bool:
        flag += f"/--no-{flag}" if default else ""
        attributes["is_flag"] = True
    elif get_origin(hint) is Literal:
        attributes["type"] = click.Choice(get_args(hint))
    elif "type" not in attributes:
        kind = next((kind for kind in get_args(hint) if kind is not NoneType), hint)
        attributes["type"] = click.Path(path_type=Path) if kind is Path else kind
    attributes.setdefault("show_default", default not in (None, "") and default is not False)
    flags = item.metadata["flags"] or [*(["-o"] if item.name == "out" else []), f"--{flag}"]
    return click.option(*flags, item.name, cls=Option, section=section, is_rare=item.metadata["rare"], **attributes)


def with_fields(record: Record, given: Iterable[tuple[str, Any]], what: str, *, fixed: Container[str] = ()) -> Record:
    """Return a frozen record with the fields that an option such as ``--protocol NAME=VALUE`` gives.

    Parameters
    ----------
    record : dataclass
        The values that are not given.
    given : iterable of (str, Any)
        Names and values.
    what : str
        What a field is called in messages.
    fixed : container of str
        Fields that have options of their own.

    Raises
    ------
    UnknownNameError
        If there is no such field.
    """
    values = dict(given)
    known = [item.name for item in dataclasses.fields(record) if item.name not in fixed]
    for name in values:
        if name not in known:
            raise UnknownNameError.of(what, name, known)
    return dataclasses.replace(record, **values)


def refuse_given(names: Container[str], when: str) -> None:
    """Raise `InvalidValueError` if the user gave an option that has no effect in what the command is going to do.

    Parameters
    ----------
    names : container of str
        Names of the fields of such options.
    when : str
        What the user did, such as "with --dataset".
    """
    context = click.get_current_context()
    for item in context.command.params:
        name = item.name or ""
        if name in names and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise InvalidValueError(f"{max(item.opts, key=len)} has no effect {when}. Omit it.")


@dataclasses.dataclass(frozen=True)
class OutputOptions:
    """The file that a command writes."""

    out: Path | None = output_option("Output file.", "-o", "--out")

    @property
    def overwrite(self) -> bool:
        """Whether an existing file may be replaced."""
        return outputs().overwrite

    def path(self, default: str = "") -> Path:
        """Return the file, by default the one of that name; one that cannot be written is an error."""
        return self.out or outputs().claim(Path(default))


def parsed(name: str, parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """Make a click type of a function; an error of this package becomes a usage error.

    Parameters
    ----------
    name : str
        What help calls the value.
    parse : callable
        Reads the value.
    """

    def convert(text: str) -> Value:
        try:
            return parse(text)
        except LatencyError as error:
            raise click.BadParameter(str(error)) from error

    convert.__name__ = name
    return convert


def _parse_batch_sizes(text: str) -> tuple[int, ...]:
    sizes = [whole_number(part) or 0 for part in text.split(",")]
    if not all(sizes):
        raise InvalidValueError(f"Batch sizes must be whole numbers >= 1, separated by commas. Got {text!r}.")
    return tuple(dict.fromkeys(sizes))


def _parse_names(text: str) -> tuple[str, ...]:
    """Split names that are separated by commas."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise InvalidValueError("It must be names separated by commas. Got none.")
    return names


def _parse_object(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(
            f'It must be a JSON object such as {{"num_labels": 10}}: {error}. Got {text!r}.'
        ) from error
    if not isinstance(content, dict):
        raise InvalidValueError(f'It must be a JSON object such as {{"num_labels": 10}}. Got {text!r}.')
    return content


def _parse_assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (equals and name.isidentifier()):
        raise InvalidValueError(f"It must be a name and a value, as in NAME=VALUE. Got {text!r}.")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


def _parse_arguments(text: str) -> dict[str, Any]:
    if text.lstrip().startswith("{"):
        return _parse_object(text)
    # A comma may also stand in a value, such as a list.
    return _once(map(_parse_assignment, re.split(r",\s*(?=[A-Za-z_]\w*=)", text)))


def _once(given: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return values by name; raise `InvalidValueError` where one text gives a name twice."""
    values: dict[str, Any] = {}
    for name, value in given:
        if name in values:
            raise InvalidValueError(f"{name!r} is given twice, as {values[name]!r} and as {value!r}. Give it once.")
        values[name] = value
    return values


#: A duration such as ``90``, ``90s`` or ``1.5min`` [s].
DURATION = parsed("duration", parse_duration)

#: A positive quantity such as ``12ms``.
QUANTITY = parsed("quantity", parse_quantity)

#: Batch sizes separated by commas, such as ``1,8,32``.
BATCH_SIZES = parsed("n[,n...]", _parse_batch_sizes)

#: Names and values as JSON, such as ``{"num_labels": 10}``.
JSON_OBJECT = parsed("json", _parse_object)

#: Names and values, which are JSON or text, such as ``width=0.5,preset=cifar``, or a JSON object of them.
ARGUMENTS = parsed("name=value[,...]", _parse_arguments)

#: Names separated by commas.
NAMES = parsed("name[,name...]", _parse_names)
