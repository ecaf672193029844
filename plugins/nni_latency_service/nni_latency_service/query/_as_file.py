"""A content as a file, for a moment."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nni_latency.errors import LatencyError


@contextmanager
def as_file(content: bytes, name: str) -> Iterator[Path]:
    """Put a content into a file for a moment; messages about the file name what the user knows it by."""
    with tempfile.TemporaryDirectory(prefix="nni_latency_") as folder:
        path = Path(folder) / "network.onnx"
        path.write_bytes(content)
        try:
            yield path
        except LatencyError as error:
            raise type(error)(str(error).replace(str(path), name)) from error
