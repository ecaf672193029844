"""`CostModel`: costs by amounts, and the correction that cross-validation chose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nni_latency.estimators.acts._costs import GroupCosts, fit_costs
from nni_latency.estimators.acts._curve import CostCurve, fit_curve
from nni_latency.estimators.acts._line import fit_line
from nni_latency.estimators.acts._residual import Residual, fit_residual
from nni_latency.estimators.acts._workloads import Workloads
from nni_latency.regression import Rows, held_out

Array = NDArray[np.float64]

#: Costs workloads [s], of shape (n_workloads,).
Predict = Callable[[Workloads], Array]

#: No workload is predicted to take less [s].
_LEAST = 1e-9

#: The corrections that are tried, from the simplest to the richest.
CORRECTIONS = ("none", "curve", "residual")

#: The richest correction is taken whose error is at most this share above the least. Leaving out a block takes away the
#: points that are most like it, on which a correction lives, so a tie speaks for the richer one.
_TIE = 0.02


@dataclass(frozen=True)
class CostModel:
    """What pieces of work cost: by their amounts, by group, and corrected.

    Parameters
    ----------
    costs : GroupCosts
        By amounts and group.
    curve : CostCurve or None
        A monotone correction of those.
    residual : Residual or None
        Factors on those, by the traits of the work.
    """

    costs: GroupCosts
    curve: CostCurve | None = None
    residual: Residual | None = None

    def predict(self, workloads: Workloads) -> Array:
        """Return latencies [s], of shape (n_workloads,)."""
        if not workloads.work:
            return np.zeros(len(workloads))
        costs = self.costs(workloads.work)
        if self.curve is not None:
            costs = self.curve(costs)
        if self.residual is not None:
            costs = costs * self.residual(workloads.work)
        return np.asarray(workloads.counts @ costs)


def fit_model(workloads: Workloads, seconds: Array, correction: str) -> CostModel:
    """Fit costs and one of the `CORRECTIONS`."""
    costs = fit_costs(workloads, seconds)
    if correction == "none":
        return CostModel(costs)
    base = costs(workloads.work)
    if correction == "curve":
        return CostModel(costs, curve=fit_curve(workloads, base, seconds))
    return CostModel(costs, residual=fit_residual(workloads, base, seconds))


def validate_model(workloads: Workloads, seconds: Array, folds: list[Rows], correction: str) -> Array:
    """Cross-validate one of the `CORRECTIONS`; returns what `held_out_errors` does."""
    return held_out_errors(workloads, seconds, folds, lambda some, times: fit_model(some, times, correction).predict)


def validate_line(workloads: Workloads, seconds: Array, folds: list[Rows], *, relative: bool) -> Array:
    """Cross-validate the published formula; returns what `held_out_errors` does."""

    def fit(some: Workloads, times: Array) -> Predict:
        line = fit_line(some.totals, times, relative=relative)
        return lambda others: line.predict(others.totals)

    return held_out_errors(workloads, seconds, folds, fit)


def choose_correction(errors: Mapping[str, Array]) -> str:
    """Choose the richest correction that no other one beats clearly, by their held-out errors."""
    losses = {name: float(np.abs(errors[name]).mean()) for name in CORRECTIONS}
    least = min(losses.values())
    return next(name for name in reversed(CORRECTIONS) if losses[name] <= least * (1 + _TIE))


def held_out_errors(
    workloads: Workloads, seconds: Array, folds: list[Rows], fit: Callable[[Workloads, Array], Predict]
) -> Array:
    """Return the logarithm of measured over predicted, of shape (n,), each by a fit that had not seen the workload.

    Parameters
    ----------
    workloads, seconds
        What to fit on.
    folds : list of ndarray of int
        Rows that are left out together.
    fit : callable
        Takes workloads and seconds, returns what predicts others.
    """

    def fitted(rows: Rows) -> Callable[[Rows], Array]:
        predict = fit(workloads.take(rows), seconds[rows])
        return lambda others: np.maximum(predict(workloads.take(others)), _LEAST)

    return np.asarray(np.log(seconds / held_out(len(seconds), folds, fitted)))
