# SPDX-License-Identifier: Apache-2.0
"""The commands that the documentation shows, what it shows that they print, and its Python code."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]

#: Every document with commands, at its path.
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.rst")))

#: Device of the machine whose output the documents show.
DEVICE = "epyc-25-1-1"

# What a block of type "none" shows behind commands is what the last of them prints.
_CONSOLE = {
    ".md": re.compile(r"^```console\n(?P<typed>.*?)^```(?P<printed>)", re.DOTALL | re.MULTILINE),
    ".rst": re.compile(
        r"^(?P<margin> *)\.\. code-block:: console\n\n(?P<typed>(?:(?P=margin) +.*\n|\n)+)"
        r"(?:(?P=margin)\.\. code-block:: none\n\n(?P<printed>(?:(?P=margin) +.*\n|\n)+))?",
        re.MULTILINE,
    ),
}

_PYTHON = {
    ".md": re.compile(r"^```python\n(?P<file>)(?P<text>.*?)^```", re.DOTALL | re.MULTILINE),
    ".rst": re.compile(
        r"^(?P<margin> *)\.\. code-block:: python\n(?:(?P=margin) +:caption: (?P<file>.*)\n)?\n"
        r"(?P<text>(?:(?P=margin) +.*\n|\n)+)",
        re.MULTILINE,
    ),
}

# A command that ends with a backslash goes on in the next line; what it prints ends before the next command.
_COMMAND = re.compile(r"^\$ (?P<line>(?:.*\\\n)*.*)\n(?P<printed>(?:(?!\$ ).*\n)*)", re.MULTILINE)

_FRAMES = str.maketrans(dict.fromkeys("┏┳┓┡╇┩└┴┘┃│━─", " "))

_NUMBER = r"[+-]?\d+(?:\.\d+)?"

_VERSION = r"\d+(?:\.\d+){2,}"

_DATE = r"\d{4}-\d\d-\d\d"

_UNIT = r"(?:[num]?s|min|h|[kMGT]|[kMGT]i?B|bytes?|[num]?J|[mk]?W)"

_VARIABLE = re.compile(
    rf"(?P<elided>\.\.\. )|(?P<device>{DEVICE}(?=\.))"
    rf"|(?P<date>\b{_DATE}\b)|(?P<version>(?<![\w.-]){_VERSION}(?![\w-]))|(?P<number>(?<![\w.-]){_NUMBER}(?![\w-]|\.\d))"
    rf"|(?P<unit>(?<=\d ){_UNIT}\b|(?<=\[){_UNIT}(?=\]))"
)


class Command(NamedTuple):
    """A command.

    Attributes
    ----------
    place : str
        Where it is shown, such as ``commands/learn.rst:12``.
    words : tuple of str
        What is typed after the name of the program.
    printed : str
        What is shown below it.
    """

    place: str
    words: tuple[str, ...]
    printed: str


class Code(NamedTuple):
    """Python code.

    Attributes
    ----------
    place : str
        Where it is shown.
    file : str
        Name of the file that it is; empty for a fragment.
    text : str
        The code.
    """

    place: str
    file: str
    text: str


def commands() -> list[Command]:
    """List every call of ``nni-latency`` in the console blocks of README and docs."""
    return [command for path in DOCUMENTS for command in _commands_of(path)]


def codes() -> list[Code]:
    """List every block of Python in README and docs."""
    return [
        Code(_place(path, block.string, block.start("text")), block["file"] or "", textwrap.dedent(block["text"]))
        for path in DOCUMENTS
        for block in _PYTHON[path.suffix].finditer(path.read_text(encoding="utf-8"))
    ]


def shown(*words: str) -> list[str]:
    """List what the documents show that a command prints."""
    return [command.printed for command in commands() if command.words == words and command.printed]


def check_printed(text: str, printed: str, *, here: str = DEVICE, numbers: bool = False) -> None:
    """Fail unless a document shows what a command prints.

    Words must be the same, in order; spaces, line breaks and the frames of tables do not count. ``...`` stands for any
    words. Versions and dates may be others, and the device whose output is shown may be this machine.

    Parameters
    ----------
    text, printed : str
        What the document shows, and what the command printed.
    here : str, optional
        Name of the device of this machine.
    numbers : bool, default=False
        Whether numbers and units must be the same, too; within 2 %, because processors round differently.
    """
    wanted, found = _in_one_line(text), _in_one_line(printed)
    pattern, known, start = "", [], 0
    for part in _VARIABLE.finditer(wanted):
        pattern += re.escape(wanted[start : part.start()])
        start = part.end()
        if part["elided"]:
            pattern += "(?:.* )?"
        elif part["device"]:
            pattern += f"(?:{DEVICE}|{re.escape(here)})"
        elif part["date"]:
            pattern += _DATE
        elif part["version"]:
            pattern += _VERSION
        elif part["number"]:
            pattern += f"({_NUMBER})"
            known.append(part[0])
        else:
            pattern += re.escape(part[0]) if numbers else r"\w+"
    match = re.fullmatch(pattern + re.escape(wanted[start:]), found)
    assert match, f"The document shows\n{wanted}\nand the command prints\n{found}"
    if numbers:
        assert [float(text) for text in match.groups()] == pytest.approx([float(text) for text in known], rel=0.02)


def _in_one_line(text: str) -> str:
    """Return the words of a text, with a space after each."""
    return "".join(f"{word} " for word in text.translate(_FRAMES).split())


def _commands_of(path: Path) -> Iterator[Command]:
    text = path.read_text(encoding="utf-8")
    for block in _CONSOLE[path.suffix].finditer(text):
        typed = textwrap.dedent(block["typed"])
        for match in _COMMAND.finditer(typed):
            printed = match["printed"]
            if match.end() == len(typed):
                printed += textwrap.dedent(block["printed"] or "")
            if not match["line"].startswith("nni-latency "):
                continue
            _, *words = shlex.split(match["line"].replace("\\\n", " "), comments=True)
            # "nni-latency COMMAND [OPTIONS]" says what a command looks like.
            if words[0] != "COMMAND":
                line = typed.count("\n", 0, match.start())
                yield Command(_place(path, text, block.start("typed"), line), tuple(words), printed.strip("\n"))


def _place(path: Path, text: str, start: int, lines: int = 0) -> str:
    name = path.relative_to(ROOT).as_posix().removeprefix("docs/")
    return f"{name}:{text.count(chr(10), 0, start) + 1 + lines}"
