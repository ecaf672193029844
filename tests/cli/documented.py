# SPDX-License-Identifier: Apache-2.0
"""The commands that the documentation prints."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

#: Every document with commands, at its path.
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.rst")))

_BLOCKS = {
    ".md": re.compile(r"^```console\n(?P<block>.*?)^```", re.DOTALL | re.MULTILINE),
    # Text that goes on behind the block is indented as its directive is, in a list for instance.
    ".rst": re.compile(r"^(?P<by> *)\.\. code-block:: console\n\n(?P<block>(?:(?P=by) +.*\n|\n)+)", re.MULTILINE),
}


class Command(NamedTuple):
    """A command with the place where it is printed, such as ``commands/learn.rst:12``."""

    place: str
    words: tuple[str, ...]


def commands() -> list[Command]:
    """List every call of ``nni-latency`` in the console blocks of README and docs, without the program's name."""
    return [command for path in DOCUMENTS for command in _commands_of(path)]


def _commands_of(path: Path) -> Iterator[Command]:
    name = path.relative_to(ROOT).as_posix().removeprefix("docs/")
    for line, words in commands_in(path.read_text(encoding="utf-8"), path.suffix):
        yield Command(f"{name}:{line}", words)


def commands_in(text: str, suffix: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """List every call of ``nni-latency`` in the console blocks of a text, with the number of its line."""
    for block in _BLOCKS[suffix].finditer(text):
        line = text.count("\n", 0, block.start("block")) + 1
        typed = textwrap.dedent(block["block"])
        # A command that ends with a backslash goes on in the next line.
        for match in re.finditer(r"^\$ nni-latency ((?:.*\\\n)*.*)$", typed, re.MULTILINE):
            words = shlex.split(match[1].replace("\\\n", " "), comments=True)
            # "nni-latency COMMAND [OPTIONS]" says what a command looks like.
            if words[0] != "COMMAND":
                yield line + typed.count("\n", 0, match.start()), tuple(words)
