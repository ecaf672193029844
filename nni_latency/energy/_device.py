"""`DeviceFacts`: what a prediction across devices has to know of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from nni_latency.energy._measured import MeasuredOperator
from nni_latency.errors import InvalidValueError
from nni_latency.operators import work_of

#: Operators of less than so many multiples of the shortest time say nothing of what a device can do.
_LONG = 10.0


@dataclass(frozen=True)
class DeviceFacts:
    """How fast a device computes and moves data, and what it draws. Immutable.

    Parameters
    ----------
    flops : float
        Floating-point operations in a second that it reaches [1/s].
    bandwidth : float
        Bytes in a second that it reaches between its memory and its processors [byte/s].
    power : float
        Most that it draws [W].
    rest : float
        What it draws when it is awake and has no work [W].
    launch : float
        Shortest time of any operator [s].

    Raises
    ------
    InvalidValueError
        If one is not a positive, finite number.
    """

    flops: float
    bandwidth: float
    power: float
    rest: float
    launch: float

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not 0 < value < math.inf:
                raise InvalidValueError(f"The {item.name!r} of DeviceFacts must be a positive number. Got {value!r}.")

    @classmethod
    def of(cls, operators: Sequence[MeasuredOperator]) -> DeviceFacts:
        """Take them from a few measured operators: the best that was reached, and the least and most that was drawn.

        Raises
        ------
        InvalidValueError
            If there are fewer than three.
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
