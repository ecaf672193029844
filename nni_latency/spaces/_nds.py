# SPDX-License-Identifier: Apache-2.0
"""How NNI's own spaces of cells run on symbolic tensors, and which of their parts an output depends on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from nni_latency.spaces._cells import CellRunner
from nni_latency.spaces._nni import NDS, Cell
from nni_latency.spaces._symbolic import Varying, calls_to
from nni_latency.spaces._walker import Walker


def is_elastic(space: Any) -> bool:
    """Whether the layers of a space take as many channels as come: NNI makes such a space anew to freeze it."""
    return isinstance(space, NDS) and space.merge_op == "loose_end"


def run_nds(cells: CellRunner, runs_unused: bool, walker: Walker, space: Any, inputs: Any) -> Any:
    """Run one of NNI's cell-based spaces for every width and depth: it is rebuilt for each of them.

    Parameters
    ----------
    cells : CellRunner
        Runs the cells.
    runs_unused : bool
        Whether parts that no output depends on count.
    walker, space, inputs
        As for any `Handler`.
    """
    # One candidate is enough, because the cells make the operators that they need themselves.
    cheapest = [name for name in space.op_candidates if "pool" in name][:1] or space.op_candidates[:1]

    def run(width: int, depth: int) -> Any:
        with torch.device("meta"):
            fixed = NDS(
                *(cheapest, space.merge_op, space.num_nodes_per_cell, width, depth, space.dataset),
                auxiliary_loss=space.auxiliary_loss,
                drop_path_prob=space.drop_path_prob,
            ).eval()
        with calls_to(walker.run if runs_unused else _running_used_parts(walker, cells, fixed), fixed):
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


def _running_used_parts(walker: Walker, cells: CellRunner, network: Any) -> Callable[..., Any]:
    """Return what runs a module of a network so that its operators count only where an output depends on them."""
    used = _used_parts(walker, cells, network)
    # These run part by part: what one stage counts depends on its distance from the output.
    opened = {*network.stages, *(part.preprocessor for part in used if isinstance(part, Cell))}
    if network.dataset == "imagenet":
        opened.add(network.stem1)

    def run(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if module in opened:
            return module.forward(*args, **kwargs)
        if module in used:
            return walker.where(used[module], functools.partial(walker.run, module, args, kwargs))
        return walker.run(module, args, kwargs)

    return run


def _used_parts(walker: Walker, cells: CellRunner, network: Any) -> dict[nn.Module, Varying]:
    """Return for every part on which no output may depend whether one does.

    A cell takes the results of the two before it, or one of them; the first two take those of the stem. All nodes lead
    to the result of their cell, which is used where a later cell that is used takes it.
    """
    combine = walker.choices.combine
    used: dict[nn.Module, Varying] = {}
    this, earlier = Varying.constant(True), Varying.constant(False)
    for cell in reversed([part for part in network.modules() if isinstance(part, Cell)]):
        used[cell] = this
        taken = cells.predecessors(walker, cell)
        for place, part in enumerate((cell.preprocessor.pre0, cell.preprocessor.pre1)):
            used[part] = combine([taken], functools.partial(_contains, place))
        this, earlier = (
            combine([earlier, this, taken], lambda known, needed, places: known or (needed and 1 in places)),
            combine([this, taken], lambda needed, places: needed and 0 in places),
        )
    if network.dataset == "imagenet":
        # The activation changes the result of the first stem in place, which is always used.
        used.update(dict.fromkeys(list(network.stem1)[1:], this))
    return used


def _contains(place: int, places: frozenset[int]) -> bool:
    return place in places
