# SPDX-License-Identifier: Apache-2.0
"""How NNI's own spaces of cells run on symbolic tensors."""

from __future__ import annotations

import functools
from typing import Any

import torch

from nni_latency.spaces._nni import NDS
from nni_latency.spaces._symbolic import calls_to
from nni_latency.spaces._walker import Walker


def is_elastic(space: Any) -> bool:
    """Whether the layers of a space take as many channels as come: NNI makes such a space anew to freeze it."""
    return isinstance(space, NDS) and space.merge_op == "loose_end"


def run_nds(walker: Walker, space: Any, inputs: Any) -> Any:
    """Run one of NNI's cell-based spaces for every width and depth: it is rebuilt for each of them."""
    # One candidate is enough, because the cells make the operators that they need themselves.
    cheapest = [name for name in space.op_candidates if "pool" in name][:1] or space.op_candidates[:1]

    def run(width: int, depth: int) -> Any:
        with torch.device("meta"):
            fixed = NDS(
                *(cheapest, space.merge_op, space.num_nodes_per_cell, width, depth, space.dataset),
                auxiliary_loss=space.auxiliary_loss,
                drop_path_prob=space.drop_path_prob,
            ).eval()
        with calls_to(walker.run, fixed):
            return fixed.forward(inputs)

    def run_width(width: int) -> Any:
        if isinstance(space.num_cells, int):
            return run(width, space.num_cells)
        depth = walker.expression(space.num_cells)
        return walker.select(depth, {value: functools.partial(run, width, value) for value in depth.values})

    if isinstance(space.width, int):
        return run_width(space.width)
    widths = walker.choices.label("width")
    return walker.select(widths, {value: functools.partial(run_width, value) for value in widths.values})
