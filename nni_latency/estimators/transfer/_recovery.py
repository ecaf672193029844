# SPDX-License-Identifier: Apache-2.0
"""Recovery of lookup tables from whole networks, with or without known devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nni_latency.costs import NORMAL
from nni_latency.errors import InvalidValueError
from nni_latency.estimators.transfer._adaptation import Adaptation
from nni_latency.estimators.transfer._inputs import check_series
from nni_latency.estimators.transfer._known import KnownDevice, learn_device, prediction_variances, with_constant
from nni_latency.estimators.transfer._layers import EncodedLayer, LayeredSpace, LayerEncoding, encoding_of
from nni_latency.estimators.transfer._population import choose_networks
from nni_latency.operators import OpSpec, work_of
from nni_latency.platforms import Platform
from nni_latency.tables import Entry, LookupTable, TableLayer
from nni_latency.units import format_percent, number_of

#: Minimum number of networks to separate a table from noise.
FEWEST = 10

#: Number of random candidates for the most informative networks.
_POOL = 2000

#: Minimum cost of the cheapest candidate of a layer, as a share of a mean layer.
_LEAST_SHARE = 0.01

#: Minimum cost of the cheapest network, as a share of the typical one.
_CHEAPEST = 0.05

#: Remark of a recovered table.
SHARED_OUT = (
    "Whole networks determine the differences within a layer and the cost of all layers together; how the rest is "
    "shared out among layers follows what they compute."
)


@dataclass(frozen=True)
class Recovery:
    """How well whole networks determine the entries of a table. Immutable.

    Parameters
    ----------
    encoding : LayerEncoding
        The space.
    device : KnownDevice
        Recovered costs, with the covariance of their errors.
    architectures : ndarray of int of shape (n, n_layers)
        The measured networks.
    errors : ndarray of shape (n,)
        Leave-one-out residual of each network, in standard deviations.
    """

    encoding: LayerEncoding
    device: KnownDevice
    architectures: NDArray[np.int64]
    errors: NDArray[np.float64]

    @property
    def noise(self) -> float:
        """Standard deviation of a measurement, as a share of the mean network."""
        return self.device.noise

    def half_widths(self, confidence: float = 0.95) -> dict[str, dict[str, float]]:
        """Return the half-width of the interval of every entry, ``{layer: {choice: seconds}}``.

        It refers to the difference from the mean candidate of the layer; whole networks determine no more.
        """
        assert self.device.covariance is not None
        deviations = self.device.constant * np.sqrt(np.maximum(np.diag(self.device.covariance)[:-1], 0.0))
        widths = iter((NormalDist().inv_cdf((1 + confidence) / 2) * deviations).tolist())
        return {label: {choice: next(widths) for choice in values} for label, values in self.encoding.choices.items()}

    def predict_interval(
        self, architectures: Any, confidence: float = 0.95
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return latencies of networks, and the bounds of their prediction intervals [s], each of shape (n,)."""
        assert self.device.covariance is not None
        features = self.encoding.features(self.encoding.indices(architectures))
        variances = prediction_variances(features, self.device.covariance) + self.device.noise**2
        values = self.device.predict(features)
        half = np.quantile(self.errors, confidence) * self.device.constant * np.sqrt(variances)
        return values, np.maximum(values - half, 0.0), values + half

    def suggest(self, n_networks: int = 10, architectures: Any = None, *, random_state: int = 0) -> NDArray[np.int64]:
        """Return the further networks that would help most.

        Parameters
        ----------
        n_networks : int, default=10
            Number of networks.
        architectures : array-like, optional
            Candidates; by default 2,000 random networks of the space.
        random_state : int, default=0
            Seed of these.

        Returns
        -------
        ndarray of int of shape (n_networks, n_layers)
            Indices of their choices, the most informative first.

        Raises
        ------
        InvalidValueError
            If there are too few candidates.
        """
        assert self.device.covariance is not None
        pool = (
            self.encoding.draw(_POOL, random_state) if architectures is None else self.encoding.indices(architectures)
        )
        if not 1 <= n_networks <= len(pool):
            raise InvalidValueError(f"The 'n_networks' must be in [1, {len(pool)}]. Got {n_networks}.")
        features = self.encoding.features(pool)
        picks = choose_networks(
            with_constant(features),
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
    """Recover the table of a space from whole networks; the public function is `TableEstimator.from_networks`.

    Raises
    ------
    InvalidValueError
        If networks of the space are not sums of layers, there are too few networks, or latencies are invalid.
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
    off = np.abs(latencies - device.predict(features)) / device.constant
    known = prediction_variances(features, device.covariance)
    leverage = np.minimum(known / device.noise**2, 0.99)
    errors: NDArray[np.float64] = off / (1 - leverage) / np.sqrt(known + device.noise**2)
    return errors


def table_of(
    encoding: LayerEncoding,
    hypotheses: Sequence[str],
    adaptation: Adaptation,
    measured: NDArray[np.int64],
    platform: Platform,
) -> LookupTable:
    """Convert a new device to a table, with remarks on its sources."""
    odds = sorted(zip(adaptation.probabilities.tolist(), hypotheses, strict=True), reverse=True)
    likely = ", ".join(f"{name} ({format_percent(share)})" for share, name in odds[:3] if share > 0.01)
    remarks = (
        f"Transferred: {number_of(len(measured), 'network')} measured on this device; known devices: "
        f"{', '.join(hypotheses[:-2])}.",
        f"Most like: {likely}. An entry's 'n_samples' counts the measured networks that hold it; 0 is inferred.",
        SHARED_OUT,
    )
    costs, unit = adaptation.mean[:-1], adaptation.unit
    return make_table(
        encoding.space,
        platform,
        costs=unit * costs,
        covariance=unit**2 * adaptation.covariance[:-1, :-1],
        constant=unit * float(adaptation.mean[-1]),
        measured=measured,
        remarks=remarks,
    )


def make_table(
    space: LayeredSpace,
    platform: Platform,
    costs: NDArray[np.float64],
    covariance: NDArray[np.float64],
    constant: float,
    measured: NDArray[np.int64],
    remarks: Sequence[str],
) -> LookupTable:
    """Convert centred costs to a table.

    Whole networks determine the differences between the candidates of a layer and the total cost of all layers, but not
    its distribution over the layers. The cheapest candidate of a layer gets at most its share of operations, stem and
    head the rest.

    Parameters
    ----------
    space : LayeredSpace
        The layers.
    platform : Platform
        The new device.
    costs : ndarray of shape (n_candidates,)
        Costs of the candidates of the searched layers, relative to the mean of their layer [s].
    covariance : ndarray of shape (n_candidates, n_candidates)
        Covariance of their errors [s^2].
    constant : float
        Mean latency over the space [s].
    measured : ndarray of int of shape (n_networks, n_layers)
        Networks measured on the device.
    remarks : sequence of str
        Remarks on the sources of the table.
    """
    sizes = [len(layer.choices) for layer in space.searched]
    cuts = np.cumsum(sizes)[:-1]
    columns = [column - column.min() for column in np.split(costs, cuts)]
    deviations = np.split(np.sqrt(np.maximum(np.diag(covariance), 0.0)), cuts)
    rest = constant + sum(float(column.min()) for column in np.split(costs, cuts))
    if rest < _CHEAPEST * constant:
        # Latencies must be positive: differences are scaled down to leave a positive cost of the cheapest network.
        factor = (1 - _CHEAPEST) * constant / (constant - rest)
        columns, rest = [column * factor for column in columns], _CHEAPEST * constant
    shares, fixed = _share_out(space, columns, rest)
    counts = [np.bincount(column, minlength=size) for column, size in zip(measured.T, sizes, strict=True)]
    layers, place = [], 0
    for layer in space.layers:
        if layer.searched:
            entries = _entries(layer, columns[place] + shares[place], deviations[place], counts[place])
            place += 1
        else:
            entries = _entries(layer, np.array(fixed[layer.name]), np.zeros(len(layer.choices)), None)
        layers.append(TableLayer(layer.name, layer.choices, entries, layer.searched, layer.default))
    return LookupTable(
        space=space.reference,
        platform=platform,
        layers=tuple(layers),
        input_shape=space.input_shape,
        remarks=tuple(remarks),
    )


def _share_out(
    space: LayeredSpace, columns: Sequence[NDArray[np.float64]], rest: float
) -> tuple[list[float], dict[str, list[float]]]:
    """Distribute the cost of the cheapest network to the cheapest candidate of each layer and to fixed layers."""
    cheapest = [_works(layer)[int(column.argmin())] for layer, column in zip(space.searched, columns, strict=True)]
    fixed = {layer.name: _works(layer) for layer in space.layers if not layer.searched}
    defaults = [fixed[layer.name][_default(layer)] for layer in space.layers if not layer.searched]
    total = sum(cheapest) + sum(defaults)
    least = _LEAST_SHARE / len(cheapest)
    floored = [max(least, work / total) if total else 1.0 / len(cheapest) for work in cheapest]
    whole = sum(floored) + sum(work / total for work in defaults) if total else 1.0
    scale = rest / whole
    return [share * scale for share in floored], {
        name: [work / total * scale for work in works] for name, works in fixed.items()
    }


def _works(layer: EncodedLayer) -> list[float]:
    return [_rough_share(op) for op in layer.ops] if layer.ops else [1.0] * len(layer.choices)


def _default(layer: EncodedLayer) -> int:
    return layer.choices.index(layer.default) if layer.default in layer.choices else 0


def _entries(
    layer: EncodedLayer,
    values: NDArray[np.float64],
    deviations: NDArray[np.float64],
    counts: NDArray[np.int64] | None,
) -> dict[str, Entry]:
    return {
        choice: Entry(
            float(values[place]),
            max(0.0, float(values[place] - NORMAL * deviations[place])),
            float(values[place] + NORMAL * deviations[place]),
            0 if counts is None else int(counts[place]),
            0,
            layer.ops[place] if layer.ops else None,
        )
        for place, choice in enumerate(layer.choices)
    }


def _rough_share(op: OpSpec) -> float:
    """Return an approximate cost: multiply-adds and bytes in typical proportion."""
    features, _ = work_of(op)
    return features.macs / 20 + features.memory / 10 + 1e3
