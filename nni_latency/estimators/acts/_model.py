# SPDX-License-Identifier: Apache-2.0
"""`CostModel`: costs by amounts of work, with corrections selected by cross-validation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat

from nni_latency.documents import RECORD
from nni_latency.errors import InvalidValueError
from nni_latency.estimators.acts._line import fit_line
from nni_latency.estimators.acts._workloads import AMOUNTS, START, Work, Workloads
from nni_latency.regression import CORRELATIONS, Posterior, Rows, Spectrum, held_out, nonnegative, squared_distances

Array = NDArray[np.float64]

#: Returns the costs of workloads [s], of shape (n_workloads,).
Predict = Callable[[Workloads], Array]

#: Lower bound of the prediction of a workload [s].
_LEAST_LATENCY = 1e-9

#: Candidate corrections, from the simplest to the richest.
CORRECTIONS = ("none", "curve", "residual")

#: The richest correction with an error at most this share above the minimum is selected. Holding out a block removes
#: its most similar points, on which a correction depends, so ties favour the richer one.
_TIE = 0.02

#: Strength of the regularisation of a group's costs towards those of all groups, as a share of the points.
_GROUP_SHRINKAGE = 0.03

#: Lower bound of the cost of a piece of work [s].
_LEAST_COST = 1e-9

#: Number of pieces of the curve, and strength of the regularisation towards slope 1, as a share of the points.
_PIECES, _SLOPE_SHRINKAGE = 5, 0.01

#: Candidate kernels: for continuous and for smooth functions.
KERNELS = ("matern12", "matern32")

#: Grid: ranges of the correlation in standard deviations of the traits, and noise over signal.
_RANGES = (0.5, 1.0, 2.0, 4.0, 8.0)
_NOISES = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)

#: Squared distance between two groups, in variances of a trait.
_BETWEEN_GROUPS = 8.0

#: Correlation common to all pieces of work, for an error of the overall level.
_COMMON = 0.5

#: Steps of the Gauss-Newton iteration.
_STEPS = 4


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
    """Return the logarithm of measured over held-out predicted latency, of shape (n,).

    Parameters
    ----------
    workloads, seconds
        What to fit on.
    folds : list of ndarray of int
        Rows of each fold.
    fit : callable
        Takes workloads and seconds, and returns a prediction function.
    """

    def fitted(rows: Rows) -> Callable[[Rows], Array]:
        predict = fit(workloads.take(rows), seconds[rows])
        return lambda others: np.maximum(predict(workloads.take(others)), _LEAST_LATENCY)

    return np.asarray(np.log(seconds / held_out(len(seconds), folds, fitted)))


#: Costs by amount [s].
Amounts = Annotated[tuple[NonNegativeFloat, ...], Field(min_length=len(AMOUNTS), max_length=len(AMOUNTS))]


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

    shared: Amounts
    groups: Mapping[str, Amounts]

    __pydantic_config__ = RECORD

    def __call__(self, work: tuple[Work, ...]) -> NDArray[np.float64]:
        """Return the cost of every piece of work [s], positive."""
        costs = np.array([self.groups.get(piece.group, self.shared) for piece in work])
        amounts = np.array([piece.amounts for piece in work])
        return np.asarray(np.maximum((costs * amounts).sum(axis=1), _LEAST_COST))


def fit_costs(workloads: Workloads, seconds: NDArray[np.float64]) -> GroupCosts:
    """Fit non-negative costs to relative errors.

    A group is regularised towards the costs of all groups, more strongly with less data.

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
    # The start of a workload is not an operator and has a separate cost.
    begins = np.array([name == START for name in names])
    shared, start = _solve_shared(blocks, begins)
    prior = np.where(begins[:, None], start, shared)
    fitted = shared[None] if len(names) == 1 else _solve_held(blocks, prior)
    # Relative least squares are biased low; correct the median.
    costs = GroupCosts(tuple(shared), {name: tuple(row) for name, row in zip(names, fitted, strict=True)})
    factor = float(np.median(seconds / (workloads.counts @ costs(workloads.work))))
    return GroupCosts(
        tuple(float(cost * factor) for cost in shared),
        {name: tuple(float(cost * factor) for cost in row) for name, row in zip(names, fitted, strict=True)},
    )


