"""Solving for the entries of a table: whole networks are known, what their parts cost is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nni_latency.errors import InvalidValueError
from nni_latency.regression import Posterior

#: How far entries may lie from their prior, as shares of it; the likeliest is taken.
_SPREADS = np.geomspace(0.01, 1.0, 9)

#: The same for what the entries of one layer, or of one choice in all layers, have in common.
_COMMON = (0.0, 0.1, 0.3, 1.0)

#: How exact the measured networks are, as a share; the likeliest is taken.
_NOISES = np.geomspace(0.003, 0.1, 6)

#: No entry is less than this share of its prior: nothing takes a negative time.
_LEAST = 0.02

#: A priori standard deviation of the weights of the prior's features: as good as nothing is known about them.
_WIDE = 10.0


@dataclass(frozen=True)
class Solution:
    """Entries that were solved for.

    Parameters
    ----------
    values : tuple of ndarray
        By layer the costs of the candidates, (n_choices,).
    deviations : tuple of ndarray
        Their standard deviations, of the same shapes.
    spread : float
        How far entries lie from their prior, as a share of it.
    noise : float
        How far networks lie from the sums of their entries, as a share.
    """

    values: tuple[NDArray[np.float64], ...]
    deviations: tuple[NDArray[np.float64], ...]
    spread: float
    noise: float


def solve_entries(
    architectures: NDArray[np.int64],
    totals: NDArray[np.float64],
    prior: Sequence[NDArray[np.float64]],
    features: Sequence[NDArray[np.float64]] = (),
    names: Sequence[Sequence[str]] = (),
) -> Solution:
    r"""Recover what candidates cost from the costs of whole networks.

    There are fewer networks than candidates, and the candidates of a layer always stand for each other, so the sums
    alone do not determine the entries. A prior does: entry :math:`j` is
    :math:`e_j = f_j \theta + p_j (a_{l(j)} + b_{c(j)} + \delta_j)`, a combination of features, the first of which is
    the prior cost :math:`p_j` itself, plus deviations: one that the candidates of a layer have in common, one that a
    choice has in all layers, and its own. All are normal, and so are the errors of the networks, so the entries are a
    Gaussian process [1]_; the standard deviations are those with the highest marginal likelihood.

    Parameters
    ----------
    architectures : ndarray of int of shape (n_networks, n_layers)
        Candidate of every layer.
    totals : ndarray of shape (n_networks,)
        What the networks cost.
    prior : sequence of ndarray of shape (n_choices,)
        By layer, what the candidates cost elsewhere, in any unit; positive.
    features : sequence of ndarray of shape (n_choices, n_features)
        By layer, what else may explain the costs.
    names : sequence of sequence of str, optional
        By layer, what the choices are called; those of one name have a deviation in common.

    Returns
    -------
    Solution

    Raises
    ------
    InvalidValueError
        If there are fewer than three networks, or their costs are not positive and finite.

    References
    ----------
    .. [1] C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, section 2.7.
       http://gaussianprocess.org/gpml

    Examples
    --------
    >>> prior = [np.array([1.0, 2.0]), np.array([1.0, 3.0])]
    >>> networks = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    >>> solved = solve_entries(networks, np.array([4.0, 8.0, 6.0, 10.0]), prior)
    >>> [column.round(1).tolist() for column in solved.values]
    [[2.0, 4.0], [2.0, 6.0]]
    """
    if len(totals) < 3 or not (np.isfinite(totals).all() and (totals > 0).all()):
        raise InvalidValueError(
            f"Solving for entries needs at least three networks with positive, finite costs. Got {len(totals)}."
        )
    sizes = [len(column) for column in prior]
    known = np.concatenate(prior) / np.concatenate(prior).mean()
    columns = np.column_stack([known, *([_scaled(features)] if len(features) else [])])
    design, alike = _one_hot(architectures, sizes), _alike(sizes, names)
    unit = float(totals.mean())
    process = _Process(design, totals / unit, known, columns, alike)
    shares = [(float(spread), common, float(noise)) for spread in _SPREADS for common in _COMMON for noise in _NOISES]
    best = max(shares, key=lambda share: process.evidence(*share))
    values, deviations = process.posterior(*best)
    values = np.maximum(values, _LEAST * known * values.sum() / known.sum())
    cuts = np.cumsum(sizes)[:-1]
    return Solution(tuple(np.split(values * unit, cuts)), tuple(np.split(deviations * unit, cuts)), best[0], best[2])


def _alike(sizes: Sequence[int], names: Sequence[Sequence[str]]) -> NDArray[np.float64]:
    """Count for every pair of entries what they have in common: the layer, the choice, or both."""
    layers = np.repeat(np.arange(len(sizes)), sizes)
    same: NDArray[np.float64] = (layers[:, None] == layers).astype(np.float64)
    if len(names):
        choices = np.array([name for layer in names for name in layer])
        same = same + (choices[:, None] == choices)
    return same


def _scaled(features: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    stacked = np.concatenate(features)
    scaled: NDArray[np.float64] = stacked / np.maximum(stacked.mean(axis=0), 1e-300)
    return scaled


def _one_hot(architectures: NDArray[np.int64], sizes: Sequence[int]) -> NDArray[np.float64]:
    design = np.zeros((len(architectures), sum(sizes)))
    starts = np.cumsum([0, *sizes[:-1]])
    for start, chosen in zip(starts, architectures.T, strict=True):
        design[np.arange(len(chosen)), start + chosen] = 1.0
    return design


class _Process:
    """A Gaussian process over the entries, seen through the sums of networks; in units of the mean network."""

    def __init__(
        self,
        design: NDArray[np.float64],
        totals: NDArray[np.float64],
        known: NDArray[np.float64],
        columns: NDArray[np.float64],
        alike: NDArray[np.float64],
    ) -> None:
        # An entry is about one over the number of layers.
        scale = totals.mean() / max(1e-300, float((design @ known).mean()))
        products = scale**2 * np.outer(known, known)
        self._design, self._totals = design, totals
        # Covariances of the entries' own deviations, of those in common, and of the features.
        self._parts = (np.diag(np.diag(products)), products * alike, (_WIDE * scale) ** 2 * columns @ columns.T)
        # The same of the networks.
        self._seen = tuple(design @ part @ design.T for part in self._parts)

    def evidence(self, spread: float, common: float, noise: float) -> float:
        """Return the logarithm of the marginal likelihood, up to a constant."""
        return self._posterior(spread, common, noise).log_likelihood

    def posterior(self, spread: float, common: float, noise: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and standard deviation of the entries."""
        own, shared, features = self._parts
        covariance = spread**2 * own + common**2 * shared + features
        cross, seen = covariance @ self._design.T, self._posterior(spread, common, noise)
        return seen.mean(cross), np.sqrt(seen.variances(cross, np.diag(covariance)))

    def _posterior(self, spread: float, common: float, noise: float) -> Posterior:
        own, shared, features = self._seen
        within = spread**2 * own + common**2 * shared + features + noise**2 * np.diag(self._totals**2)
        return Posterior(within, self._totals)
