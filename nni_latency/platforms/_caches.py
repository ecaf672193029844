"""`cache_sizes`: the caches of the first processor, as Linux tells them."""

from __future__ import annotations

import re
from pathlib import Path

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def cache_sizes() -> list[tuple[str, int]]:
    """Return level and size [byte] of every cache, those that it shares with other processors too.

    Returns
    -------
    list of tuple of (str, int)
        Empty where they cannot be read.
    """
    return [(_read_text(path / "level"), read_size(path / "size")) for path in _CACHES.glob("index*")]


def read_size(path: Path) -> int:
    """Return a size that is written like ``32768K`` [byte]; 0 if it cannot be read."""
    match = re.fullmatch(r"(\d+)([KMG]?)", _read_text(path))
    return int(match[1]) * _UNITS[match[2]] if match else 0


def _read_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
