"""`TransferEstimator`: a new device from a handful of networks, with the help of devices that are known."""

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
from nni_latency.estimators.transfer._encoding import Encoding, LayerEncoding, encoding_of
from nni_latency.estimators.transfer._inputs import check_same_space, check_series, check_unit, resolution_of
from nni_latency.estimators.transfer._population import Population, suggest_networks
from nni_latency.estimators.transfer._recovery import table_of
from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform
from nni_latency.tables import LookupTable

#: Networks that a new device must have been measured on: a scale, a difference, and one to see the noise by.
FEWEST = 3

#: Networks of a known device below which its costs cannot be distinguished from noise.
FEWEST_OF_SOURCE = 30

#: Random networks that stand for a table of a known device.
_DRAWN = 1500

#: Noise of the new device's measurements where known devices are tables, which have none, as a share.
_TABLE_NOISE = 0.02

#: A measurement is suspect where the variance of its error is this many times that of the others.
_SUSPECT = 4.0

#: No network takes less than this share of the typical one.
_SMALLEST = 1e-3


class TransferCosts(LayerEstimator):
    """What a device costs by layer, once it is adapted to."""

    _population: Population
    _adaptation: Adaptation
    _measured: NDArray[np.int64]

    @abstractmethod
    def predict_interval(
        self, architectures: Any
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return latencies and the ends of their intervals [s], (n,) each."""

    def estimate_sample(self, sample: Mapping[str, Any] | Sequence[int] | str) -> Estimate:
        """Estimate one network by its choices, with the interval in which a measurement of it lies."""
        one = [sample] if isinstance(sample, (str, Mapping)) else np.atleast_2d(np.asarray(sample))
        value, low, high = (float(column[0]) for column in self.predict_interval(one))
        return Estimate(value, low, high)

    def estimate_op(self, op: OpSpec) -> Estimate:
        """Return the mean cost of the candidates with this operator.

        Raises
        ------
        MissingEntryError
            If the space has none.
        InvalidValueError
            If networks of the space are no sums of layers.
        """
        return self.as_table_estimator().estimate_op(op)

    @property
    def cost_(self) -> AdditiveCost:
        """Cost of every choice, in the form in which it steers a search."""
        return self.as_table_estimator().cost

    def as_table_estimator(self) -> TableEstimator:
        """Return the new device's table as an estimator: what searches, profilers and validations take."""
        return self._table_estimator

    def resolve(self) -> Estimator:
        """Return what stands for this estimator in searches: its table, or itself where networks are no sums.

        Raises
        ------
        InvalidValueError
            If nothing was measured on the new device yet.
        """
        if not hasattr(self, "similarity_"):
            raise InvalidValueError(
                "The TransferEstimator knows no measurement of the new device yet. Call fit with at least "
                f"{FEWEST} networks, better those that suggest returns."
            )
        return self.as_table_estimator() if self._encoding.additive else self

    def to_table(self, **fields: Any) -> LookupTable:
        """Return an ordinary lookup table of the new device.

        Parameters
        ----------
        fields : object
            Further fields of the table, such as `protocol` and `duration`.

        Its intervals are those of the candidates' costs; `Entry.n_samples` counts the networks measured on the device
        that hold the candidate, so that 0 says that the entry rests on known devices and other candidates alone.

        Raises
        ------
        InvalidValueError
            If networks of the space are no sums of layers.
        NotFittedError
            If nothing was measured on the new device yet.
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
    """A new device from a handful of whole-network latencies, with the help of devices that are known.

    Each known device is fitted as a sum over what its networks are made of, so that outliers count little. Leaving out
    one after another shows how much devices differ, and in what. Of a new device there are as many hypotheses as
    known ones, and two more: it is like that one up to a factor, with a mix of all others and further deviations; it is
    like their mean; it is like none. Each is a Gaussian process whose variances are the likeliest ones under the
    measurements; the answer is their mean, weighted by how well each explains what was measured. Deviations are smooth
    in what operators do (multiply-adds, traffic, launches, ...), shared by choices of one name, or single.

    Parameters
    ----------
    space : object, optional
        What the architectures belong to: a model space with a measure plan such as `FBNetSpace`, a plan, a table, a
        mapping of labels to choices, or ``"nasbench201"``. Without it, strings are cells of NAS-Bench-201, and columns
        of indices are layers.
    platform : Platform, optional
        The new device.
    confidence : float, default=0.95
        Level of the intervals, in (0, 1).
    check_units : bool, default=True
        Refuse series that are about 1,000 times larger or smaller than the others.
    random_state : int, default=0
        Seed of what is drawn: networks from which variances are found, candidates of a large pool.

    Attributes
    ----------
    sources_ : tuple of str
        Names of the known devices.
    labels_ : tuple of str
        What the space chooses, in the order of the indices.
    similarity_ : dict of str to float
        How probable it is that the new device is like each known one, like ``their mean`` or like ``none of them``.
    noise_ : float
        Standard deviation of the new device's measurements, as a share of its typical latency.
    suspects_ : tuple of int
        Measurements that do not fit the rest, by their place; they count less.
    cost_ : AdditiveCost
        Cost of every choice; only of spaces whose networks are sums of layers.

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
        """Learn the known devices, and how devices differ.

        Parameters
        ----------
        architectures : array-like
            Networks: indices of shape (n, n_layers), samples, or strings, as the space has them. At least 30.
        latencies : mapping of str to array-like of shape (n,)
            By device, what they took [s]. With one device alone nothing is known about how devices differ.

        Returns
        -------
        TransferEstimator
            This one.

        Raises
        ------
        InvalidValueError
            If there are no devices, architectures are outside the space or too few, or latencies are not positive and
            finite, or in another unit than the others.
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
        """Learn known devices from their lookup tables; each must be whole, and of the same space.

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
        """Choose the networks to measure on the new device: those that tell most about all the others.

        Parameters
        ----------
        n_networks : int, default=10
            How many.
        architectures : array-like, optional
            Where to choose from; by default the architectures of `fit_sources`.
        measured : sequence of int, default=()
            Which of them are measured already.

        Returns
        -------
        ndarray of int of shape (n_networks,)
            Their places among the architectures, the most informative first.

        Raises
        ------
        InvalidValueError
            If there are not as many to choose from.
        NotFittedError
            If the known devices are not learned yet.
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
            Networks that were measured on it; at least 3.
        latencies : array-like of shape (n,)
            What they took [s].

        Returns
        -------
        TransferEstimator
            This one.

        Raises
        ------
        InvalidValueError
            If they are too few, outside the space, not positive and finite, or in another unit than those of the known
            devices.
        NotFittedError
            If the known devices are not learned yet.
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
            If nothing was measured on the new device yet.
        """
        single = _is_single(architectures)
        values, _, _ = self.predict_interval([architectures] if single else architectures)
        return values[0] if single else values

    def predict_interval(
        self, architectures: Any
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Predict the latencies of networks, and where a measurement of each lies with `confidence`.

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
            If nothing was measured on the new device yet.
        """
        check_is_fitted(self, "similarity_")
        features = self._encoding.features(self._encoding.indices(architectures))
        values = np.maximum(self._adaptation.predict(features), _SMALLEST * self._adaptation.unit)
        half = self._quantile * self._adaptation.deviations(features)
        return values, np.maximum(values - half, 0.0), values + half

    def save(self, path: str | Path) -> Path:
        """Write the estimator as JSON, whole or not at all; `load` and `nni_latency.load_estimator` read it.

        The architectures of `fit_sources` are not kept: after reading, `suggest` has to be given some.

        Raises
        ------
        NotFittedError
            If the known devices are not learned yet.
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
            If the file is absent, truncated, altered, of another kind or of another version.
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
        """Forget the new device, if there was one."""
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
        """Half the width of an interval, in standard deviations, as known devices had it."""
        return float(np.interp(self.confidence, np.linspace(0, 1, len(self._errors)), self._errors))


def _is_single(architectures: Any) -> bool:
    """Whether this is one network: its sample, or the indices of its choices."""
    if isinstance(architectures, Mapping):
        return True
    if not isinstance(architectures, (Sequence, np.ndarray)) or not len(architectures):
        return False
    return isinstance(architectures[0], (int, np.integer))
