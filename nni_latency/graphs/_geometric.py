"""What is used of PyTorch Geometric, which is an optional package."""

from __future__ import annotations

from torch import Tensor

from nni_latency.imports import require

_PURPOSE, _EXTRA = "Predicting networks from their graphs", "nni_latency[graph]"

_data = require("torch_geometric.data", _PURPOSE, _EXTRA)
_utils = require("torch_geometric.utils", _PURPOSE, _EXTRA)

Batch, Data = _data.Batch, _data.Data
SAGEConv = require("torch_geometric.nn", _PURPOSE, _EXTRA).SAGEConv


def add_up(values: Tensor, index: Tensor, count: int | None = None) -> Tensor:
    """Add up the rows of a tensor that have one number, (count, ...)."""
    found: Tensor = _utils.scatter(values, index, dim=0, dim_size=count, reduce="sum")
    return found
