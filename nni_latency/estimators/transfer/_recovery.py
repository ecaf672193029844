"""A lookup table from whole networks alone."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nni_latency.errors import InvalidValueError
from nni_latency.estimators.transfer._as_table import SHARED_OUT, make_table
from nni_latency.estimators.transfer._design import choose_networks
from nni_latency.estimators.transfer._finding import encoding_of
from nni_latency.estimators.transfer._known import KnownDevice, learn_device
from nni_latency.estimators.transfer._layers import LayerEncoding
from nni_latency.estimators.transfer._series import check_series
from nni_latency.platforms import Platform
from nni_latency.tables import LookupTable
from nni_latency.units import number_of

#: Networks below which no table can be told from noise.
FEWEST = 10

#: Random networks among which the most informative ones are chosen.
_POOL = 2000


@dataclass(frozen=True)
class Recovery:
    """How well whole networks determine the entries of a table. Immutable.

    Parameters
    ----------
    encoding : LayerEncoding
        The space.
    device : KnownDevice
        What was recovered, with the covariance of its errors.
    architectures : ndarray of int of shape (n, n_layers)
        The networks that were measured.
    errors : ndarray of shape (n,)
        How far each of them is from what the others say, in standard deviations.
    """

    encoding: LayerEncoding
    device: KnownDevice
    architectures: NDArray[np.int64]
    errors: NDArray[np.float64]

    @property
    def n_determined(self) -> int:
        """Differences between candidates that would have to be known for every entry, and one for the sum."""
        return 1 + sum(size - 1 for size in self.encoding.sizes)

    @property
    def noise(self) -> float:
        """Standard deviation of a measurement, as a share of the mean network."""
        return self.device.noise

    def half_widths(self, confidence: float = 0.95) -> dict[str, dict[str, float]]:
        """Return half the width of the interval of every entry, ``{layer: {choice: seconds}}``.

        It is that of the difference to the mean candidate of the layer, which is all that whole networks determine.
        """
        assert self.device.covariance is not None
        deviations = self.device.constant * np.sqrt(np.maximum(np.diag(self.device.covariance)[:-1], 0.0))
        widths = iter((NormalDist().inv_cdf((1 + confidence) / 2) * deviations).tolist())
        return {label: {choice: next(widths) for choice in values} for label, values in self.encoding.choices.items()}

    def intervals(
        self, architectures: Any, confidence: float = 0.95
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return latencies of networks, and the ends of the intervals of measurements of them [s], (n,) each."""
        assert self.device.covariance is not None
        features = self.encoding.features(self.encoding.indices(architectures))
        extended = np.hstack([features, np.ones((len(features), 1))])
        variances = ((extended @ self.device.covariance) * extended).sum(axis=1) + self.device.noise**2
        values = self.device.predict(features)
        half = np.quantile(self.errors, confidence) * self.device.constant * np.sqrt(variances)
        return values, np.maximum(values - half, 0.0), values + half

    def suggest(self, n_networks: int = 10, architectures: Any = None, *, random_state: int = 0) -> NDArray[np.int64]:
        """Return the further networks that would help most.

        Parameters
        ----------
        n_networks : int, default=10
            How many.
        architectures : array-like, optional
            Where to choose from; by default 2,000 random networks of the space.
        random_state : int, default=0
            Seed of these.

        Returns
        -------
        ndarray of int of shape (n_networks, n_layers)
            Indices of their choices, the most telling first.

        Raises
        ------
        InvalidValueError
            If there are not as many to choose from.
        """
        assert self.device.covariance is not None
        pool = (
            self.encoding.draw(_POOL, random_state) if architectures is None else self.encoding.indices(architectures)
        )
        if not 1 <= n_networks <= len(pool):
            raise InvalidValueError(f"The 'n_networks' must be in [1, {len(pool)}]. Got {n_networks}.")
        features = self.encoding.features(pool)
        picks = choose_networks(
            np.hstack([features, np.ones((len(features), 1))]),
            self.device.covariance,
            [self.device.noise],
            n_networks,
            generator=np.random.default_rng(random_state),
        )
        return pool[picks]


def recover(
    space: Any,
    architectures: Any,
    latencies: ArrayLike,
    *,
    platform: Platform | None = None,
    random_state: int = 0,
) -> tuple[LookupTable, Recovery]:
    """Recover the table of a space from whole networks; `TableEstimator.from_networks` is what users call.

    Raises
    ------
    InvalidValueError
        If networks of the space are no sums of layers, or there are too few of them, or latencies that cannot be.
    """
    encoding = encoding_of(space, architectures)
    if not isinstance(encoding, LayerEncoding):
        raise InvalidValueError(
            "A network of this space costs more than the sum of its choices, so it has no lookup table. "
            "TransferEstimator predicts such networks."
        )
    indices = encoding.indices(architectures)
    values = check_series("the device", latencies, len(indices))
    if len(indices) < FEWEST:
        raise InvalidValueError(
            f"Recovering a table needs at least {FEWEST} measured networks. Got {len(indices)}: "
            f"{FEWEST - len(indices)} more are needed, and about {1 + sum(size - 1 for size in encoding.sizes)} "
            "in all determine every entry."
        )
    features = encoding.features(indices)
    device = learn_device("device", encoding, features, values, np.random.default_rng(random_state))
    assert device.covariance is not None
    table = make_table(
        encoding.space,
        platform or Platform("unknown", "unknown"),
        costs=device.constant * device.coefficients,
        covariance=device.constant**2 * device.covariance[:-1, :-1],
        constant=device.constant,
        measured=indices,
        remarks=(f"Recovered from {number_of(len(indices), 'whole network')}.", SHARED_OUT),
    )
    return table, Recovery(encoding, device, indices, _errors(device, features, values))


def _errors(device: KnownDevice, features: NDArray[np.float64], latencies: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the leave-one-out residual of each measurement, in standard deviations, (n,)."""
    assert device.covariance is not None
    extended = np.hstack([features, np.ones((len(features), 1))])
    off = np.abs(latencies - device.predict(features)) / device.constant
    known = ((extended @ device.covariance) * extended).sum(axis=1)
    leverage = np.minimum(known / device.noise**2, 0.99)
    errors: NDArray[np.float64] = off / (1 - leverage) / np.sqrt(known + device.noise**2)
    return errors
