"""A fixed small piece of work, by which the drift of a machine shows."""

from __future__ import annotations

import math
from typing import Any

#: Shape of its input.
REFERENCE_SHAPE = (1, 64, 28, 28)


def reference_module() -> Any:
    """Build a dense and a depthwise convolution and a matrix of 4 MiB: cycles bound the ones, fetching the other.

    So it feels a neighbour that takes the processor as well as one that takes the cache.

    Returns
    -------
    torch.nn.Module
        A new one every time, always with the same weights. The global random numbers are left alone.
    """
    # Here and not above: the interface of all runtimes loads without torch.
    import torch
    from torch import nn

    def filled(kind: type[nn.Module], *arguments: int, **options: Any) -> nn.Module:
        # Their own initialisation would draw from the global generator.
        made: nn.Conv2d = nn.utils.skip_init(kind, *arguments, **options, bias=False, dtype=torch.float32)
        deviation = math.sqrt(2 / made.weight[0].numel())
        with torch.no_grad():
            made.weight.copy_(torch.randn(made.weight.shape, generator=generator) * deviation)
        return made

    generator = torch.Generator().manual_seed(0)
    return nn.Sequential(
        filled(nn.Conv2d, 64, 64, 3, padding=1),
        nn.ReLU(),
        filled(nn.Conv2d, 64, 64, 3, padding=1, groups=64),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        filled(nn.Linear, 64, 16384),
    )
