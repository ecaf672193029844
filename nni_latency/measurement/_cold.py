# SPDX-License-Identifier: Apache-2.0
"""Subjects that time a single operator as in a network: its weights out of the cache, its inputs just written."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nni_latency.measurement._subject import Build, Chain, Subject
from nni_latency.operators import Inputs
from nni_latency.platforms import cache_sizes

#: Bounds of the memory that is written to flush all caches [byte], and its size relative to the largest cache.
_LEAST_FLUSH, _MOST_FLUSH, _TIMES_CACHE = 64 * 2**20, 512 * 2**20, 2

#: Memory that a small network accesses between two runs of one of its layers, several times a private cache [byte].
NETWORK_TRAFFIC = 16 * 2**20

#: Memory that is written between two runs of parallel kernels: relative to the second-level cache, and where its size
#: is unknown [byte].
_TIMES_NEAR_CACHE, _NEAR_TRAFFIC = 2, 4 * 2**20


def cold_chain(key: str, build: Build, input_shapes: Sequence[Sequence[int]], dtype: str = "float32") -> Chain:
    """Return the subjects that time a single operator with cold caches.

    In every run the first one flushes the caches, the second writes the inputs, as the previous operator of a network
    would, and the third is the operator.

    Parameters
    ----------
    key : str
        Key of the operator.
    build : callable
        Factory of the operator, which takes its inputs as separate arguments.
    input_shapes : sequence of sequence of int
        Shapes of the inputs.
    dtype : str, default="float32"
        Element type of the inputs.

    Returns
    -------
    tuple of three Subject
    """
    shapes = tuple(tuple(shape) for shape in input_shapes)
    tensors = tuple(torch.empty(shape, dtype=getattr(torch, dtype), device="meta") for shape in shapes)
    return (
        Subject("flush", partial(_Flush, flush_size()), (1,), "block"),
        Subject(f"inputs of {key}", partial(_Inputs, shapes, dtype), (1,), "block"),
        Subject(key, build, Inputs(tensors), "operator", key),
    )


def flush_size(root: Path = Path("/")) -> int:
    """Return how much memory must be written to flush all caches [byte]."""
    sizes = [size for _, size in cache_sizes(root)]
    return min(max(_LEAST_FLUSH, _TIMES_CACHE * max(sizes, default=0)), _MOST_FLUSH)


def near_flush_size(root: Path = Path("/")) -> int:
    """Return how much memory must be written to flush the private caches of a processor [byte].

    Shared caches keep their contents, as between two runs of a network.
    """
    sizes = [size for level, size in cache_sizes(root) if level == "2"]
    return min(_TIMES_NEAR_CACHE * max(sizes, default=0) or _NEAR_TRAFFIC, NETWORK_TRAFFIC)


class _Native(nn.Module):
    """Prepares a timed operator; runs in torch on every runtime, because a compiler would remove it."""

    native = True


class _Flush(_Native):
    """Writes more memory than the caches hold."""

    def __init__(self, size: int) -> None:
        super().__init__()
        # Integers, whose size does not depend on the precision.
        self.filler: torch.Tensor
        self.register_buffer("filler", torch.zeros(size // 4, dtype=torch.int32))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.filler.add_(1)
        return inputs


class _Inputs(_Native):
    """Writes the inputs of an operator."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], dtype: str) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self._names = [f"input{number}" for number in range(len(shapes))]
        for name, shape in zip(self._names, shapes, strict=True):
            self.register_buffer(name, torch.randn(shape, generator=generator).to(getattr(torch, dtype)))

    def forward(self, _: Any) -> Any:
        made = tuple(getattr(self, name).clone() for name in self._names)
        return made[0] if len(made) == 1 else made
