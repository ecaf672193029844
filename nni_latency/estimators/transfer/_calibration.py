"""How far predictions of a new device are off, found on known devices that are taken for new ones."""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from nni_latency.estimators.transfer._adaptation import adapt
from nni_latency.estimators.transfer._population import Population

#: Networks that a known device is adapted with, and others that show how far it is off.
_ADAPTED, _HELD_OUT = 10, 200

#: Quantiles of the errors that are kept.
_LEVELS = 201

#: With fewer known devices than this, errors are taken to be normal.
_FEWEST = 3


def error_quantiles(
    population: Population,
    features: NDArray[np.float64],
    latencies: list[NDArray[np.float64]],
    generator: np.random.Generator,
) -> NDArray[np.float64]:
    """Return quantiles, evenly spaced from 0 to 1, of errors over their expected standard deviation, (n_levels,).

    Every known device is taken for a new one in turn: the others adapt to it with a few of its networks, drawn at
    random, and the errors of others of its networks are compared with what was expected of them. Measurements have
    outliers, and a few cannot tell how noisy the rest is, so the errors are larger than normal ones.
    """
    errors = []
    for place, values in enumerate(latencies):
        if len(population.devices) < _FEWEST:
            break
        drawn = generator.permutation(len(features))[: _ADAPTED + _HELD_OUT]
        chosen, others = drawn[:_ADAPTED], drawn[_ADAPTED:]
        adaptation = adapt(population.without(place), features[chosen], values[chosen])
        off = np.abs(values[others] - adaptation.predict(features[others])) / adaptation.deviations(features[others])
        errors.append(np.quantile(off, np.linspace(0, 1, _LEVELS)))
    return pooled(errors) if errors else half_normal()


def pooled(errors: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return quantiles of the errors of all devices together, each device counting alike."""
    return np.quantile(np.concatenate(errors), np.linspace(0, 1, _LEVELS))


def half_normal() -> NDArray[np.float64]:
    """Return the same for normal errors."""
    return np.asarray(scipy.stats.norm.ppf(0.5 + np.linspace(0, 1, _LEVELS) / 2.004), dtype=np.float64)
