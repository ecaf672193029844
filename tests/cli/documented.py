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
    ".md": re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE),
    ".rst": re.compile(r"^ *\.\. code-block:: console\n\n((?: +.*\n|\n)+)", re.MULTILINE),
}


class Command(NamedTuple):
    """A command with the place where it is printed, such as ``commands/learn.rst:12``."""

    place: str
    words: tuple[str, ...]


def commands() -> list[Command]:
    """List every call of ``nni-latency`` in the console blocks of README and docs, without the program's name."""
    return [command for path in DOCUMENTS for command in _commands_of(path)]


def _commands_of(path: Path) -> Iterator[Command]:
    text = path.read_text(encoding="utf-8")
    for block in _BLOCKS[path.suffix].finditer(text):
        line = text.count("\n", 0, block.start(1)) + 1
        # A command that ends with a backslash goes on in the next line.
        for match in re.finditer(r"^\$ nni-latency ((?:.*\\\n)*.*)$", textwrap.dedent(block[1]), re.MULTILINE):
            words = shlex.split(match[1].replace("\\\n", " "), comments=True)
            place = line + textwrap.dedent(block[1]).count("\n", 0, match.start())
            # "nni-latency COMMAND [OPTIONS]" says what a command looks like.
            if words[0] != "COMMAND":
                name = path.relative_to(ROOT).as_posix().removeprefix("docs/")
                yield Command(f"{name}:{place}", tuple(words))
