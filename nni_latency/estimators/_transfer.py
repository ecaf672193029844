# SPDX-License-Identifier: Apache-2.0
"""`TransferEstimator`: adapts to a new device with a few measured networks, using known devices."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import check_is_fitted

from nni_latency.errors import FileFormatError, InvalidValueError
from nni_latency.estimators._additive import AdditiveCost
from nni_latency.estimators._base import Estimate, Estimator, LayerEstimator
from nni_latency.estimators._table import TableEstimator
from nni_latency.estimators.transfer._adaptation import Adaptation, Learned, adapt, learn
from nni_latency.estimators.transfer._document import State, read_transfer, write_transfer
from nni_latency.estimators.transfer._encoding import Encoding
from nni_latency.estimators.transfer._inputs import check_same_space, check_series, check_unit, resolution_of
from nni_latency.estimators.transfer._layers import LayerEncoding, encoding_of
from nni_latency.estimators.transfer._population import Population, suggest_networks
from nni_latency.estimators.transfer._recovery import table_of
from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform
from nni_latency.tables import LookupTable

#: Minimum number of networks measured on a new device: for a scale, a difference, and the noise.
FEWEST = 3

#: Minimum number of networks of a known device to separate its costs from noise.
FEWEST_OF_SOURCE = 30

#: Number of random networks that represent a table of a known device.
_DRAWN = 1500

#: Assumed relative noise of the new device's measurements if known devices are noise-free tables.
_TABLE_NOISE = 0.02

#: A measurement is suspect if its error variance is this many times that of the others.
_SUSPECT = 4.0

#: Minimum latency of a network as a share of the typical one.
_SMALLEST = 1e-3


class TransferCosts(LayerEstimator):
    """Costs of an adapted device by layer."""

    _population: Population
    _adaptation: Adaptation
    _measured: NDArray[np.int64]

    @abstractmethod
    def predict_interval(
        self, architectures: Any
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return latencies and the bounds of their intervals [s], each of shape (n,)."""

    def estimate_sample(self, sample: Mapping[str, Any] | Sequence[int] | str) -> Estimate:
        """Estimate one network by its choices, with the prediction interval of a measurement."""
        one = [sample] if isinstance(sample, (str, Mapping)) else np.atleast_2d(np.asarray(sample))
        value, low, high = (float(column[0]) for column in self.predict_interval(one))
        return Estimate(value, low, high)

    def estimate_op(self, op: OpSpec) -> Estimate:
        """Return the mean cost of the candidates with this operator.

        Raises
        ------
        MissingEntryError
            If the space has no such candidate.
        InvalidValueError
            If networks of the space are not sums of layers.
        """
        return self.as_table_estimator().estimate_op(op)

    @property
    def cost_(self) -> AdditiveCost:
        """Cost of every choice, for use in a search."""
        return self.as_table_estimator().cost

    def as_table_estimator(self) -> TableEstimator:
        """Return the new device's table as an estimator for searches, profilers and validations."""
        return self._table_estimator

    def resolve(self) -> Estimator:
        """Return the estimator to use in searches: its table, or itself if networks are not sums of layers.

        Raises
        ------
        InvalidValueError
            If the estimator is not fitted to the new device.
        """
        if not hasattr(self, "similarity_"):
            raise InvalidValueError(
                "The TransferEstimator is not fitted to the new device. Call fit with at least "
                f"{FEWEST} networks, preferably those that suggest returns."
            )
        return self.as_table_estimator() if self._encoding.additive else self

    def to_table(self, **fields: Any) -> LookupTable:
        """Return a lookup table of the new device.

        Its intervals are those of the candidates' costs; `Entry.n_samples` counts the measured networks with the
        candidate, so that 0 marks an entry derived only from known devices and other candidates.

        Parameters
        ----------
        **fields
            Further fields of the table, such as `protocol` and `duration`.

        Raises
        ------
        InvalidValueError
            If networks of the space are not sums of layers.
        NotFittedError
            If the estimator is not fitted to the new device.
        """
        check_is_fitted(self, "similarity_")
        encoding = self._encoding
        if not isinstance(encoding, LayerEncoding):
            raise InvalidValueError(
                "A network of this space costs more than the sum of its choices, so it has no lookup table. "
                "Use predict or estimate_sample."
            )
        names = self._population.hypotheses
        table = table_of(encoding, names, self._adaptation, self._measured, self.platform)
        return replace(table, **fields)

    @property
    def _encoding(self) -> Encoding:
        return self._population.encoding

    @cached_property
    def _table_estimator(self) -> TableEstimator:
        return TableEstimator(self.to_table())


