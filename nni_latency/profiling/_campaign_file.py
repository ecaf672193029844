# SPDX-License-Identifier: Apache-2.0
"""`CampaignFile`: a text file with a list of models and their progress marks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nni_latency.errors import FileFormatError
from nni_latency.files import write_atomically

#: Marks of models: waiting, done, failed.
_WAITING, _DONE, _FAILED = " ", "x", "!"

_LINE = re.compile(r"\s*(?:\[(?P<mark>[ x!])\]\s*)?(?P<words>[^#]*?)\s*(?:#.*)?")

#: Largest file size [byte].
_LARGEST = 2**20


@dataclass(frozen=True)
class ListedModel:
    """A line of a campaign file: a model and optional input shapes. Immutable."""

    model: str
    inputs: tuple[str, ...] = ()


class CampaignFile:
    """A text file with a model per line, each after a box: ``[ ]`` waiting, ``[x]`` done, ``[!]`` failed.

    A model is followed by its input shapes, as for the option ``--input``; ``#`` starts a comment. The marks are
    informative only: measurements are stored in the database.

    Parameters
    ----------
    path : str or Path
        The file.

    Raises
    ------
    FileFormatError
        If it cannot be read, contains no model, or a model twice.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with self.path.open(encoding="utf-8") as file:
                text = file.read(_LARGEST + 1)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise FileFormatError(f"Cannot read the campaign file {str(path)!r}: {reason}.") from error
        if len(text) > _LARGEST:
            # It is written again, which would lose the rest.
            raise FileFormatError(f"The campaign file {str(path)!r} is larger than {_LARGEST >> 20} MiB. Divide it.")
        self._lines = text.splitlines()
        self.models: list[ListedModel] = []
        for number, line in enumerate(self._lines, 1):
            words = self._words(line)
            if words and words[0] in {item.model for item in self.models}:
                raise FileFormatError(f"The campaign file {str(path)!r}, line {number}, names {words[0]!r} again.")
            if words:
                self.models.append(ListedModel(words[0], tuple(words[1:])))
        if not self.models:
            raise FileFormatError(
                f"The campaign file {str(path)!r} names no model. Write one a line, such as: [ ] resnet18"
            )

    def mark(self, done: Mapping[str, str | None]) -> None:
        """Update the marks, and write the file if it changed.

        Parameters
        ----------
        done : mapping of str to str or None
            Reason of failure by model, or None for a finished model. All others are waiting.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        lines = [self._marked(line, done) for line in self._lines]
        if lines != self._lines:
            write_atomically(self.path, "\n".join(lines) + "\n")
            self._lines = lines

    def _marked(self, line: str, done: Mapping[str, str | None]) -> str:
        words = self._words(line)
        if not words:
            return line
        _, hash_sign, remark = line.partition("#")
        mark = _WAITING if words[0] not in done else _DONE if done[words[0]] is None else _FAILED
        # Behind a failed model stands the reason, which is none of one that is tried again.
        had_failed = line.lstrip().startswith(f"[{_FAILED}]")
        rest = f"  #{remark}" if hash_sign and not had_failed else ""
        if mark == _FAILED:
            rest = f"  # {' '.join(str(done[words[0]]).split())}"
        return f"[{mark}] {' '.join(words)}{rest}"

    @staticmethod
    def _words(line: str) -> list[str]:
        match = _LINE.fullmatch(line)
        return match["words"].split() if match else []
