# SPDX-License-Identifier: Apache-2.0
"""Partition of the operators of a network into natural blocks."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from nni_latency.errors import check_ints
from nni_latency.operators import Graph, OpSpec, TracedOperator, count_operators, packed_weights, parts_of

#: Container modules, which are never a block while they contain composite modules.
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)

#: Kinds of operators that start a block of an ONNX file.
_BEGINNINGS = ("conv", "linear", "matmul")

#: Share of the network's work above which a block is divided further, if it contains blocks.
_TOO_MUCH = 0.5


@dataclass(frozen=True)
class BlockOperators:
    """The operators of one block.

    Parameters
    ----------
    name : str
        Qualified name of the module; outside any block, that of the calling module.
    kind : str
        Class of the module.
    ops : tuple of OpSpec
        Operators in order.
    params : int
        Number of parameters, without those shared with an earlier block.
    neighbours : tuple of (tuple of str or None)
        Neighbours of every operator, as in `nni_latency.operators.neighbours_of`; None for a part of a larger one.
    """

    name: str
    kind: str
    ops: tuple[OpSpec, ...]
    params: int
    neighbours: tuple[tuple[str, ...] | None, ...]


def split_into_blocks(model: nn.Module, graph: Graph, depth: int | None = None) -> list[BlockOperators]:
    """Decompose a network into blocks.

    Parameters
    ----------
    model : nn.Module
        The network.
    graph : Graph
        Its operators, as `nni_latency.operators.trace` finds them by ``graph``.
    depth : int, optional
        Depth of the blocks in the module tree. By default, containers are opened, and so is a block with more than half
        of the network's work that contains blocks.

    Returns
    -------
    list of BlockOperators
        Blocks in the order of their first execution.

    Raises
    ------
    InvalidValueError
        If the depth is below 1.
    """
    if depth is not None:
        check_ints("blocks", {"depth": depth}, depth=1)
    found = [(item.name.rpartition(".")[0], item.op) for item in graph.operators]
    modules = dict(model.named_modules())
    roots = _roots(model, found, depth)
    gathered: dict[str, list[tuple[OpSpec, tuple[str, ...] | None]]] = {}
    for (owner, op), names in zip(found, graph.neighbours, strict=True):
        parts = parts_of(op)
        own = [(part, names if part == op else None) for part in parts]
        gathered.setdefault(_block_of(owner, roots), []).extend(own)
    seen: set[int] = set()
    return [
        BlockOperators(
            name or "(between blocks)",
            _kind(modules.get(name), name in roots),
            tuple(op for op, _ in placed),
            _params(modules, name, roots, seen),
            tuple(names for _, names in placed),
        )
        for name, placed in gathered.items()
    ]


def split_onnx(graph: Graph) -> list[BlockOperators]:
    """Decompose the graph of an ONNX file: every convolution or product starts a block with the nodes after it."""
    blocks: list[list[tuple[TracedOperator, tuple[str, ...]]]] = []
    for item, names in zip(graph.operators, graph.neighbours, strict=True):
        if not blocks or item.op.kind.startswith(_BEGINNINGS):
            blocks.append([])
        blocks[-1].append((item, names))
    return [
        BlockOperators(
            placed[0][0].name,
            placed[0][0].op.kind,
            tuple(item.op for item, _ in placed),
            sum(item.parameters or 0 for item, _ in placed),
            tuple(names for _, names in placed),
        )
        for placed in blocks
    ]


def _roots(model: nn.Module, found: Sequence[tuple[str, OpSpec]], depth: int | None) -> set[str]:
    """Return the names of the modules that are blocks."""
    if depth is not None:
        return {name for name, module in model.named_modules() if name and _is_at(name, module, depth)}
    whole = max(1, count_operators(op for _, op in found).features.flops)
    roots: set[str] = set()

    def visit(name: str, module: nn.Module) -> None:
        inner = count_operators(op for owner, op in found if _is_inside(owner, name)).features.flops
        if _is_opened(module, inner / whole, name):
            for child_name, child in module.named_children():
                visit(f"{name}.{child_name}" if name else child_name, child)
        else:
            roots.add(name)

    visit("", model)
    return roots


def _is_opened(module: nn.Module, share: float, name: str) -> bool:
    children = list(module.children())
    if not children:
        return False
    compound = any(any(True for _ in child.children()) for child in children)
    if isinstance(module, _CONTAINERS):
        # A sequence of plain layers is a block, unless it is the whole network.
        return compound or not name or share > _TOO_MUCH
    return not name or (compound and share > _TOO_MUCH)


def _is_at(name: str, module: nn.Module, depth: int) -> bool:
    level = name.count(".") + 1
    return level == depth or (level < depth and not any(True for _ in module.children()))


def _is_inside(owner: str, name: str) -> bool:
    return not name or owner == name or owner.startswith(f"{name}.")


def _block_of(owner: str, roots: set[str]) -> str:
    """Return the block of an operator, otherwise the calling module."""
    parts = owner.split(".") if owner else []
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in roots:
            return name
    return owner


def _kind(module: nn.Module | None, is_block: bool) -> str:
    return type(module).__name__ if module is not None and is_block else "functions"


def _params(modules: dict[str, nn.Module], name: str, roots: set[str], seen: set[int]) -> int:
    """Count the parameters of a block, each once per network; between blocks, only those of the module."""
    module = modules.get(name)
    if module is None:
        return 0
    return count_params(module, seen, recurse=name in roots)


def count_params(module: nn.Module, seen: set[int], *, recurse: bool = True) -> int:
    """Count the unseen parameters of a module, including those of quantised layers."""
    parts = [*module.modules()] if recurse else [module]
    found: dict[int, int] = {}
    for part in parts:
        found |= {id(parameter): parameter.numel() for parameter in part.parameters(recurse=False)}
        for value in vars(part).values():
            if isinstance(value, torch.ScriptObject):
                found[id(value)] = sum(tensor.numel() for tensor in _unpacked(value))
    new = found.keys() - seen
    seen |= new
    return sum(found[key] for key in new)


def _unpacked(value: torch.ScriptObject) -> list[torch.Tensor]:
    """Return the weights and biases in a packed torch object; those of recurrent layers are nested."""
    found = packed_weights(value)
    if not found:
        with contextlib.suppress(AttributeError, RuntimeError):
            found = packed_weights(value.__getstate__())
    return found