def _solve_shared(
    blocks: NDArray[np.float64], begins: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Solve for the common costs of all operators, and for that of the start if there is one."""
    operators = blocks[:, ~begins].sum(axis=1)
    found = nonnegative(np.hstack([operators, blocks[:, begins].sum(axis=1)]), np.ones(len(blocks)))
    return found[: operators.shape[1]], found[operators.shape[1] :]


def _solve_held(blocks: NDArray[np.float64], prior: NDArray[np.float64]) -> NDArray[np.float64]:
    """Solve for all groups jointly, with a ridge towards their prior costs."""
    n, n_groups, n_amounts = blocks.shape
    columns = blocks.reshape(n, n_groups * n_amounts)
    found = nonnegative(columns, np.ones(n), prior.ravel(), _GROUP_SHRINKAGE)
    return found.reshape(n_groups, n_amounts)


@dataclass(frozen=True)
class CostCurve:
    """A rising line of several pieces, from what work should cost to what it does.

    Parameters
    ----------
    start : float
        Cost of what should cost nothing [s].
    knots : tuple of float
        Where a new piece begins [s]; the first at 0.
    slopes : tuple of float
        Of the pieces, not negative.

    Raises
    ------
    InvalidValueError
        If there is another number of slopes than of knots, or the knots do not rise from 0.
    """

    start: NonNegativeFloat
    knots: Annotated[tuple[NonNegativeFloat, ...], Field(min_length=1)]
    slopes: Annotated[tuple[NonNegativeFloat, ...], Field(min_length=1)]

    __pydantic_config__ = RECORD

    def __post_init__(self) -> None:
        if len(self.knots) != len(self.slopes) or list(self.knots) != sorted(self.knots) or self.knots[0] != 0:
            raise InvalidValueError("There must be a slope for each knot, and the knots must rise from 0.")

    def __call__(self, costs: Array) -> Array:
        """Return corrected costs [s]; rising where the costs rise."""
        return np.asarray(np.maximum(self.start + _pieces(costs, self.knots) @ np.array(self.slopes), 1e-9))


def fit_curve(workloads: Workloads, base: Array, seconds: Array) -> CostCurve:
    """Fit a curve on the time of whole workloads, by relative errors.

    Parameters
    ----------
    workloads : Workloads
        Of n workloads with m distinct pieces of work.
    base : ndarray of shape (m,)
        Costs of the pieces by their amounts [s].
    seconds : ndarray of shape (n,)
        Measured latencies [s].
    """
    knots = (0.0, *np.unique(np.quantile(base, np.arange(1, _PIECES) / _PIECES)).tolist())
    columns = np.column_stack([workloads.counts.sum(axis=1), workloads.counts @ _pieces(base, knots)])
    columns = columns / seconds[:, None]
    prior = np.concatenate([[0.0], np.ones(len(knots))])
    start, *slopes = nonnegative(columns, np.ones(len(seconds)), prior, _SLOPE_SHRINKAGE).tolist()
    return CostCurve(start, knots, tuple(slopes))


def _pieces(costs: Array, knots: Sequence[float]) -> Array:
    """Return the part of every cost in every piece, of shape (n_costs, n_pieces)."""
    begins, ends = np.array(knots), np.array([*knots[1:], np.inf])
    return np.asarray(np.clip(costs[:, None], begins, ends) - begins)


@dataclass(frozen=True)
class Residual:
    """A Gaussian process over pieces of work, whose values are logarithms of factors on their costs.

    Parameters
    ----------
    kernel : str
        Name of the correlation by distance.
    reach : float
        Distance over which the correlation falls.
    centre, scale : tuple of float
        Mean and standard deviation of the traits.
    work : tuple of Work
        What it was learned from.
    weights : tuple of float
        Of the correlations with those; the logarithm is their weighted sum.
    """

    kernel: str
    reach: float
    centre: tuple[float, ...]
    scale: tuple[float, ...]
    work: tuple[Work, ...]
    weights: tuple[float, ...]

    def __call__(self, work: Sequence[Work]) -> Array:
        """Return the factor of every piece of work."""
        distances = _distances(work, self.work, self.centre, self.scale)
        logs = _correlation(self.kernel, distances, self.reach) @ np.array(self.weights)
        return np.asarray(np.exp(logs))


def fit_residual(workloads: Workloads, base: Array, seconds: Array) -> Residual:
    """Fit factors of pieces of work to the time of whole workloads.

    The logarithm of a workload's time is not linear in the logarithms of its pieces, so it is linearised around the
    factors found so far, which gives a Gaussian process observed through sums [1]_, and solved again.

    Parameters
    ----------
    workloads : Workloads
        Of n workloads with m distinct pieces of work.
    base : ndarray of shape (m,)
        Costs of the pieces by their amounts [s].
    seconds : ndarray of shape (n,)
        Measured latencies [s].

    References
    ----------
    .. [1] C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, chapters 2
       and 5. https://gaussianprocess.org/gpml/
    """
    traits = np.array([piece.traits for piece in workloads.work])
    centre, scale = traits.mean(axis=0), traits.std(axis=0)
    scale[scale < 1e-9] = 1.0
    distances = _distances(workloads.work, workloads.work, tuple(centre), tuple(scale))
    logs = np.zeros(len(base))
    found: tuple[str, float, float] | None = None
    for _ in range(_STEPS):
        costs = workloads.counts * (base * np.exp(logs))
        whole = costs.sum(axis=1)
        shares = costs / whole[:, None]
        target = np.log(seconds / whole) + shares @ logs
        found = found or _likeliest(distances, shares, target)
        kernel, reach, noise = found
        correlation = _correlation(kernel, distances, reach)
        covariance = shares @ correlation @ shares.T
        weights = shares.T @ Posterior(covariance + noise * np.eye(len(target)), target).weights
        logs = correlation @ weights
    return Residual(
        kernel, reach, tuple(centre.tolist()), tuple(scale.tolist()), workloads.work, tuple(weights.tolist())
    )


def _likeliest(distances: Array, shares: Array, target: Array) -> tuple[str, float, float]:
    """Choose the kernel, its length scale and the noise by likelihood, with the signal variance integrated out."""
    found = {
        (kernel, reach, noise): spectrum.log_likelihood(noise)
        for kernel in KERNELS
        for reach in _RANGES
        for spectrum in (Spectrum(shares @ _correlation(kernel, distances, reach) @ shares.T, target),)
        for noise in _NOISES
    }
    return max(found, key=lambda choice: found[choice])


def _correlation(kernel: str, distances: Array, reach: float) -> Array:
    return np.asarray(CORRELATIONS[kernel](distances / reach) + _COMMON)


def _distances(one: Sequence[Work], other: Sequence[Work], centre: Sequence[float], scale: Sequence[float]) -> Array:
    """Return the root of the mean squared difference of the traits, groups included."""
    first, second = (
        (np.array([piece.traits for piece in work]) - np.array(centre)) / np.array(scale) for work in (one, other)
    )
    names = {name: index for index, name in enumerate(sorted({piece.group for piece in (*one, *other)}))}
    groups, others = (np.array([names[piece.group] for piece in work]) for work in (one, other))
    squares = squared_distances(first, second) + _BETWEEN_GROUPS * (groups[:, None] != others[None])
    return np.asarray(np.sqrt(squares / first.shape[1]))
