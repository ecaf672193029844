# SPDX-License-Identifier: Apache-2.0
"""Temporary files with a given content."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nni_latency.errors import LatencyError


@contextmanager
def as_file(content: bytes, name: str) -> Iterator[Path]:
    """Write a content to a temporary file; messages show the name that the user gave."""
    with tempfile.TemporaryDirectory(prefix="nni_latency_") as folder:
        path = Path(folder) / "network.onnx"
        path.write_bytes(content)
        try:
            yield path
        except LatencyError as error:
            raise type(error)(str(error).replace(str(path), name)) from error
