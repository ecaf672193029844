# SPDX-License-Identifier: Apache-2.0
"""Inputs of an ACTS estimator: totals, and the amounts and traits of operators."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from nni_latency.errors import InvalidValueError, is_int
from nni_latency.operators import Features, OpSpec, capture_operators, group_of, parts_of, work_of

#: Names of the amounts of every piece of work; the last one is always 1.
AMOUNTS = ("outputs", "inputs", "flops", "params", "calls")

#: Traits of an operator, and of a block by its totals.
N_TRAITS, N_TOTALS = 10, 3

#: Devices process several channels of a convolution at once and are equally slow for partial blocks: FLOPs are rounded
#: up to a multiple of the first number of channels. The utilisation of multiples of the second is a trait, since wide
#: units fall back to narrow ones in different ways.
_LANES, _WIDE_LANES = 8, 16

#: Group of work with unknown operators: whole blocks by ACTS, INP and FLOPs.
WHOLE = "block"

#: Group of operators of a kind that has no feature function.
OTHER = "other"

#: Group of the fixed cost of a workload: a block that is timed alone starts with cold caches.
START = "start"

_EXPECTED = "an (n, 3) array of ACTS, INP and FLOPs, or a list of (module, input_shape)"


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
        Logarithms by which pieces of work are similar or not.
    """

    group: str
    amounts: tuple[float, ...]
    traits: tuple[float, ...]


def describe_work(op: OpSpec) -> tuple[Work, Features, bool]:
    """Describe an operator that has no parts.

    Returns
    -------
    work : Work
        Properties that determine its cost.
    features : Features
        Its counts.
    counted : bool
        Whether its kind has a feature function. Otherwise, its cost is based on the elements that it reads.
    """
    features, counted = work_of(op)
    flops = features.flops * (_padding(op, _LANES) if counted else 1)
    amounts = (features.outputs, features.inputs, flops, features.params, 1)
    group = group_of(op) if counted else OTHER
    return Work(group, tuple(map(float, amounts)), _traits(op, features)), features, counted


def describe_totals(acts: float, inp: float, flops: float) -> Work:
    """Describe a block by its totals."""
    traits = tuple(map(math.log1p, (acts, inp, flops)))
    return Work(WHOLE, (float(acts), float(inp), float(flops), 0.0, 1.0), traits)


def start_of_workload() -> Work:
    """Describe the start of a workload."""
    return Work(START, (0.0,) * (len(AMOUNTS) - 1) + (1.0,), (0.0,) * N_TRAITS)


