# SPDX-License-Identifier: Apache-2.0
"""An operator without a network around it, met as in one: its weights out of the cache, its inputs just made."""

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

#: Least and most memory that is touched to empty the caches, and as many times the largest cache [byte].
_LEAST_FLUSH, _MOST_FLUSH, _TIMES_CACHE = 64 * 2**20, 512 * 2**20, 2

#: What a small network touches between two visits of one of its layers, several times the cache that a processor has
#: for itself [byte].
NETWORK_TRAFFIC = 16 * 2**20

#: What is touched between two runs of kernels side by side, as many times the second-level cache, and where that is not
#: known [byte].
_TIMES_NEAR_CACHE, _NEAR_TRAFFIC = 2, 4 * 2**20


def cold_chain(key: str, build: Build, input_shapes: Sequence[Sequence[int]], dtype: str = "float32") -> Chain:
    """Return what a bench runs to time an operator alone, and cold.

    The first part of every run empties the caches, the second writes the inputs anew, as the operator before it in
    a network would, and the third is the operator.

    Parameters
    ----------
    key : str
        Of the operator.
    build : callable
        Makes the operator; it takes its inputs one by one.
    input_shapes : sequence of sequence of int
        Shapes of its inputs.
    dtype : str, default="float32"
        Their element type.

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
    """Return how much memory has to be touched until nothing else is in any cache [byte].

    Parameters
    ----------
    root : Path, default=Path("/")
        As for `nni_latency.platforms.cache_sizes`.
    """
    sizes = [size for _, size in cache_sizes(root)]
    return min(max(_LEAST_FLUSH, _TIMES_CACHE * max(sizes, default=0)), _MOST_FLUSH)


def near_flush_size(root: Path = Path("/")) -> int:
    """Return how much memory has to be touched until nothing else is in the private caches of a processor [byte].

    Shared caches keep their contents, as between two runs of a network.

    Parameters
    ----------
    root : Path, default=Path("/")
        As for `nni_latency.platforms.cache_sizes`.
    """
    sizes = [size for level, size in cache_sizes(root) if level == "2"]
    return min(_TIMES_NEAR_CACHE * max(sizes, default=0) or _NEAR_TRAFFIC, NETWORK_TRAFFIC)


class _Native(nn.Module):
    """Prepares what is timed, and runs in torch whatever the runtime: compiled, nothing would be left of it."""

    native = True


class _Flush(_Native):
    """Writes more memory than the caches hold."""

    def __init__(self, size: int) -> None:
        super().__init__()
        # Whole numbers, which no precision makes smaller.
        self.filler: torch.Tensor
        self.register_buffer("filler", torch.zeros(size // 4, dtype=torch.int32))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.filler.add_(1)
        return inputs


class _Inputs(_Native):
    """Makes the inputs of an operator."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], dtype: str) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self._names = [f"input{number}" for number in range(len(shapes))]
        for name, shape in zip(self._names, shapes, strict=True):
            self.register_buffer(name, torch.randn(shape, generator=generator).to(getattr(torch, dtype)))

    def forward(self, _: Any) -> Any:
        made = tuple(getattr(self, name).clone() for name in self._names)
        return made[0] if len(made) == 1 else made
