"""What a run of a network takes outside of its kernels."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from nni_latency.measurement import Chain, Subject

#: Keys of the network that tells it, or of its first part, and of the rest.
CONSTANT, BODY = "constant", "body of constant"

_PICTURE = (1, 3, 224, 224)


def constant_chain(inside: bool) -> Chain:
    """Return the network that tells what a run takes outside of its kernels.

    One that does next to nothing runs so often that all it needs is in the caches. Where a runtime tells what its nodes
    take, what is left of a real network is asked for: nothing runs in its first part.
    """
    if not inside:
        return (Subject(CONSTANT, nn.ReLU, (1, 1, 1, 1), "network", CONSTANT),)
    return (
        Subject(CONSTANT, nn.Identity, _PICTURE, "block", CONSTANT),
        Subject(BODY, _body, _PICTURE, "block", BODY),
    )


def _body() -> nn.Module:
    """Return a small network of pictures."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise((3, 16, 24, 40, 80, 160)):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.ReLU(), nn.Conv2d(outputs, outputs, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(160, 1000))
