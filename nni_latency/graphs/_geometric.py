"""What is used of PyTorch Geometric, which is an optional package."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

from torch import Tensor

from nni_latency.imports import require

_PURPOSE, _EXTRA = "Predicting networks from their graphs", "nni_latency[graph]"

_data = require("torch_geometric.data", _PURPOSE, _EXTRA)
_utils = require("torch_geometric.utils", _PURPOSE, _EXTRA)

Batch, Data = _data.Batch, _data.Data

_nn = require("torch_geometric.nn", _PURPOSE, _EXTRA)


def sage_conv(width: int) -> Any:
    """Return a `SAGEConv` of neighbours alone.

    The first of a process writes the source of its `propagate` to the temporary folder and leaves it there; here it is
    removed.
    """
    made = _nn.SAGEConv(width, width, root_weight=False)
    written = Path(type(made).propagate.__code__.co_filename)
    if written.is_relative_to(tempfile.gettempdir()):
        with contextlib.suppress(OSError):
            written.unlink()
    return made


def add_up(values: Tensor, index: Tensor, count: int | None = None) -> Tensor:
    """Add up the rows of a tensor that have one number, (count, ...)."""
    found: Tensor = _utils.scatter(values, index, dim=0, dim_size=count, reduce="sum")
    return found
