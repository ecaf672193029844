# SPDX-License-Identifier: Apache-2.0
"""litert-torch as an adapter, sent to the Python that converts networks: a network there is one that was converted."""

from __future__ import annotations

import importlib.metadata
import io
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any


class Adapter:
    """Takes programs as `torch.export.save` writes them.

    Parameters
    ----------
    settings : dict
        ``threads``.
    """

    name = "litert-torch"

    def __init__(self, settings: dict[str, Any]) -> None:
        warnings.simplefilter("ignore")
        os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", JAX_PLATFORMS="cpu", CUDA_VISIBLE_DEVICES="")

    def facts(self) -> dict[str, str]:
        """Return the versions of litert-torch and torch; neither is imported, as that takes seconds."""
        return {name: importlib.metadata.version(name) for name in ("litert-torch", "torch")}

    def load(self, data: bytes) -> Converted:
        """Convert a network."""
        import litert_torch
        import torch

        program = torch.export.load(io.BytesIO(data))
        arguments, _ = program.example_inputs
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "network.tflite")
            litert_torch.convert(program.module(check_guards=False), arguments).export(str(path))
            return Converted(path.read_bytes())


class Converted:
    """A converted network."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def tflite(self) -> bytes:
        """Return it as a file of TFLite holds it."""
        return self._data
