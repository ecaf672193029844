"""How far whole networks lie from what a sum over their layers says, beyond chance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: What networks differ by on most machines, and how far (as a logarithm) that may be off, before anything was measured.
TYPICAL_ERROR, _UNCERTAINTY = 0.012, 0.8

#: Degrees of freedom of the deviations: networks at the ends of a space deviate by more than the others.
_FREEDOM = 4

#: What is tried.
_ERRORS = np.geomspace(0.001, 0.2, 107)


def network_error(residuals: NDArray[np.float64], errors: NDArray[np.float64]) -> float:
    """Return the standard deviation of whole networks from their prediction, as a share, beyond their standard errors.

    It is the root mean square under the posterior: few networks leave it uncertain, and the interval that is made of it
    has to be wider for that.

    Parameters
    ----------
    residuals : ndarray of shape (n_networks,)
        Logarithm of measured over predicted time, of networks that the prediction was not fitted to.
    errors : ndarray of shape (n_networks,)
        Standard errors of those by chance alone.

    Examples
    --------
    >>> precise = np.full(200, 0.001)
    >>> round(network_error(np.tile([0.03, -0.03], 100), precise), 3)
    0.03
    """
    variance = _ERRORS[:, None] ** 2 + errors**2
    # Student's t in place of the normal density.
    evidence = -0.5 * (np.log(variance) + (_FREEDOM + 1) * np.log1p(residuals**2 / (_FREEDOM * variance))).sum(axis=1)
    evidence -= 0.5 * (np.log(_ERRORS / TYPICAL_ERROR) / _UNCERTAINTY) ** 2
    posterior = np.exp(evidence - evidence.max())
    return float(np.sqrt(posterior @ _ERRORS**2 / posterior.sum()))
