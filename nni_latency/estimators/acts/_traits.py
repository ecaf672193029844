"""What the cost of one operator may depend on: its amounts of work, its group, and its traits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nni_latency.operators import Features, OpSpec, group_of, work_of

#: What is counted of every piece of work, in the order of its amounts; the last one is 1 for each.
AMOUNTS = ("outputs", "inputs", "flops", "params", "calls")

#: Traits of an operator, and of a block by its totals.
N_TRAITS, N_TOTALS = 10, 3

#: Devices compute several channels of a convolution at once, and are as slow where the last of them are missing: FLOPs
#: count up to the next multiple of the first number. How full multiples of the second are is a trait, since wide units
#: fall back to narrow ones in different ways.
_LANES, _WIDE_LANES = 8, 16

#: Group of work whose operators are not known: whole blocks by their ACTS, INP and FLOPs.
WHOLE = "block"

#: Group of operators of a kind that has no feature function.
OTHER = "other"

#: Group of what a workload takes once, however much is in it: a block that is timed alone begins with cold caches.
START = "start"


@dataclass(frozen=True)
class Work:
    """One piece of work, to be costed alone. Immutable and hashable.

    Parameters
    ----------
    group : str
        Work of one group has the same efficiency.
    amounts : tuple of float
        How much of everything in `AMOUNTS`.
    traits : tuple of float
        Logarithms by which pieces of work are alike or not.
    """

    group: str
    amounts: tuple[float, ...]
    traits: tuple[float, ...]


def describe_work(op: OpSpec) -> tuple[Work, Features, bool]:
    """Describe an operator that has no parts.

    Returns
    -------
    work : Work
        What its cost may depend on.
    features : Features
        Its counts.
    counted : bool
        Whether its kind has a feature function. One that has none is costed by the elements that it reads.
    """
    features, counted = work_of(op)
    flops = features.flops * (_padding(op, _LANES) if counted else 1)
    amounts = (features.outputs, features.inputs, flops, features.params, 1)
    group = group_of(op) if counted else OTHER
    return Work(group, tuple(map(float, amounts)), _traits(op, features)), features, counted


def describe_totals(acts: float, inp: float, flops: float) -> Work:
    """Describe a block by its totals alone."""
    traits = tuple(map(math.log1p, (acts, inp, flops)))
    return Work(WHOLE, (float(acts), float(inp), float(flops), 0.0, 1.0), traits)


def start_of_workload() -> Work:
    """Describe the beginning of a workload."""
    return Work(START, (0.0,) * (len(AMOUNTS) - 1) + (1.0,), (0.0,) * N_TRAITS)


def _traits(op: OpSpec, features: Features) -> tuple[float, ...]:
    """Return logarithms of sizes and of the work's form: window, depth, width, rows, stride, how full the lanes are."""
    # A tensor without dimensions is one number.
    shape = (op.input_shapes[0] if op.input_shapes else ()) or (1,)
    groups = op.get("groups", 1)
    channels = shape[1] if len(shape) > 2 else shape[-1]
    channels = shape[-1] if op.kind == "linear" else channels
    width = op.get("out_channels", op.get("out_features", channels))
    window = _product(op.get("kernel_size", 1), op)
    rows = features.outputs / max(1, width)
    sizes = (features.outputs, features.inputs, features.flops, features.params)
    stride = _product(op.get("stride") or 1, op)
    forms = (window, channels / groups, width / groups, rows, stride, _padding(op, _WIDE_LANES))
    return tuple(math.log1p(size) for size in sizes) + tuple(math.log(max(form, 1e-9)) for form in forms)


def _padding(op: OpSpec, lanes: int) -> float:
    """Return by what factor a convolution grows whose channels are filled up to multiples of the lanes; at least 1.

    In a depthwise convolution the lanes are those of all channels, since no two of them are multiplied.
    """
    if not op.kind.startswith("conv"):
        return 1.0
    groups, channels = op.get("groups", 1), op.input_shapes[0][1]
    if groups > 1 and groups == channels:
        return _filled(channels, lanes)
    return _filled(channels // groups, lanes) * _filled(op.get("out_channels", channels) // groups, lanes)


def _filled(channels: int, lanes: int) -> float:
    return math.ceil(channels / lanes) * lanes / max(1, channels)


def _product(value: object, op: OpSpec) -> int:
    """Multiply the numbers of an attribute that is one number where all are equal."""
    if isinstance(value, tuple):
        return math.prod(value)
    size = value if isinstance(value, int) else 1
    return int(size ** max(1, len(op.input_shapes[0]) - 2)) if op.input_shapes else size
