"""The predictor that ships with the package."""

from __future__ import annotations

from pathlib import Path

from nni_latency.errors import UnknownNameError

_FILE = Path(__file__).with_name("pretrained.safetensors")


def shipped_predictor() -> Path:
    """Return the file of the predictor that ships.

    Raises
    ------
    UnknownNameError
        If this installation has none.
    """
    if not _FILE.is_file():
        raise UnknownNameError(
            "No predictor ships with this version. Fit one with 'nni-latency fit graph', and name its file."
        )
    return _FILE
