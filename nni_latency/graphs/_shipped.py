# SPDX-License-Identifier: Apache-2.0
"""Files of graph predictors: the one that ships with the package, and the user's own."""

from __future__ import annotations

import hashlib
from pathlib import Path

from nni_latency.errors import UnknownNameError
from nni_latency.files import is_file, user_folder

#: Name of the shipped predictor.
PRETRAINED = "pretrained"

_FILE = Path(__file__).with_name("pretrained.safetensors")


def shipped_predictor() -> Path:
    """Return the file of the shipped predictor.

    Raises
    ------
    UnknownNameError
        If this installation has none.
    """
    if not _FILE.is_file():
        raise UnknownNameError(
            "No predictor ships with this version. Fit one with 'nni-latency learn graph', and name its file."
        )
    return _FILE


def shipped_digest() -> str:
    """Return a digest of the content of the shipped predictor, which identifies its version."""
    return hashlib.sha256(shipped_predictor().read_bytes()).hexdigest()[:12]


def own_predictor() -> Path:
    """Return the path of the user's own predictor: the shipped one with the platforms that were learned here.

    That is ``predictor.safetensors`` in ``$XDG_DATA_HOME/nni_latency`` or ``~/.local/share/nni_latency``. The file
    exists once ``nni-latency learn graph`` has measured this machine.
    """
    return user_folder("XDG_DATA_HOME", ".local/share") / "predictor.safetensors"


def usual_predictor() -> Path:
    """Return the file of the predictor to use where none is named: the user's own if it exists, else the shipped one.

    Raises
    ------
    UnknownNameError
        If there is neither.
    """
    own = own_predictor()
    return own if is_file(own) else shipped_predictor()


def find_predictor(name: str | Path) -> Path:
    """Return the file of a graph predictor: the path itself, or the shipped file for `PRETRAINED`.

    Raises
    ------
    UnknownNameError
        If this installation has no predictor of that name.

    Examples
    --------
    >>> find_predictor("pretrained") == shipped_predictor(), str(find_predictor("mine.safetensors"))
    (True, 'mine.safetensors')
    """
    return shipped_predictor() if str(name) == PRETRAINED and not is_file(name) else Path(name)
