"""A transferred device as an ordinary estimator: by layer, by operator, as a table."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from nni_latency.errors import InvalidValueError
from nni_latency.estimators._additive import AdditiveCost
from nni_latency.estimators._base import Estimate, Estimator, LayerEstimator
from nni_latency.estimators._table import TableEstimator
from nni_latency.estimators.transfer._adaptation import Adaptation
from nni_latency.estimators.transfer._as_table import table_of
from nni_latency.estimators.transfer._encoding import Encoding
from nni_latency.estimators.transfer._layers import LayerEncoding
from nni_latency.estimators.transfer._population import Population
from nni_latency.operators import OpSpec
from nni_latency.tables import LookupTable

#: Networks that a new device must have been measured on: a scale, a difference, and one to see the noise by.
FEWEST = 3


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
