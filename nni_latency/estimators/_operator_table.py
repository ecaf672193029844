"""`OperatorTableEstimator`: a table of operators as an estimator, which predicts what was not measured."""

from __future__ import annotations

from functools import cached_property

from nni_latency.errors import MissingEntryError
from nni_latency.estimators._base import Estimate, LayerEstimator
from nni_latency.estimators._operator_predictor import OperatorPredictor
from nni_latency.operators import OpSpec
from nni_latency.tables import OperatorTable


class OperatorTableEstimator(LayerEstimator):
    """A table of operators as an estimator, for networks of its space and others alike. Immutable.

    An operator that was measured has its entry. One that was not is predicted from measured ones of its family, with a
    wider interval, and every estimate names it.

    Parameters
    ----------
    table : OperatorTable
        The costs.

    Examples
    --------
    >>> from nni_latency.platforms import Platform
    >>> from nni_latency.tables import OperatorEntry, SpaceReference
    >>> entries = [OperatorEntry(1e-6 * k, 9e-7 * k, 2e-6 * k, OpSpec.of("relu", [(1, 8 * k)])) for k in (1, 2, 4)]
    >>> table = OperatorTable(SpaceReference("mine"), Platform("mine", "torch"), (1, 8), tuple(entries))
    >>> estimator = OperatorTableEstimator(table)
    >>> estimator.estimate_op(OpSpec.of("relu", [(1, 16)])).value
    2e-06
    >>> estimator.estimate_op(OpSpec.of("relu", [(1, 24)])).missing
    ('predicted: relu()@1x24:float32',)
    """

    metric = "latency"

    def __init__(self, table: OperatorTable) -> None:
        self.table = table
        self.platform = table.platform
        self.calibration = table.calibration
        self.residency = table.residency
        self._predicted: dict[str, Estimate] = {}

    def __repr__(self) -> str:
        return f"OperatorTableEstimator({self.table.space.name}, {self.metric} on {self.platform.id})"

    @cached_property
    def predictor(self) -> OperatorPredictor:
        """What predicts operators without an entry, fitted when the first one is asked for."""
        entries = self.table.entries
        return OperatorPredictor([entry.op for entry in entries], [entry.value for entry in entries])

    def estimate_op(self, op: OpSpec) -> Estimate:
        """Return the entry of an operator, or predict it.

        Raises
        ------
        MissingEntryError
            If no operator of its kind was measured.
        """
        entry = self.table.by_key.get(op.op_key)
        if entry is not None:
            return Estimate.of(entry)
        if op.op_key not in self._predicted:
            self._predicted[op.op_key] = self._predict(op)
        return self._predicted[op.op_key]

    def of_sum(self, entries: float) -> float:
        """Return the cost of a network whose entries add up to `entries` [s]."""
        return self.total([Estimate(entries, entries, entries)]).value

    def _predict(self, op: OpSpec) -> Estimate:
        found = self.predictor.predict(op)
        if found is None:
            kinds = sorted({entry.op.kind for entry in self.table.entries})
            raise MissingEntryError(
                f"The table has no operator of the kind {op.kind!r} from which {op.op_key} could be predicted. "
                f"It has: {', '.join(kinds)}."
            )
        return Estimate.of(found, (f"predicted: {op.op_key}",))
