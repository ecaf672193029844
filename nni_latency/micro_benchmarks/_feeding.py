"""How a block finds the caches that is timed alone: as inside a network.

Inside a network the input of a block has just been computed, and its weights were last used a whole network ago. So a
feeder runs before every block: it writes as much memory as a small network touches between two visits of a block, which
empties small caches and leaves in large ones what would be left there; runs a twin of the block, since a network runs
the code of its operators again and again; then makes the block's input anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

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


class Fed(nn.Module):
    """A block that runs on its own input, even where the bench hands it that of another one.

    A bench loads candidates one by one and runs each on what the first of the layer before returned.

    Parameters
    ----------
    block : nn.Module
        What runs.
    shape : sequence of int
        Of its input, batch first.
    """

    def __init__(self, block: nn.Module, shape: Sequence[int]) -> None:
        super().__init__()
        self.block = block
        self.shape = tuple(shape)

    def forward(self, inputs: torch.Tensor) -> Any:
        """Run the block."""
        fits = tuple(inputs.shape) == self.shape
        return self.block(inputs if fits else inputs.new_zeros(self.shape))


def columns_of(blocks: Sequence[tuple[Callable[[], nn.Module], Sequence[int]]]) -> list[list[Callable[[], nn.Module]]]:
    """Return what a bench takes to measure blocks: feeders, and the blocks behind them.

    Parameters
    ----------
    blocks : sequence of (callable, shape)
        What makes each block, and the shape of its input.
    """
    feeders = [partial(_feeder, build, tuple(shape)) for build, shape in blocks]
    return [list(feeders), [partial(_fed, build, tuple(shape)) for build, shape in blocks]]


def _feeder(build: Callable[[], nn.Module], shape: Sequence[int]) -> nn.Module:
    return Feeder(shape, build())


def _fed(build: Callable[[], nn.Module], shape: Sequence[int]) -> nn.Module:
    return Fed(build(), shape)
