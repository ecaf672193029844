"""`PredictedKernels`: what operators cost that run as one kernel, for whoever divides networks into kernels."""

from __future__ import annotations

from collections.abc import Sequence

from nni_latency.errors import InvalidValueError, MissingEntryError
from nni_latency.estimators import Estimate
from nni_latency.kernels._kernel import Kernel
from nni_latency.kernels._naming import kernel_of
from nni_latency.kernels._predictors import KernelPredictors
from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform

#: Costs that are remembered.
_REMEMBERED = 2**15


class PredictedKernels:
    """Costs of kernels by predictors, as an estimator asks for them. Safe to use from several threads.

    Parameters
    ----------
    predictors : KernelPredictors
        What predicts.

    Attributes
    ----------
    platform : Platform
        Where kernels were measured.
    metric : str
        "latency".
    """

    metric = "latency"

    def __init__(self, predictors: KernelPredictors) -> None:
        self.predictors = predictors
        self._known: dict[Kernel, Estimate | None] = {}

    @property
    def platform(self) -> Platform:
        """Where kernels were measured."""
        return self.predictors.platform

    @property
    def constant(self) -> float:
        """What a run of the runtime takes outside of its kernels [s]."""
        return self.predictors.constant

    def predict(self, ops: Sequence[OpSpec]) -> Estimate | None:
        """Return the cost of operators that run as one kernel [s].

        Parameters
        ----------
        ops : sequence of OpSpec
            In order, one or more.

        Returns
        -------
        Estimate or None
            None if they are no kernel of the catalogue, no kernel of the group was measured, or the configuration is
            out of range.
        """
        kernel = kernel_of(ops)
        if kernel is None:
            return None
        if kernel not in self._known:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[kernel] = self._predict(kernel)
        return self._known.get(kernel)

    def _predict(self, kernel: Kernel) -> Estimate | None:
        try:
            return Estimate.of(self.predictors.estimate(kernel))
        except (InvalidValueError, MissingEntryError):
            return None
