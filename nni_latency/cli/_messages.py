# SPDX-License-Identifier: Apache-2.0
"""What the commands say: how much, in the words of the command line, and in characters that a terminal may show."""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import click
from rich.cells import cell_len

from nni_latency.errors import LatencyWarning

_PREFIX = "nni_latency.noise."

#: A word, with the unit behind it if it is a number.
_WORD = re.compile(r"\S+(?:(?<=\d) (?:%|[mun]?s|m?J|W|[KMG]i?B)(?![\w/]))?")

#: Control characters, which could clear the screen or write elsewhere, and those that change the direction of text.
_UNPRINTABLE = dict.fromkeys(
    (
        *(code for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
        # Halves of characters, which JSON and names of files can hold and no terminal takes.
        *range(0xD800, 0xE000),
    ),
    "\ufffd",
)


def noise_options() -> list[click.Option]:
    """Make both options; what they say holds for the whole command line."""
    texts = {
        "quiet": "Print no progress and no remarks.",
        "verbose": "Cut no list short, show all facts, and where an error arose.",
    }
    return [
        click.Option([f"--{name}"], is_flag=True, expose_value=False, help=text, callback=_note)
        for name, text in texts.items()
    ]


def is_quiet() -> bool:
    """Whether only results are printed."""
    return _is("quiet")


def is_verbose() -> bool:
    """Whether everything is printed."""
    return _is("verbose")


def is_new(remark: str) -> bool:
    """Whether the command makes a remark for the first time; from now on it does not."""
    context = click.get_current_context(silent=True)
    made: set[str] = set() if context is None else context.meta.setdefault(f"{_PREFIX}remarks", set())
    if remark in made:
        return False
    made.add(remark)
    return True


@contextlib.contextmanager
def warnings_as_remarks() -> Iterator[None]:
    """Print every warning of this package once, as a remark; other warnings as Python does."""

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if not issubclass(category, LatencyWarning):
            by_python(message, category, *where, **more)
        elif not is_quiet() and is_new(str(message)):
            click.echo(folded(printable(str(message))), err=True)

    with warnings.catch_warnings():
        by_python = warnings.showwarning
        warnings.simplefilter("always", LatencyWarning)
        warnings.showwarning = show
        yield


def _is(name: str) -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_PREFIX + name))


def _note(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value:
        ctx.meta[f"{_PREFIX}{parameter.name}"] = True
    if _is("quiet") and _is("verbose"):
        raise click.UsageError("--quiet and --verbose exclude each other. Give one of them.")


def folded(text: str) -> str:
    """Fold a text for stderr between words, if that is a screen."""
    if not sys.stderr.isatty():
        return text
    width = shutil.get_terminal_size().columns
    places = [(line, [0, *breaks(line, width), len(line)]) for line in text.split("\n")]
    return "\n".join(line[begin:end].rstrip() for line, ends in places for begin, end in pairwise(ends))


def breaks(line: str, width: int) -> list[int]:
    """Return where a line is broken between words; a word wider than the screen, such as a path, stays whole."""
    begin, found = 0, []
    for word in _WORD.finditer(line):
        if cell_len(line[begin : word.end()]) > width and line[begin : word.start()].strip():
            begin = word.start()
            found.append(begin)
    return found


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


def printable(text: str) -> str:
    """Return a text with a replacement character for everything that would control the terminal.

    Examples
    --------
    >>> printable("a" + chr(27) + "[2J") == "a" + chr(0xFFFD) + "[2J"
    True
    """
    return text.translate(_UNPRINTABLE)
