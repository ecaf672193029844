# SPDX-License-Identifier: Apache-2.0
"""A Gaussian process over features: smooth where trees have steps, and certain of what it has seen.

How far apart two points may be in a feature and still be similar is learned for each feature: those lengths under which
the targets are likeliest, C. E. Rasmussen and C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press
2006, sections 5.1 and 5.4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, PositiveFloat

from nni_latency.documents import RECORD, InFile, Vector
from nni_latency.errors import InvalidValueError
from nni_latency.regression._gaussian import CORRELATIONS, Posterior, squared_distances

Array = NDArray[np.float64]

#: Standard deviation of the logarithm of a length over the usual one, the root of the number of features.
_SPREAD = 0.7

#: Noise over deviation: where the search begins, and its bounds.
_NOISE, _LEAST_NOISE, _MOST_NOISE = 0.2, 0.01, 2.0

#: So many points, and steps, are enough to choose lengths.
_ENOUGH, _STEPS = 400, 40

#: Points at most; more make it slow and the file large.
_MOST = 1500


@dataclass(frozen=True)
class Process:
    """What a Gaussian process with one derivative (Matern, 3/2) has learned. Immutable.

    Parameters
    ----------
    points : ndarray of shape (n, n_features)
        Features of what it has seen, centred and scaled.
    weights : ndarray of shape (n,)
        What each adds to an answer.
    centre, width : ndarray of shape (n_features,)
        How features are centred and scaled; a feature that does not matter is wide.

    Raises
    ------
    InvalidValueError
        If their sizes do not fit each other.

    Examples
    --------
    >>> places = np.linspace(0, 6, 30)[:, None]
    >>> process = Process.fit(places, np.sin(places[:, 0]))
    >>> process.predict([[1.0], [100.0]]).round(1).tolist()
    [0.8, 0.0]
    """

    points: Annotated[Array, InFile(list[list[float]], np.array, np.ndarray.tolist)]
    weights: Annotated[Vector, Field(description="what each point adds to an answer")]
    centre: Vector
    width: Annotated[Array, InFile(list[PositiveFloat], np.array, np.ndarray.tolist)]

    __pydantic_config__ = RECORD

    def __post_init__(self) -> None:
        n_features = len(self.centre)
        if (
            self.points.ndim != 2
            or self.points.shape != (len(self.weights), n_features)
            or len(self.width) != n_features
        ):
            raise InvalidValueError("The points, weights, centre and width of a process must be as many.")

    def predict(self, features: ArrayLike) -> Array:
        """Return the answer for every row of features, (n,)."""
        rows = (np.asarray(features, dtype=np.float64) - self.centre) / self.width
        return np.asarray(_correlation(_distances(rows, self.points)) @ self.weights)

    @classmethod
    def fit(cls, features: Array, targets: Array) -> Process:
        """Learn targets that vary around zero, with lengths, deviation and noise under which they are likeliest.

        Parameters
        ----------
        features : ndarray of shape (n, n_features)
            Of more than 1,500 rows, as many are taken.
        targets : ndarray of shape (n,)
            What is learned.
        """
        if len(features) > _MOST:
            chosen = np.linspace(0, len(features) - 1, _MOST).astype(int)
            features, targets = features[chosen], targets[chosen]
        points, centre, width, ratio = _standardised(features, targets)
        return cls(points, _seen(_distances(points, points), targets, ratio).weights, centre, width)


_correlation = CORRELATIONS["matern32"]


def _distances(one: Array, other: Array) -> Array:
    return np.asarray(np.sqrt(squared_distances(one, other)))


def _seen(distances: Array, targets: Array, ratio: float) -> Posterior:
    """Return targets as observed with a noise that is in this ratio to the deviation of the process."""
    return Posterior(_correlation(distances) + ratio**2 * np.eye(len(targets)), targets)


def left_out(features: Array, targets: Array) -> Array:
    """Return how far every target is from what a process of the others says of it, (n,).

    Parameters
    ----------
    features : ndarray of shape (n, n_features)
        Many rows are taken in several parts.
    targets : ndarray of shape (n,)
        Values that vary around zero.
    """
    parts = -(-len(targets) // _MOST)
    if parts > 1:
        found = np.empty(len(targets))
        for part in range(parts):
            found[part::parts] = left_out(features[part::parts], targets[part::parts])
        return found
    points, _, _, ratio = _standardised(features, targets)
    return _seen(_distances(points, points), targets, ratio).left_out()[0]


def _standardised(features: Array, targets: Array) -> tuple[Array, Array, Array, float]:
    """Return centred and scaled features, their centre, how wide they are, and the noise over the deviation."""
    spread = features.std(axis=0)
    centre, width = features.mean(axis=0), np.where(spread > 1e-9, spread, 1.0)
    lengths, ratio = _likeliest((features - centre) / width, targets)
    return np.round((features - centre) / (width * lengths), 6), centre, width * lengths, ratio


def _likeliest(points: Array, targets: Array) -> tuple[Array, float]:
    """Return the length of every feature, and noise over deviation, under which targets are likeliest."""
    chosen = np.linspace(0, len(points) - 1, min(len(points), _ENOUGH)).astype(int)
    points, targets = points[chosen], targets[chosen]
    if not np.any(targets):
        return np.full(points.shape[1], math.sqrt(points.shape[1])), _NOISE
    usual = 0.5 * math.log(points.shape[1])
    first = np.append(np.full(points.shape[1], usual), math.log(_NOISE))
    bounds = [(usual - 5, usual + 5)] * points.shape[1] + [(math.log(_LEAST_NOISE), math.log(_MOST_NOISE))]
    found = scipy.optimize.minimize(
        negative_log_likelihood,
        first,
        args=(points, targets),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": _STEPS},
    )
    return np.exp(found.x[:-1]), math.exp(found.x[-1])


def negative_log_likelihood(logs: Array, points: Array, targets: Array) -> tuple[float, Array]:
    """Return the negative logarithm of how likely targets are, but for a constant, and its gradient.

    Parameters
    ----------
    logs : ndarray of shape (n_features + 1,)
        Logarithms of the length of every feature, and of noise over deviation. The deviation is the likeliest one.
    points : ndarray of shape (n, n_features)
        Standardised features.
    targets : ndarray of shape (n,)
        Not all of them zero.
    """
    lengths, ratio = np.exp(logs[:-1]), math.exp(logs[-1])
    scaled, count = points / lengths, len(targets)
    distances = _distances(scaled, scaled)
    seen = _seen(distances, targets, ratio)
    variance = float(targets @ seen.weights) / count
    slope = 0.5 * (seen.inverse - np.outer(seen.weights, seen.weights) / variance)
    # The derivative of the correlation with the logarithm of a length is 3 exp(-sqrt(3) r) times the squared distance
    # in it.
    by_square = 3 * slope * np.exp(-math.sqrt(3) * distances)
    by_length = 2 * (by_square.sum(1) @ scaled**2) - 2 * (scaled * (by_square @ scaled)).sum(0)
    unusual = (logs[:-1] - 0.5 * math.log(len(lengths))) / _SPREAD
    loss = 0.5 * count * math.log(variance) + seen.half_log_determinant + 0.5 * (unusual**2).sum()
    return float(loss), np.append(by_length + unusual / _SPREAD, 2 * ratio**2 * np.trace(slope))