def _traits(op: OpSpec, features: Features) -> tuple[float, ...]:
    """Return logarithms of sizes and of the work's form: window, depth, width, rows, stride, how full the lanes are."""
    # A tensor without dimensions has one element.
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
    """Return the growth of a convolution with channels padded to multiples of the lanes; at least 1.

    In a depthwise convolution, the lanes span all channels, since channels are not combined.
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


@dataclass(frozen=True)
class Workloads:
    """Workloads, such as blocks or whole networks, each run as one.

    Parameters
    ----------
    totals : ndarray of shape (n_workloads, 3)
        ACTS, INP and FLOPs; floating-point operations, two per multiply-add, if counted here.
    work : tuple of Work
        The distinct pieces of work.
    counts : ndarray of shape (n_workloads, n_work)
        How often each piece runs in each workload.
    operators : bool
        Whether the pieces are operators; otherwise each is a workload by its totals.
    uncounted : tuple of tuple of str
        Kinds of operators without a feature function, by workload.
    """

    totals: NDArray[np.float64]
    work: tuple[Work, ...]
    counts: NDArray[np.float64]
    operators: bool
    uncounted: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        """Return the number of workloads."""
        return len(self.totals)

    def take(self, rows: NDArray[np.intp]) -> Workloads:
        """Return some of the workloads."""
        counts = self.counts[rows]
        used = np.flatnonzero(counts.any(axis=0))
        return Workloads(
            self.totals[rows],
            tuple(self.work[index] for index in used),
            counts[:, used],
            self.operators,
            tuple(self.uncounted[row] for row in rows),
        )

    def mixtures(self) -> list[frozenset[str]]:
        """Return the set of operator groups of each workload, used to stratify workloads."""
        groups = np.array([piece.group for piece in self.work])
        return [frozenset(groups[row > 0].tolist()) for row in self.counts]

    def varied(self) -> bool:
        """Whether the number of pieces varies, so that the cost of the start can be determined."""
        pieces = self.counts.sum(axis=1)
        return self.operators and bool(pieces.max() > pieces.min())

    def with_start(self) -> Workloads:
        """Return the same workloads, each with a start."""
        counts = np.column_stack([self.counts, np.ones(len(self))])
        return replace(self, work=(*self.work, start_of_workload()), counts=counts)

    def as_totals(self) -> Workloads:
        """Return the same workloads described by their totals."""
        return _of_totals(self.totals) if self.operators else self


#: Input of an estimator: an array of ACTS, INP and FLOPs, modules with input shapes, or operators.
WorkloadSource = ArrayLike | Sequence[tuple[nn.Module, Sequence[int]]] | Sequence[Sequence[OpSpec]] | Workloads


def workloads_of(source: Any) -> Workloads:
    """Convert the input of an estimator to workloads.

    Parameters
    ----------
    source : array-like of shape (n, 3), or list
        ACTS, INP and FLOPs; or ``(module, input_shape)`` each; or a sequence of `OpSpec` each.

    Raises
    ------
    InvalidValueError
        If it is of another type, or the input of a module does not match.
    """
    if isinstance(source, Workloads):
        return source
    items = list(source) if isinstance(source, (list, tuple)) else None
    if items and all(isinstance(item, (tuple, list)) and item and isinstance(item[0], nn.Module) for item in items):
        return _of_operators([_capture(*item) if len(item) == 2 else _refuse(source) for item in items])
    if items and all(_is_operators(item) for item in items):
        return _of_operators([list(item) for item in items])
    return _of_totals(_as_totals(source))


def _is_operators(item: Any) -> bool:
    return isinstance(item, (tuple, list)) and bool(item) and all(isinstance(op, OpSpec) for op in item)


def _capture(module: nn.Module, input_shape: Any) -> list[OpSpec]:
    shape = list(input_shape) if isinstance(input_shape, (tuple, list, torch.Size)) else []
    if not shape or not all(is_int(size, 1) for size in shape):
        raise InvalidValueError(
            f"The input shape of {type(module).__name__} must be whole numbers > 0, batch first. Got {input_shape!r}."
        )
    return [op for _, op in capture_operators(module, torch.empty(*shape, device="meta"), by="graph")]


def _refuse(source: Any) -> Any:
    raise InvalidValueError(f"The 'X' of ActsEstimator must be {_EXPECTED}. Got {type(source).__name__}.")


def _as_totals(source: Any) -> NDArray[np.float64]:
    try:
        totals = np.asarray(source, dtype=np.float64)
    except (TypeError, ValueError):
        totals = _refuse(source)
    if totals.ndim != 2 or totals.shape[1] != 3 or not len(totals):
        raise InvalidValueError(f"The 'X' of ActsEstimator must be {_EXPECTED}. Got an array of shape {totals.shape}.")
    if not (np.isfinite(totals).all() and (totals >= 0).all()):
        raise InvalidValueError("ACTS, INP and FLOPs must be finite numbers >= 0.")
    return totals


def _of_totals(totals: NDArray[np.float64]) -> Workloads:
    work, counts = _distinct([[describe_totals(*row)] for row in totals])
    return Workloads(totals, work, counts, False, ((),) * len(totals))


def _of_operators(workloads: list[list[OpSpec]]) -> Workloads:
    found, totals, uncounted = [], [], []
    for ops in workloads:
        described = [(op.kind, *describe_work(op)) for whole in ops for op in parts_of(whole)]
        features = sum((item[2] for item in described), Features())
        totals.append((features.acts, features.inp, features.flops))
        found.append([item[1] for item in described])
        uncounted.append(tuple(dict.fromkeys(kind for kind, _, _, counted in described if not counted)))
    work, counts = _distinct(found)
    return Workloads(np.array(totals, dtype=np.float64).reshape(-1, 3), work, counts, True, tuple(uncounted))


def _distinct(workloads: Iterable[list[Work]]) -> tuple[tuple[Work, ...], NDArray[np.float64]]:
    """Return the distinct pieces of work, and how often each runs in each workload."""
    rows = list(workloads)
    places: dict[Work, int] = {}
    for row in rows:
        for piece in row:
            places.setdefault(piece, len(places))
    counts = np.zeros((len(rows), len(places)))
    for index, row in enumerate(rows):
        for piece in row:
            counts[index, places[piece]] += 1
    return tuple(places), counts
