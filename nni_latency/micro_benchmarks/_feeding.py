"""Emulates the cache state inside a network for a block that is timed alone.

Inside a network the input of a block has just been computed, and its weights were last used a whole network ago. So a
feeder runs before every block: it writes as much memory as a small network touches between two visits of a block, which
empties small caches and leaves in large ones what would be left there; runs a twin of the block, since a network runs
the code of its operators again and again; then makes the block's input anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from nni_latency.measurement import Chain, Subject

#: Memory that is written [byte], whatever the precision.
SWEPT = 16 * 2**20


class Feeder(nn.Module):
    """Takes the caches as the rest of a network would, and makes an input, whatever it is given itself.

    Parameters
    ----------
    shape : sequence of int
        Of the input, batch first.
    twin : nn.Module
        A block like the one to be timed, with weights of its own.
    """

    sample: torch.Tensor

    def __init__(self, shape: Sequence[int], twin: nn.Module) -> None:
        super().__init__()
        self.twin = twin
        self.batch = shape[0]
        self.register_buffer("sample", torch.randn(1, *shape[1:]))

    def forward(self, _: torch.Tensor) -> torch.Tensor:
        """Return the input, in the memory layout of the sample."""
        torch.full((SWEPT // self.sample.element_size(),), 1.0, dtype=self.sample.dtype, device=self.sample.device)
        self.twin(torch.cat([self.sample] * self.batch))
        return torch.cat([self.sample] * self.batch)


def fed_chain(
    key: str, build: Callable[[], nn.Module], shape: Sequence[int], specification: Mapping[str, Any]
) -> Chain:
    """Return what a bench runs to measure a block: its feeder, and the block behind it.

    Parameters
    ----------
    key : str
        Of the block.
    build : callable
        Makes the block.
    shape : sequence of int
        Of its input, batch first.
    specification : mapping
        What the block is.
    """
    return (
        Subject(f"feeder of {key}", partial(_feeder, build, tuple(shape)), (1, 1), "block"),
        Subject(key, build, tuple(shape), "block", key, specification),
    )


def _feeder(build: Callable[[], nn.Module], shape: Sequence[int]) -> nn.Module:
    return Feeder(shape, build())
