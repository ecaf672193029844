"""Everything that is learned before a new device is measured."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nni_latency.errors import LatencyWarning
from nni_latency.estimators.transfer._calibration import error_quantiles
from nni_latency.estimators.transfer._encoding import Encoding
from nni_latency.estimators.transfer._population import Population, learn_population
from nni_latency.estimators.transfer._series import check_units


class FewSourcesWarning(LatencyWarning):
    """Issued when there is one known device alone, so that nothing is known about how devices differ."""


@dataclass(frozen=True)
class Learned:
    """What is known before a new device is measured.

    Parameters
    ----------
    population : Population
        The known devices, and what is expected of a new one.
    indices : ndarray of int of shape (n, n_labels)
        Networks that the known devices were measured on.
    errors : ndarray of shape (n_levels,)
        Quantiles of errors over their expected standard deviation.
    """

    population: Population
    indices: NDArray[np.int64]
    errors: NDArray[np.float64]


def learn(
    encoding: Encoding,
    indices: NDArray[np.int64],
    series: Mapping[str, NDArray[np.float64]],
    seed: int,
    *,
    check: bool,
    least_noise: float = 0.0,
) -> Learned:
    """Learn known devices from latencies that are checked by row.

    Parameters
    ----------
    encoding : Encoding
        The space.
    indices : ndarray of int of shape (n, n_labels)
        Networks that the known devices were measured on.
    series : mapping of str to ndarray of shape (n,)
        By device, what they took [s].
    seed : int
        Seed of what is drawn.
    check : bool
        Whether to refuse series of another unit than the others.
    least_noise : float, default=0.0
        Least noise that is expected of a new device's measurements, as a share of its typical network.

    Raises
    ------
    InvalidValueError
        If one series is of another unit than the others.
    """
    if check:
        check_units(series)
    if len(series) == 1:
        warnings.warn(
            f"There is one known device, {next(iter(series))!r}: nothing is known about how devices differ. "
            "Expect larger errors, measure more networks, or add devices.",
            FewSourcesWarning,
            stacklevel=3,
        )
    population = learn_population(encoding, indices, series, seed, least_noise)
    features, generator = encoding.features(indices), np.random.default_rng(seed)
    return Learned(population, indices, error_quantiles(population, features, list(series.values()), generator))
