"""What a run of a network takes outside of its kernels."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from nni_latency.measurement import Chain, Subject

#: Keys of the network that tells it, or of its first part, and of the rest.
CONSTANT, BODY = "constant", "body of constant"

_PICTURE, _CHANNELS = (1, 3, 224, 224), (3, 24, 48, 96, 192, 384)


def constant_chain(inside: bool) -> Chain:
    """Return the network that tells what a run takes outside of its kernels.

    One that does next to nothing runs so often that all it needs is in the caches. Where a runtime tells what its nodes
    take, what is left of a real network is asked for: nothing runs in its first part. It takes two milliseconds, as
    small networks do: what a run begins and ends with is out of the caches then.
    """
    if not inside:
        return (Subject(CONSTANT, nn.ReLU, (1, 1, 1, 1), "network", CONSTANT),)
    return (
        Subject(CONSTANT, nn.Identity, _PICTURE, "block", CONSTANT),
        Subject(BODY, _body, _PICTURE, "block", BODY),
    )


def _body() -> nn.Module:
    """Return a network of pictures, of 0.17 G multiply-adds and 1.5 M weights."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(_CHANNELS):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.ReLU(), nn.Conv2d(outputs, outputs, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(_CHANNELS[-1], 1000))
