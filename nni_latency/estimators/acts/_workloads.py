"""What an ACTS estimator is fitted on and asked about: totals, and the operators where they are known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from nni_latency.errors import InvalidValueError
from nni_latency.estimators.acts._traits import Work, describe_totals, describe_work, start_of_workload
from nni_latency.operators import Features, OpSpec, capture_operators, parts_of

_EXPECTED = "an (n, 3) array of ACTS, INP and FLOPs, or a list of (module, input_shape)"


@dataclass(frozen=True)
class Workloads:
    """Workloads, such as blocks or whole networks, each run as one.

    Parameters
    ----------
    totals : ndarray of shape (n_workloads, 3)
        ACTS, INP and FLOPs; floating-point operations, two a multiply-add, where they were counted here.
    work : tuple of Work
        The distinct pieces of work.
    counts : ndarray of shape (n_workloads, n_work)
        How often each piece runs in each workload.
    operators : bool
        Whether the pieces are operators; otherwise each is a workload by its totals.
    uncounted : tuple of tuple of str
        By workload, the kinds of operators in it that have no feature function.
    """

    totals: NDArray[np.float64]
    work: tuple[Work, ...]
    counts: NDArray[np.float64]
    operators: bool
    uncounted: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        """Return how many workloads there are."""
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
        """Return by workload the groups of operators in it: workloads of one mixture are of one kind."""
        groups = np.array([piece.group for piece in self.work])
        return [frozenset(groups[row > 0].tolist()) for row in self.counts]

    def varied(self) -> bool:
        """Whether some workloads have more pieces than others, so that their beginning can be told from the pieces."""
        pieces = self.counts.sum(axis=1)
        return self.operators and bool(pieces.max() > pieces.min())

    def with_start(self) -> Workloads:
        """Return the same workloads, each with a beginning."""
        counts = np.column_stack([self.counts, np.ones(len(self))])
        return replace(self, work=(*self.work, start_of_workload()), counts=counts)

    def as_totals(self) -> Workloads:
        """Return the same workloads by their totals alone."""
        return _of_totals(self.totals) if self.operators else self


#: What an estimator takes: an array of ACTS, INP and FLOPs, modules with input shapes, or operators.
WorkloadSource = ArrayLike | Sequence[tuple[nn.Module, Sequence[int]]] | Sequence[Sequence[OpSpec]] | Workloads


def workloads_of(source: Any) -> Workloads:
    """Read what an estimator was given.

    Parameters
    ----------
    source : array-like of shape (n, 3), or list
        ACTS, INP and FLOPs; or ``(module, input_shape)`` each; or a sequence of `OpSpec` each.

    Raises
    ------
    InvalidValueError
        If it is none of them, or the input of a module does not fit.
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
    if not shape or not all(isinstance(size, int) and size > 0 for size in shape):
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
