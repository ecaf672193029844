"""`PredictedRest`: what was met in networks as measured, everything else predicted from it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

from nni_latency.errors import MissingEntryError
from nni_latency.estimators._base import Estimate, LayerEstimator
from nni_latency.estimators._operator_predictor import OperatorPredictor
from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform
from nni_latency.units import number_of


class PredictedRest(LayerEstimator):
    """A measuring estimator for a whole space: it measures networks, never single operators.

    Asked for an operator that no network has had, a `ModuleEstimator` measures it alone, which takes seconds each and
    leaves out what a network does to the caches. Here it is predicted from the operators of its family that were met
    in networks, and `missing` says so.

    Parameters
    ----------
    estimator : ModuleEstimator or GraphEstimator
        What has measured networks.
    ops : iterable of OpSpec
        Operators that may be asked for; those of them that were met are what predictions rest on.

    Raises
    ------
    MissingEntryError
        If none of the operators was met in a network.
    """

    metric = "latency"

    def __init__(self, estimator: Any, ops: Iterable[OpSpec]) -> None:
        self.estimator = estimator
        self.by = estimator.by
        self.platform: Platform = estimator.platform
        self.known: dict[OpSpec, Estimate] = {op: estimator.estimate_op(op) for op in ops if estimator.has_met(op)}
        if not self.known:
            raise MissingEntryError("None of the operators was met in a network yet: measure some networks first.")

    def __repr__(self) -> str:
        return f"PredictedRest({self.estimator!r}, {number_of(len(self.known), 'operator')})"

    def estimate_op(self, op: OpSpec) -> Estimate:
        """Return what was measured, or predict it.

        Raises
        ------
        MissingEntryError
            If no operator was met in a network.
        """
        if op in self.known:
            return self.known[op]
        found = self._predictor.predict(op)
        if found is not None:
            return Estimate.of(found, (f"predicted: {op.op_key}",))
        guessed = self._predictor.guess(op)
        if guessed is None:
            raise MissingEntryError(f"No operator was met from which {op.op_key} could be predicted.")
        return Estimate.of(guessed, (f"guessed by its size: {op.op_key}",))

    @cached_property
    def _predictor(self) -> OperatorPredictor:
        return OperatorPredictor(list(self.known), [item.value for item in self.known.values()])
