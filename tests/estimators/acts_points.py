# SPDX-License-Identifier: Apache-2.0
"""Points of an invented device, for the tests of the ACTS estimator."""

from __future__ import annotations

import numpy as np

from nni_latency.operators import OpSpec, features_of

#: Seconds per output, input, FLOP, and per operator, of the invented device.
SPEEDS = {
    "dense": (4e-10, 2e-10, 2e-11, 2e-5),
    "depthwise": (4e-10, 2e-10, 2e-10, 2e-5),
    "other": (3e-10, 3e-10, 0, 1e-5),
}


def draw_blocks(count: int, seed: int = 0) -> list[list[OpSpec]]:
    """Draw blocks of a convolution, its normalisation and activation, some with a depthwise convolution behind."""
    generator = np.random.default_rng(seed)
    return [_block(generator) for _ in range(count)]


def _block(generator: np.random.Generator) -> list[OpSpec]:
    batch, side = int(2 ** generator.integers(0, 4)), int(generator.choice([7, 14, 28, 56]))
    before, after = (int(8 * generator.integers(1, 24)) for _ in range(2))
    wide, deep = (batch, before, side, side), (batch, after, side, side)
    window = int(generator.choice([1, 3]))
    ops = [_convolution(wide, after, window, 1), OpSpec.of("batch_norm", [deep]), OpSpec.of("relu", [deep])]
    if generator.random() < 0.5:
        ops += [_convolution(deep, after, 3, after), OpSpec.of("batch_norm", [deep])]
    return ops


def _convolution(shape: tuple[int, ...], out: int, window: int, groups: int) -> OpSpec:
    return OpSpec.of("conv2d", [shape], out_channels=out, kernel_size=window, stride=1, groups=groups, bias=False)


def time_of(ops: list[OpSpec]) -> float:
    """Return what the invented device takes [s]."""
    total = 0.0
    for op in ops:
        kind = "other" if op.kind != "conv2d" else "depthwise" if op["groups"] > 1 else "dense"
        features = features_of(op)
        amounts = (features.outputs, features.inputs, features.flops, 1)
        total += sum(speed * amount for speed, amount in zip(SPEEDS[kind], amounts, strict=True))
    return total


def totals_of(ops: list[OpSpec]) -> tuple[int, int, int]:
    """Return ACTS, INP and FLOPs."""
    features = [features_of(op) for op in ops]
    return tuple(sum(getattr(item, name) for item in features) for name in ("acts", "inp", "flops"))


def noisy(seconds: list[float], spread: float = 0.03, seed: int = 1) -> np.ndarray:
    """Return measurements of those times: each off by a factor that is 1 on average."""
    return np.array(seconds) * np.exp(np.random.default_rng(seed).normal(0, spread, len(seconds)))
