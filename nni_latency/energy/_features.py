# SPDX-License-Identifier: Apache-2.0
"""Numeric features for predictions across devices: work and shapes of operators, facts of devices."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from nni_latency.documents import RECORD
from nni_latency.energy._measured import MeasuredOperator
from nni_latency.errors import InvalidValueError
from nni_latency.operators import OpSpec, group_of, work_of

#: Groups of operators with similar code; any other operator counts as the last group.
GROUPS = (
    "dense convolution",
    "pointwise convolution",
    "depthwise convolution",
    "grouped convolution",
    "matrix product",
    "normalisation",
    "reduction",
    "average pooling",
    "max pooling",
    "elementwise",
)

#: Substitutes of unmeasured groups; all others are treated as memory-bound like elementwise operators.
_INSTEAD = {
    "max pooling": "average pooling",
    "average pooling": "reduction",
    "grouped convolution": "dense convolution",
}

#: Convolutions and matrix products, whose loops a library tiles.
_TILED = frozenset(GROUPS[:5])

#: Rows, columns and summands of a tile of a matrix product.
_TILE = (128, 64, 32)

#: Minimum multiple of the shortest time of operators used to derive device facts.
_LONG = 10.0


def kernel_features(ops: Sequence[OpSpec], device: DeviceFacts, known: Collection[str] = GROUPS) -> NDArray[np.float64]:
    """Return features of operators: work relative to the device, shapes, and group of code.

    Parameters
    ----------
    ops : sequence of OpSpec
        The operators.
    device : DeviceFacts
        Device of the operators.
    known : collection of str
        Groups with measurements; another group is mapped to the closest of them.

    Returns
    -------
    ndarray of shape (n_ops, n_features)
    """
    return np.array([_row(op, device, known) for op in ops])


def known_group(op: OpSpec, known: Collection[str]) -> str:
    """Return the group of an operator, or the closest known one."""
    group: str | None = group_of(op)
    while group is not None and group not in known:
        group = _INSTEAD.get(group)
    return group or GROUPS[-1]


def roofline(ops: Sequence[OpSpec], device: DeviceFacts) -> NDArray[np.float64]:
    """Return the roofline lower bound of the time of operators on a device [s], (n_ops,)."""
    work = [work_of(op)[0] for op in ops]
    return np.array([max(item.flops / device.flops, _moved(item) / device.bandwidth, 1e-9) for item in work])


def _moved(work: Any) -> float:
    return float(max(work.memory, 4 * (work.inputs + work.outputs), 4))


def _row(op: OpSpec, device: DeviceFacts, known: Collection[str]) -> list[float]:
    work, group = work_of(op)[0], known_group(op, known)
    moved = _moved(work)
    compute, memory = work.flops / device.flops, moved / device.bandwidth
    rows, columns, depth = _matrix(op, group, work)
    tiles = math.prod(-(-size // tile) for size, tile in zip((rows, columns), _TILE, strict=False))
    waste = math.prod(-(-size // tile) * tile / size for size, tile in zip((rows, columns, depth), _TILE, strict=True))
    shape = op.input_shapes[0]
    return [
        float(GROUPS.index(group)),
        math.log(compute + 1e-9),
        math.log(memory + 1e-9),
        math.log((compute + 1e-9) / (memory + 1e-9)),
        math.log(work.inputs + 1),
        math.log(work.outputs + 1),
        math.log(work.params + 1),
        math.log(rows),
        math.log(columns),
        math.log(depth),
        math.log(tiles),
        math.log(waste),
        math.log(shape[1] if len(shape) > 1 else 1),
        math.log(math.prod(shape[2:]) or 1),
        float(_window(op)),
        float(_number(op.get("stride", 1))),
        math.log(max(1.0, _number(op.get("groups", 1)))),
        float(bool(op.get("bias", False))),
        float(math.prod(shape[2:]) % 8 == 0),
        float((shape[1] if len(shape) > 1 else 1) % 8 == 0),
        float(columns % 8 == 0),
    ]


def _matrix(op: OpSpec, group: str, work: Any) -> tuple[int, int, int]:
    """Return rows, columns and summands of an operator as a matrix product; for others, based on the outputs."""
    outputs = max(1, work.outputs)
    if group not in _TILED or not work.macs:
        return outputs, 1, 1
    columns = int(_number(op.get("out_channels", op.get("out_features", 1)))) or 1
    return max(1, outputs // columns), columns, max(1, work.macs // outputs)


def _window(op: OpSpec) -> float:
    size = op.get("kernel_size", 1)
    return float(math.prod(size)) if isinstance(size, tuple) else _number(size) ** 2


def _number(value: Any) -> float:
    return float(max(value)) if isinstance(value, tuple) else float(value or 0)


@dataclass(frozen=True)
class DeviceFacts:
    """Compute speed, bandwidth and power of a device. Immutable.

    Parameters
    ----------
    flops : float
        Achieved floating-point operations per second [1/s].
    bandwidth : float
        Achieved memory bandwidth [byte/s].
    power : float
        Maximum power [W].
    rest : float
        Idle power while awake [W].
    launch : float
        Shortest time of any operator [s].

    Raises
    ------
    InvalidValueError
        If a value is not positive and finite.
    """

    flops: Annotated[float, Field(gt=0, description="floating-point operations that it reaches [1/s]")]
    bandwidth: Annotated[float, Field(gt=0, description="bytes that it moves to and from its memory [byte/s]")]
    power: Annotated[float, Field(gt=0, description="most that it draws [W]")]
    rest: Annotated[float, Field(gt=0, description="what it draws without work [W]")]
    launch: Annotated[float, Field(gt=0, description="shortest time of any operator [s]")]

    __pydantic_config__ = RECORD

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not 0 < value < math.inf:
                raise InvalidValueError(f"The {item.name!r} of DeviceFacts must be a positive number. Got {value!r}.")

    @classmethod
    def of(cls, operators: Sequence[MeasuredOperator]) -> DeviceFacts:
        """Derive the facts from measured operators: highest speeds, and lowest and highest power.

        Raises
        ------
        InvalidValueError
            If there are fewer than three operators.
        """
        if len(operators) < 3:
            raise InvalidValueError(f"Facts of a device need at least three measured operators. Got {len(operators)}.")
        seconds = np.array([item.seconds for item in operators])
        watts = np.array([item.watts for item in operators])
        work = [work_of(item.op)[0] for item in operators]
        long = seconds >= min(_LONG * np.quantile(seconds, 0.02), seconds.max())
        flops = np.array([item.flops for item in work]) / seconds
        moved = np.array([max(item.memory, 4 * (item.inputs + item.outputs)) for item in work]) / seconds
        return cls(
            float(np.quantile(flops[long], 0.99)),
            float(np.quantile(moved[long], 0.95)),
            float(np.quantile(watts, 0.98)),
            float(np.quantile(watts, 0.02)),
            float(seconds.min()),
        )
