# SPDX-License-Identifier: Apache-2.0
"""Suggested changes of a network supported by numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nni_latency.operators import OpSpec, learned_shapes
from nni_latency.units import format_percent, format_seconds

#: Returns the latency of the operators of a block [s].
Cost = Callable[[Sequence[OpSpec]], float]

#: Minimum saving of a suggestion as a share of the network's latency, and number of blocks examined.
_WORTHWHILE, _LOOKED_AT = 0.03, 5

#: A block is slow if it takes this share of the latency, and this multiple of its share of the FLOPs.
_LARGE, _SLOW = 0.1, 2.0

#: A block is heavy if it has this share of the parameters and at most this share of the FLOPs.
_HEAVY, _LIGHT = 0.5, 0.1

_COSTLY = {"silu": "relu", "hardswish": "relu", "gelu": "relu", "mish": "relu", "elu": "relu", "sigmoid": "hardtanh"}


@dataclass(frozen=True)
class BlockNumbers:
    """Input of suggestions: name, operators, latency [s] and shares of a block."""

    name: str
    ops: tuple[OpSpec, ...]
    latency: float | None
    share: float
    flops_share: float
    params_share: float
    intensity: float


def suggest(blocks: Sequence[BlockNumbers], cost: Cost | None) -> list[str]:
    """Return suggested changes with supporting numbers.

    Parameters
    ----------
    blocks : sequence of BlockNumbers
        Blocks, most expensive first.
    cost : callable or None
        Estimates operators; without it, there are no suggestions about time.

    Returns
    -------
    list of str
        One sentence per suggestion; empty without support.
    """
    found = []
    total = sum(block.latency or 0.0 for block in blocks)
    if cost is not None and total > 0:
        for group in _group_equal(blocks)[:_LOOKED_AT]:
            found += _what_if(group, total, cost)
        found += [
            _slow(block) for block in blocks if block.share >= _LARGE and block.share >= _SLOW * block.flops_share
        ]
        found += _batch(blocks, cost)
    heavy = [block for block in blocks if block.params_share >= _HEAVY and block.flops_share <= _LIGHT]
    return found + [
        f"{block.name} holds {format_percent(block.params_share)} of the parameters and does "
        f"{format_percent(block.flops_share)} of the FLOPs: averaging its input first would make the network smaller."
        for block in heavy
    ]


def _slow(block: BlockNumbers) -> str:
    return (
        f"{block.name} takes {format_percent(block.share)} of the latency for {format_percent(block.flops_share)} of "
        f"the FLOPs: with {block.intensity:.1f} FLOPs a byte it waits for memory or for its calls, so fewer FLOPs "
        "alone will not make it faster; smaller activations or fewer operators will."
    )


def _group_equal(blocks: Sequence[BlockNumbers]) -> list[list[BlockNumbers]]:
    """Group blocks with the same operators, most expensive group first."""
    groups: dict[tuple[OpSpec, ...], list[BlockNumbers]] = {}
    for block in blocks:
        groups.setdefault(block.ops, []).append(block)
    return sorted(groups.values(), key=lambda group: -sum(block.share for block in group))


def _what_if(group: list[BlockNumbers], total: float, cost: Cost) -> list[str]:
    """Estimate modified versions of equal blocks, and return those with sufficient savings."""
    block, names = group[0], ", ".join(block.name for block in group)
    assert block.latency is not None
    changes = (
        (_separated(block.ops), "its dense convolutions split into depthwise and pointwise ones"),
        (_plain(block.ops), "ReLU in place of its costlier activations"),
    )
    found = []
    for ops, what in changes:
        saved = block.latency - cost(ops) if ops is not None else 0.0
        if len(group) * saved >= _WORTHWHILE * total:
            each = " each" if len(group) > 1 else ""
            found.append(
                f"{names} would take {format_seconds(block.latency - saved)} in place of "
                f"{format_seconds(block.latency)}{each} with {what}: {format_percent(len(group) * saved / total)} of "
                "the network. Accuracy has to be tried."
            )
    return found


def _separated(ops: Sequence[OpSpec]) -> list[OpSpec] | None:
    """Split dense convolutions larger than 1 x 1 into a depthwise and a pointwise one; None without any."""
    changed: list[OpSpec] = []
    for op in ops:
        dense = op.kind == "conv2d" and op.get("groups", 1) == 1 and op["kernel_size"] not in (1, (1, 1))
        channels = op.input_shapes[0][1] if dense else 0
        if channels < 8:
            changed.append(op)
            continue
        depthwise = op.replace(groups=channels, out_channels=channels, bias=False)
        middle = _output_shape(depthwise)
        pointwise = OpSpec.of(
            "conv2d", [middle], dtype=op.dtype, out_channels=op["out_channels"], kernel_size=1, stride=1, groups=1,
            bias=bool(op.get("bias")),
        )  # fmt: skip
        changed += [depthwise, pointwise]
    return changed if len(changed) > len(ops) else None


def _output_shape(op: OpSpec) -> tuple[int, ...]:
    """Return the output shape of a depthwise convolution from its stride, assuming 'same' padding."""
    batch, channels, height, width = op.input_shapes[0]
    stride = op["stride"]
    down, right = (stride, stride) if isinstance(stride, int) else stride
    return batch, channels, -(-height // down), -(-width // right)


def _plain(ops: Sequence[OpSpec]) -> list[OpSpec] | None:
    """Replace expensive activations; None without any."""
    changed = [
        dataclasses.replace(op, kind=_COSTLY[op.kind], attributes=()) if op.kind in _COSTLY else op for op in ops
    ]
    return changed if changed != list(ops) else None


def _batch(blocks: Sequence[BlockNumbers], cost: Cost) -> list[str]:
    """Suggest a larger batch if call overhead dominates the time."""
    ops = [op for block in blocks for op in block.ops]
    one = cost(ops)
    eight = cost([_batched(op, 8) for op in ops]) / 8
    if one <= 0 or eight > one * (1 - 2 * _WORTHWHILE):
        return []
    return [
        f"In batches of eight times as many, an input would take {format_percent(1 - eight / one)} less: much of the "
        "time is spent on calls and not on numbers."
    ]


def _batched(op: OpSpec, factor: int) -> OpSpec:
    """Return an operator on a larger batch: scales the first dimension of every non-scalar, non-parameter shape."""
    shapes = tuple(
        shape if len(shape) < 2 or shape == own else (shape[0] * factor, *shape[1:])
        for shape, own in zip(op.input_shapes, learned_shapes(op), strict=True)
    )
    out = op.get("out")
    bigger = dataclasses.replace(op, input_shapes=shapes)
    return bigger.replace(out=(out[0] * factor, *out[1:])) if isinstance(out, tuple) and len(out) > 1 else bigger
