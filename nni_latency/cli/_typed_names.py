"""Messages of the package in the words of the command line: options in place of parameters of Python."""

from __future__ import annotations

import re

import click

#: Parameters whose name belongs to an option that sets something else, and the name of their own option.
_RENAMED = {"'batch_size' of a search": "'train_batch_size' of a search"}


def as_typed(message: str, command: click.Command | None) -> str:
    """Return a message with the options of a command in place of the parameters that they set.

    A parameter is recognised by how messages write one: ``the 'name'``, ``'name' must``, ``with 'name'``, or
    ``name=value``. Other words in quotes are values, and stay.

    Parameters
    ----------
    message : str
        Of an error.
    command : click.Command or None
        What was called; of a group, the options of all of its commands count.

    Examples
    --------
    >>> command = click.Command("merge", params=[click.Option(["--conflict"]), click.Option(["--overwrite"])])
    >>> as_typed("The 'conflict' of merge_tables must be 'first' or 'last'. Got 'conflict'.", command)
    "--conflict must be 'first' or 'last'. Got 'conflict'."
    >>> as_typed("'a.json' exists. Replace it: overwrite=True.", command)
    "'a.json' exists. Replace it: --overwrite."
    """
    flags = _flags_of(command)
    if not flags:
        return message
    for parameter, renamed in _RENAMED.items():
        message = message.replace(parameter, renamed)
    names = "|".join(map(re.escape, flags))
    owner = r"(?: parameter)?(?: of (?:an? )?\w+(?= (?:must|is|takes)\b))?"
    message = re.sub(rf"\b(?:[Tt]he|[Aa]n?) '({names})'{owner}", lambda found: flags[found[1]], message)
    message = re.sub(rf"(?<=\bwith )'({names})'|'({names})'(?= must\b)", lambda found: flags[found[0][1:-1]], message)
    return re.sub(
        rf"(?<![\w-])({names})=(?:True\b|'([^']*)')",
        lambda found: f"{flags[found[1]]} {found[2] or ''}".rstrip(),
        message,
    )


def _flags_of(command: click.Command | None) -> dict[str, str]:
    """Return the options by the names that parameters of Python have for them."""
    if isinstance(command, click.Group):
        return {name: flag for part in command.commands.values() for name, flag in _flags_of(part).items()}
    options = [item for item in command.params if isinstance(item, click.Option)] if command else []
    found: dict[str, str] = {}
    for item in options:
        flag = max(item.opts, key=len)
        found |= dict.fromkeys((str(item.name), flag.lstrip("-").replace("-", "_")), flag)
    return found
