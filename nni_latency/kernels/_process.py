"""A Gaussian process over features of kernels: smooth where trees have steps, and certain of what it has seen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from nni_latency.errors import InvalidValueError

Array = NDArray[np.float64]

#: Length scales [standard deviations of all features together], deviations and noises that are tried.
_SCALES, _DEVIATIONS, _NOISES = (0.2, 0.4, 0.8, 1.6), (0.2, 0.5, 1.0), (0.01, 0.03, 0.06, 0.12)

#: So many points are enough to choose among those.
_ENOUGH = 300

#: Points at most; more make it slow and the file large.
_MOST = 1500


@dataclass(frozen=True)
class Process:
    """What a Gaussian process has learned. Immutable.

    Parameters
    ----------
    points : ndarray of shape (n, n_features)
        Features of what it has seen, centred and scaled.
    weights : ndarray of shape (n,)
        What each adds to an answer.
    centre, width : ndarray of shape (n_features,)
        How features are centred and scaled.
    scale : float
        Over which distance kernels are alike.
    """

    points: Array
    weights: Array
    centre: Array
    width: Array
    scale: float

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
        return np.asarray(_likeness(rows, self.points, self.scale) @ self.weights)

    @classmethod
    def fit(cls, features: Array, targets: Array) -> Process:
        """Learn targets that vary around zero; scale, deviation and noise are those under which they are likeliest."""
        if len(features) > _MOST:
            chosen = np.linspace(0, len(features) - 1, _MOST).astype(int)
            features, targets = features[chosen], targets[chosen]
        points, centre, width = _standardised(features)
        scale, ratio = _choose(points, targets)
        weights = scipy.linalg.cho_solve(_factor(points, scale, ratio), targets)
        return cls(points, weights, centre, width, scale)

    def content(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "scale": self.scale,
            "centre": self.centre.tolist(),
            "width": self.width.tolist(),
            "weights": self.weights.tolist(),
            "points": self.points.tolist(),
        }

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Process:
        """Make it of plain values."""
        arrays = {name: np.array(content[name], dtype=np.float64) for name in ("points", "weights", "centre", "width")}
        return cls(**arrays, scale=float(content["scale"]))


def _likeness(one: Array, other: Array, scale: float) -> Array:
    """Return how alike rows are, (n_one, n_other), in (0, 1]; it has one derivative (Matern, 3/2)."""
    squares = (one**2).sum(1)[:, None] + (other**2).sum(1)[None, :] - 2 * one @ other.T
    distances = np.sqrt(3 * np.maximum(squares, 0.0)) / scale
    return np.asarray((1 + distances) * np.exp(-distances))


def left_out(features: Array, targets: Array) -> Array:
    """Return how far every target is from what the others say of it, (n,); many are taken in several parts."""
    parts = -(-len(targets) // _MOST)
    if parts > 1:
        found = np.empty(len(targets))
        for part in range(parts):
            found[part::parts] = left_out(features[part::parts], targets[part::parts])
        return found
    points, _, _ = _standardised(features)
    scale, ratio = _choose(points, targets)
    factor = _factor(points, scale, ratio)
    inverse = scipy.linalg.cho_solve(factor, np.eye(len(points)))
    return np.asarray(inverse @ targets / np.diag(inverse))


def _standardised(features: Array) -> tuple[Array, Array, Array]:
    """Return centred and scaled features, where their centre is, and how wide they are."""
    spread = features.std(axis=0)
    centre, width = features.mean(axis=0), np.where(spread > 1e-9, spread, 1.0) * math.sqrt(features.shape[1])
    return np.round((features - centre) / width, 6), centre, width


def _factor(points: Array, scale: float, ratio: float) -> Any:
    return scipy.linalg.cho_factor(_likeness(points, points, scale) + ratio**2 * np.eye(len(points)))


def _choose(points: Array, targets: Array) -> tuple[float, float]:
    """Choose the scale, and noise over deviation, by the likelihood of points that are left out."""
    chosen = np.linspace(0, len(points) - 1, min(len(points), _ENOUGH)).astype(int)
    points, targets = points[chosen], targets[chosen]
    best, least = (_SCALES[1], _DEVIATIONS[1], _NOISES[1]), math.inf
    for scale in _SCALES:
        levels, turns = np.linalg.eigh(_likeness(points, points, scale))
        rotated = turns.T @ targets
        for deviation in _DEVIATIONS:
            for noise in _NOISES:
                inverse = 1 / (deviation**2 * np.maximum(levels, 0) + noise**2)
                precision = (turns**2) @ inverse
                errors = (turns @ (inverse * rotated)) / precision
                loss = float(np.sum(np.log(1 / precision) + errors**2 * precision))
                if loss < least:
                    best, least = (scale, deviation, noise), loss
    scale, deviation, noise = best
    return scale, noise / deviation
