# SPDX-License-Identifier: Apache-2.0
"""Reference networks of a farm, identical on all workers so that the speeds of machines are comparable."""

from __future__ import annotations

from typing import Any

from nni_latency.measurement import Subject


def reference_subjects() -> tuple[Subject, ...]:
    """Return the reference networks: dense convolutions, depthwise convolutions and matrix products.

    Dense convolutions are bound by the processor's cycles, depthwise ones by its caches, and matrices by its memory.

    Examples
    --------
    >>> [subject.key for subject in reference_subjects()]
    ['dense', 'depthwise', 'matrices']
    """
    return (
        Subject("dense", _dense, (1, 3, 112, 112)),
        Subject("depthwise", _depthwise, (1, 32, 56, 56)),
        Subject("matrices", _matrices, (1, 1024)),
    )


def _dense() -> Any:
    # Imported here because a scheduler does not need torch.
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
    )


def _depthwise() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(32, 96, 1),
        nn.ReLU(),
        nn.Conv2d(96, 96, 3, padding=1, groups=96),
        nn.ReLU(),
        nn.Conv2d(96, 32, 1),
    )


def _matrices() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024))
