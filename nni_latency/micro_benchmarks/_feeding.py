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

from nni_latency.measurement import NETWORK_TRAFFIC, Chain, Kind, Subject
from nni_latency.operators import Inputs

#: With what the key of a feeder begins; that of its block follows.
FEEDER = "feeder of "


class Feeder(nn.Module):
    """Takes the caches as the rest of a network would, and makes inputs, whatever it is given itself.

    Parameters
    ----------
    shapes : sequence of sequence of int
        Of the inputs, batch first.
    twin : nn.Module
        A block like the one to be timed, with weights of its own.
    """

    #: It prepares what is timed, and runs in torch whatever the runtime: compiled, nothing would be left of it.
    native = True

    def __init__(self, shapes: Sequence[Sequence[int]], twin: nn.Module) -> None:
        super().__init__()
        self.twin = twin
        self.batch = shapes[0][0]
        self.names = [f"sample{place}" for place in range(len(shapes))]
        for name, shape in zip(self.names, shapes, strict=True):
            self.register_buffer(name, torch.randn(1, *shape[1:]))

    def forward(self, _: torch.Tensor) -> Any:
        """Return the inputs, in the memory layout of the samples: a tensor, or a tuple of several."""
        sample = self.get_buffer(self.names[0])
        torch.full((NETWORK_TRAFFIC // sample.element_size(),), 1.0, dtype=sample.dtype, device=sample.device)
        self.twin(*self._inputs())
        made = self._inputs()
        return made[0] if len(made) == 1 else made

    def _inputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(torch.cat([self.get_buffer(name)] * self.batch) for name in self.names)


def fed_chain(
    key: str,
    build: Callable[[], nn.Module],
    shapes: Sequence[Sequence[int]],
    specification: Mapping[str, Any],
    kind: Kind = "block",
) -> Chain:
    """Return what a bench runs to measure a block: its feeder, and the block behind it.

    Parameters
    ----------
    key : str
        Of the block.
    build : callable
        Makes the block; it takes its inputs one by one.
    shapes : sequence of sequence of int
        Of its inputs, batch first.
    specification : mapping
        What the block is.
    kind : {"block", "kernel", "operator"}, default="block"
        What the block is to a store.
    """
    plain = tuple(tuple(shape) for shape in shapes)
    return (
        Subject(f"{FEEDER}{key}", partial(_feeder, build, plain), (1, 1), "block"),
        Subject(key, build, inputs_of(plain), kind, key, specification),
    )


def inputs_of(shapes: tuple[tuple[int, ...], ...]) -> Any:
    """Return what a subject says of its inputs: the shape of the only one, or tensors without data."""
    return shapes[0] if len(shapes) == 1 else Inputs(tuple(torch.empty(shape, device="meta") for shape in shapes))


def _feeder(build: Callable[[], nn.Module], shapes: Sequence[Sequence[int]]) -> nn.Module:
    return Feeder(shapes, build())
