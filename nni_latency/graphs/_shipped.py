"""The graph predictor that ships with the package."""

from __future__ import annotations

from pathlib import Path

from nni_latency.errors import UnknownNameError
from nni_latency.files import is_file

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
