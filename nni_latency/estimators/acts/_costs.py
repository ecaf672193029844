"""`GroupCosts`: what a piece of work costs by its amounts, with an efficiency for every group of operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nni_latency.estimators.acts._traits import START, Work
from nni_latency.estimators.acts._workloads import Workloads
from nni_latency.regression import nonnegative

#: How strongly the costs of a group are held to those of all groups together, a share of the points.
_SHRINKAGE = 0.03

#: No piece of work costs less [s].
_LEAST = 1e-9


@dataclass(frozen=True)
class GroupCosts:
    """Costs of the amounts of work [s], for every group of operators and for those that were never seen.

    Parameters
    ----------
    shared : tuple of float
        By amount, in all groups together.
    groups : mapping of str to tuple of float
        By group and amount.
    """

    shared: tuple[float, ...]
    groups: Mapping[str, tuple[float, ...]]

    def __call__(self, work: tuple[Work, ...]) -> NDArray[np.float64]:
        """Return what every piece of work costs [s]; positive."""
        costs = np.array([self.groups.get(piece.group, self.shared) for piece in work])
        amounts = np.array([piece.amounts for piece in work])
        return np.asarray(np.maximum((costs * amounts).sum(axis=1), _LEAST))


def fit_costs(workloads: Workloads, seconds: NDArray[np.float64]) -> GroupCosts:
    """Fit costs that are not negative, by relative errors.

    A group is held to the costs of all together, the more so the less of it there is.

    Parameters
    ----------
    workloads : Workloads
        Of n workloads.
    seconds : ndarray of shape (n,)
        Measured latencies [s].
    """
    names = sorted({piece.group for piece in workloads.work})
    amounts = np.array([piece.amounts for piece in workloads.work])
    member = np.array([[piece.group == name for piece in workloads.work] for name in names])
    # Amounts by workload and group, over the measured time: of shape (n, n_groups, n_amounts).
    blocks = np.stack([workloads.counts[:, mask] @ amounts[mask] for mask in member], axis=1) / seconds[:, None, None]
    # The beginning of a workload is no operator, and has a cost of its own from the start.
    begins = np.array([name == START for name in names])
    shared, start = _solve_shared(blocks, begins)
    prior = np.where(begins[:, None], start, shared)
    fitted = shared[None] if len(names) == 1 else _solve_held(blocks, prior)
    # Relative least squares lean to the low side; the median is put right.
    costs = GroupCosts(tuple(shared), {name: tuple(row) for name, row in zip(names, fitted, strict=True)})
    factor = float(np.median(seconds / (workloads.counts @ costs(workloads.work))))
    return GroupCosts(
        tuple(float(cost * factor) for cost in shared),
        {name: tuple(float(cost * factor) for cost in row) for name, row in zip(names, fitted, strict=True)},
    )


def _solve_shared(
    blocks: NDArray[np.float64], begins: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Solve for the costs of all operators together, and for those of a beginning if there is one."""
    operators = blocks[:, ~begins].sum(axis=1)
    found = nonnegative(np.hstack([operators, blocks[:, begins].sum(axis=1)]), np.ones(len(blocks)))
    return found[: operators.shape[1]], found[operators.shape[1] :]


def _solve_held(blocks: NDArray[np.float64], prior: NDArray[np.float64]) -> NDArray[np.float64]:
    """Solve for all groups at once, with a ridge towards costs that are likely for each."""
    n, n_groups, n_amounts = blocks.shape
    columns = blocks.reshape(n, n_groups * n_amounts)
    found = nonnegative(columns, np.ones(n), prior.ravel(), _SHRINKAGE)
    return found.reshape(n_groups, n_amounts)