class TransferEstimator(BaseEstimator, TransferCosts):
    """Adapts to a new device with a few whole-network latencies, using known devices.

    Each known device is fitted by a robust sum over the parts of its networks. Leaving out one device at a time
    measures how devices differ. A new device has one hypothesis per known device (similar to it up to a factor, with a
    mix of all others and further deviations) and two more (similar to their mean; similar to none). Each hypothesis is
    a Gaussian process with maximum-likelihood variances; the prediction is their mean, weighted by the marginal
    likelihoods. Deviations are smooth in the work of operators (multiply-adds, traffic, launches, ...), shared by
    choices of one name, or individual.

    Parameters
    ----------
    space : object, optional
        Space of the architectures: a model space with a measure plan such as `FBNetSpace`, a plan, a table, a mapping
        of labels to choices, or ``"nasbench201"``. By default, strings are cells of NAS-Bench-201, and columns of
        indices are layers.
    platform : Platform, optional
        The new device.
    confidence : float, default=0.95
        Level of the intervals, in (0, 1).
    check_units : bool, default=True
        Whether to reject series that are about 1,000 times larger or smaller than the others.
    random_state : int, default=0
        Seed of the networks used to estimate variances, and of the candidates of a large pool.

    Attributes
    ----------
    sources_ : tuple of str
        Names of the known devices.
    labels_ : tuple of str
        Labels of the space, in the order of the indices.
    similarity_ : dict of str to float
        Probability that the new device is similar to each known one, to ``their mean`` or to ``none of them``.
    noise_ : float
        Standard deviation of the new device's measurements, as a share of its typical latency.
    suspects_ : tuple of int
        Indices of outliers, which have less weight.
    cost_ : AdditiveCost
        Cost of every choice; only for spaces whose networks are sums of layers.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> networks = rng.integers(0, 3, (200, 4))
    >>> base = np.array([[1, 2, 3], [1, 3, 4], [2, 2, 5], [1, 4, 6]]) * 1e-3
    >>> known = {f"device {k}": (base**k)[np.arange(4), networks].sum(axis=1) for k in (0.8, 1.0, 1.2)}
    >>> known = {name: values / values.mean() * 0.01 for name, values in known.items()}
    >>> estimator = TransferEstimator({f"layer{i}": range(3) for i in range(4)}).fit_sources(networks, known)
    >>> picks = estimator.suggest(5)
    >>> truth = 2 * (base**1.1)[np.arange(4), networks].sum(axis=1)
    >>> predicted = estimator.fit(networks[picks], truth[picks]).predict(networks)
    >>> bool(np.abs(predicted / truth - 1).max() < 0.05)
    True
    """

    metric = "latency"

    __metadata_request__fit = {"architectures": UNUSED, "latencies": UNUSED}  # noqa: RUF012 - its own protocol
    __metadata_request__predict = {"architectures": UNUSED}  # noqa: RUF012

    def __init__(
        self,
        space: Any = None,
        *,
        platform: Platform | None = None,
        confidence: float = 0.95,
        check_units: bool = True,
        random_state: int = 0,
    ) -> None:
        self.space = space
        self.platform = platform or Platform("unknown", "unknown")
        self.confidence = confidence
        self.check_units = check_units
        self.random_state = random_state

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:  # noqa: N803 - the name that scikit-learn gives it
        return f"TransferEstimator({', '.join(getattr(self, 'sources_', ())) or 'no sources'} -> {self.platform.id})"

    def fit_sources(self, architectures: Any, latencies: Mapping[str, ArrayLike]) -> TransferEstimator:
        """Fit the known devices and how devices differ.

        Parameters
        ----------
        architectures : array-like
            Networks: indices of shape (n, n_layers), samples, or strings, as the space has them. At least 30.
        latencies : mapping of str to array-like of shape (n,)
            Latencies by device [s]. A single device contains no information on how devices differ.

        Returns
        -------
        TransferEstimator
            The estimator.

        Raises
        ------
        InvalidValueError
            If there are no devices, architectures are outside the space or too few, or latencies are not positive and
            finite, or differ in unit.
        """
        self._check_settings()
        if not isinstance(latencies, Mapping) or not latencies:
            raise InvalidValueError("TransferEstimator needs at least one known device, better three. Got none.")
        encoding = encoding_of(self.space, architectures)
        indices = encoding.indices(architectures)
        if len(indices) < FEWEST_OF_SOURCE:
            raise InvalidValueError(
                f"A known device needs at least {FEWEST_OF_SOURCE} measured networks. Got {len(indices)}: "
                f"{FEWEST_OF_SOURCE - len(indices)} more are needed."
            )
        series = {str(name): check_series(str(name), values, len(indices)) for name, values in latencies.items()}
        return self._take_over(learn(encoding, indices, series, self.random_state, check=self.check_units))

    def fit_tables(self, tables: Mapping[str, LookupTable]) -> TransferEstimator:
        """Fit known devices to their lookup tables, which must be complete and of the same space.

        Raises
        ------
        InvalidValueError
            If there is no table, or a table lacks candidates.
        MismatchError
            If the tables are of different spaces, input shapes or metrics.
        """
        if not tables:
            raise InvalidValueError("TransferEstimator needs at least one known device, better three. Got no table.")
        check_same_space(tables, self.metric)
        self._check_settings()
        encoding = encoding_of(next(iter(tables.values())) if self.space is None else self.space)
        drawn = encoding.draw(_DRAWN, self.random_state)
        series = {name: TableEstimator(table).predict(drawn) for name, table in tables.items()}
        found = learn(encoding, drawn, series, self.random_state, check=self.check_units, least_noise=_TABLE_NOISE)
        return self._take_over(found)

    def suggest(
        self, n_networks: int = 10, architectures: Any = None, *, measured: Sequence[int] = ()
    ) -> NDArray[np.int64]:
        """Choose the networks to measure on the new device: those most informative about all others.

        Parameters
        ----------
        n_networks : int, default=10
            Number of networks.
        architectures : array-like, optional
            Candidates; by default the architectures of `fit_sources`.
        measured : sequence of int, default=()
            Indices of those measured before.

        Returns
        -------
        ndarray of int of shape (n_networks,)
            Their indices among the architectures, most informative first.

        Raises
        ------
        InvalidValueError
            If there are too few candidates.
        NotFittedError
            If the known devices are not fitted.
        """
        check_is_fitted(self, "sources_")
        indices = self._indices if architectures is None else self._encoding.indices(architectures)
        available = len(indices) - len(set(map(int, measured)))
        if not 1 <= n_networks <= available:
            raise InvalidValueError(
                f"The 'n_networks' must be in [1, {available}], for as many are there to choose from. Got {n_networks}."
            )
        picks = suggest_networks(self._population, indices, n_networks, list(map(int, measured)), self.random_state)
        return np.array(picks, dtype=np.int64)

    def fit(self, architectures: Any, latencies: ArrayLike) -> TransferEstimator:
        """Adapt to the new device.

        Parameters
        ----------
        architectures : array-like
            Networks measured on the new device; at least 3.
        latencies : array-like of shape (n,)
            What they took [s].

        Returns
        -------
        TransferEstimator
            The estimator.

        Raises
        ------
        InvalidValueError
            If there are too few networks, they are outside the space, or latencies are not positive and finite, or in
            another unit than those of the known devices.
        NotFittedError
            If the known devices are not fitted.
        """
        check_is_fitted(self, "sources_")
        indices = self._encoding.indices(architectures)
        if len(indices) < FEWEST:
            raise InvalidValueError(
                f"A new device needs at least {FEWEST} measured networks, better 10. Got {len(indices)}: "
                f"{FEWEST - len(indices)} more are needed."
            )
        values = check_series("the new device", latencies, len(indices))
        features = self._encoding.features(indices)
        if self.check_units:
            known = [float(np.median(device.predict(features))) for device in self._population.devices]
            check_unit("the new device", float(np.median(values)), float(np.median(known)), "the known devices")
        self._measured, self._latencies = indices, values
        self._forget()
        self._adaptation: Adaptation = adapt(self._population, features, values, resolution_of(values))
        names = self._population.hypotheses
        self.similarity_ = dict(zip(names, self._adaptation.probabilities.tolist(), strict=True))
        self.noise_ = self._adaptation.noise
        self.suspects_ = tuple(int(place) for place in np.flatnonzero(self._adaptation.weights > _SUSPECT))
        return self

    def predict(self, architectures: Any) -> NDArray[np.float64]:
        """Predict the latencies of networks on the new device.

        Parameters
        ----------
        architectures : array-like of int of shape (n, n_labels) or (n_labels,), list of mappings, or mapping
            Networks of the space, or one of them.

        Returns
        -------
        ndarray of shape (n,)
            Seconds; a number for a single network.

        Raises
        ------
        NotFittedError
            If the estimator is not fitted to the new device.
        """
        single = _is_single(architectures)
        values, _, _ = self.predict_interval([architectures] if single else architectures)
        return values[0] if single else values

    def predict_interval(
        self, architectures: Any
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Predict the latencies of networks with prediction intervals at the level `confidence`.

        Parameters
        ----------
        architectures : array-like of int of shape (n, n_labels), or list of mappings
            Networks of the space.

        Returns
        -------
        values, low, high : ndarray of shape (n,)
            Seconds.

        Raises
        ------
        NotFittedError
            If the estimator is not fitted to the new device.
        """
        check_is_fitted(self, "similarity_")
        features = self._encoding.features(self._encoding.indices(architectures))
        values = np.maximum(self._adaptation.predict(features), _SMALLEST * self._adaptation.unit)
        half = self._quantile * self._adaptation.deviations(features)
        return values, np.maximum(values - half, 0.0), values + half

    def save(self, path: str | Path) -> Path:
        """Write the estimator as JSON atomically; `load` and `nni_latency.load_estimator` read it.

        The architectures of `fit_sources` are not saved: after loading, `suggest` requires architectures.

        Raises
        ------
        NotFittedError
            If the known devices are not fitted.
        OutputError
            If it cannot be written.
        """
        check_is_fitted(self, "sources_")
        measured = self._measured if hasattr(self, "similarity_") else np.zeros((0, len(self._encoding.labels)), int)
        latencies = self._latencies if hasattr(self, "similarity_") else np.zeros(0)
        settings = (self.confidence, self.check_units, self.random_state)
        return write_transfer(
            Path(path), State(settings, self.platform, self._population, self._errors, measured, latencies)
        )

    @classmethod
    def load(cls, path: str | Path) -> TransferEstimator:
        """Read an estimator.

        Raises
        ------
        FileFormatError
            If the file is missing, truncated, modified, or of another type or version.
        """
        state = read_transfer(path)
        confidence, check, seed = state.settings
        encoding = state.population.encoding
        estimator = cls(
            encoding, platform=state.platform, confidence=confidence, check_units=check, random_state=seed
        )._take_over(Learned(state.population, np.zeros((0, len(encoding.labels)), dtype=np.int64), state.errors))
        if not len(state.measured):
            return estimator
        try:
            with np.errstate(over="raise", invalid="raise", divide="raise"):
                return estimator.fit(state.measured, state.latencies)
        except (ArithmeticError, np.linalg.LinAlgError) as error:
            raise FileFormatError(f"The numbers of the estimator {str(path)!r} cannot be used: {error}.") from error

    def _take_over(self, learned: Learned) -> TransferEstimator:
        self._forget()
        population = learned.population
        self._population, self._indices, self._errors = population, learned.indices, learned.errors
        self.sources_ = tuple(device.name for device in population.devices)
        self.labels_ = population.encoding.labels
        return self

    def _forget(self) -> None:
        """Remove the fit to a new device, if any."""
        for name in ("similarity_", "noise_", "suspects_"):
            self.__dict__.pop(name, None)
        self.__dict__.pop("_table_estimator", None)

    def _check_settings(self) -> None:
        if not 0 < self.confidence < 1:
            raise InvalidValueError(
                f"The 'confidence' of TransferEstimator must be in (0, 1). Got {self.confidence!r}."
            )

    @property
    def _quantile(self) -> float:
        """Half-width of an interval in standard deviations, calibrated on known devices."""
        return float(np.interp(self.confidence, np.linspace(0, 1, len(self._errors)), self._errors))


def _is_single(architectures: Any) -> bool:
    """Whether this is a single network: a sample, or the indices of its choices."""
    if isinstance(architectures, Mapping):
        return True
    if not isinstance(architectures, (Sequence, np.ndarray)) or not len(architectures):
        return False
    return isinstance(architectures[0], (int, np.integer))
