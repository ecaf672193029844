"""How deep NNI's Proxyless makes a `Repeat`: a distribution that has no parameters of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from nni_latency.nas._nni import ProxylessMixedRepeat


def proxyless_depths(supernet: nn.Module) -> dict[str, ProxylessMixedRepeat]:
    """Return by label what Proxyless has made of every `Repeat` of a space."""
    return {
        str(module.depth_choice.label): module
        for module in supernet.modules()
        if isinstance(module, ProxylessMixedRepeat)
    }


def depth_logits(repeat: Any) -> torch.Tensor:
    """Return logits of the depths that a `Repeat` chooses among, (n_choices,), with a gradient.

    Proxyless gives every block beyond the smallest depth two parameters, to be skipped or to be run, and draws them
    independently; the depth is how many are run. So its distribution is built up block by block. Depths that cannot be
    chosen are left out; the softmax of the logits shares their probability among the others.
    """
    counts: torch.Tensor | None = None
    for index in range(repeat.min_depth, repeat.max_depth):
        skip, run = torch.softmax(repeat.blocks[index]._arch_alpha, -1)
        counts = torch.ones_like(skip)[None] if counts is None else counts
        zero = torch.zeros_like(counts[:1])
        counts = skip * torch.cat([counts, zero]) + run * torch.cat([zero, counts])
    assert counts is not None, "a Repeat with a single depth has no choice"
    chosen = torch.tensor([depth - repeat.min_depth for depth in repeat.depth_choice.values], device=counts.device)
    return counts[chosen].clamp_min(torch.finfo(counts.dtype).tiny).log()
