# SPDX-License-Identifier: Apache-2.0
"""The ghost module of GhostNet (arXiv:1911.11907) as a kernel, as a plugin for nni_latency."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import nni_latency.kernels as kernels
from nni_latency import hookimpl


def build(sizes: Mapping[str, int]) -> Any:
    """Make the module of a configuration.

    It computes half of the channels by a pointwise convolution, and the others from those by a depthwise one.

    Parameters
    ----------
    sizes : mapping of str to int
        ``CIN``, ``COUT``, which is even, and ``KERNEL_SIZE``, which is odd.
    """
    # Here, not above: every command imports this module.
    import torch
    from torch import nn

    class GhostModule(nn.Module):
        def __init__(self, channels: int, out: int, window: int) -> None:
            super().__init__()
            half = out // 2
            self.primary = nn.Sequential(nn.Conv2d(channels, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU())
            self.cheap = nn.Sequential(
                nn.Conv2d(half, half, window, padding=window // 2, groups=half, bias=False),
                nn.BatchNorm2d(half),
                nn.ReLU(),
            )

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            primary = self.primary(inputs)
            return torch.cat([primary, self.cheap(primary)], dim=1)

    return GhostModule(sizes["CIN"], sizes["COUT"], sizes["KERNEL_SIZE"])


def input_shapes(sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
    """Return the shape of its input."""
    return [(1, sizes["CIN"], sizes["HW"], sizes["HW"])]


def ghost_module() -> kernels.KernelType:
    """Make the kernel type; sampling begins around the configurations of GhostNet."""
    known = [(112, 16, 16), (56, 24, 72), (28, 40, 120), (14, 80, 240), (14, 112, 672), (7, 160, 960)]
    return kernels.KernelType(
        "ghost_module",
        {
            "HW": kernels.Domain(1, 512),
            "CIN": kernels.Domain(1, 2048),
            "COUT": kernels.Domain(4, 2048),
            "KERNEL_SIZE": kernels.Domain(3, 7, (3, 5)),
        },
        input_shapes,
        build,
        multiples={"COUT": 2},
        known=tuple({"HW": hw, "CIN": cin, "COUT": cout, "KERNEL_SIZE": 3} for hw, cin, cout in known),
    )


@hookimpl
def register_kernels(register: Any) -> None:
    """Register the kernel."""
    register("ghost_module", ghost_module)
