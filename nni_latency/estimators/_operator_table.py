"""`OperatorTableEstimator`: a table of operators as an estimator, which predicts what was not measured."""

from __future__ import annotations

from functools import cached_property
from typing import Literal, get_args

from nni_latency.errors import InvalidValueError, MissingEntryError
from nni_latency.estimators._base import Estimate, LayerEstimator
from nni_latency.estimators._nearest import nearest_entry
from nni_latency.estimators._operator_predictor import OperatorPredictor
from nni_latency.operators import OpSpec
from nni_latency.tables import UNKNOWN, MeasurePlan, OperatorTable

OperatorMissing = Literal["predict", "nearest", "error"]


class OperatorTableEstimator(LayerEstimator):
    """A table of operators as an estimator, for networks of its space and others alike, of any metric. Immutable.

    An operator that was measured has its entry. One that was not is predicted from measured ones of its family, with a
    wider interval, and every estimate names it.

    Parameters
    ----------
    table : OperatorTable
        The costs.
    missing : {"predict", "nearest", "error"}, default="predict"
        What to do about an operator without an entry: predict it, and raise if the table has none of its kind; predict
        it, and take the entry whose operator is most alike if it has none; or raise.

    Raises
    ------
    InvalidValueError
        If `missing` is none of these.

    Examples
    --------
    >>> from nni_latency.platforms import Platform
    >>> from nni_latency.tables import OperatorEntry, SpaceReference
    >>> entries = [OperatorEntry(k, k, k, OpSpec.of("relu", [(1, 8 * k)])) for k in (1, 2, 4)]
    >>> table = OperatorTable(
    ...     space=SpaceReference("mine"), platform=Platform("mine"), input_shape=(1, 8), entries=tuple(entries)
    ... )
    >>> estimator = OperatorTableEstimator(table)
    >>> estimator.estimate_op(OpSpec.of("relu", [(1, 16)])).value
    2
    >>> estimator.estimate_op(OpSpec.of("relu", [(1, 24)])).missing
    ('predicted: relu()@1x24:float32',)
    """

    def __init__(self, table: OperatorTable, *, missing: OperatorMissing = "predict") -> None:
        if missing not in get_args(OperatorMissing):
            known = ", ".join(map(repr, get_args(OperatorMissing)))
            raise InvalidValueError(f"The 'missing' of OperatorTableEstimator must be one of {known}. Got {missing!r}.")
        self.table = table
        self.missing = missing
        self.metric = table.metric
        self.platform = table.platform
        self.calibration = table.calibration
        self.residency = table.residency
        self.network_error = table.network_error or 0.0
        self._predicted: dict[str, Estimate] = {}

    def __repr__(self) -> str:
        return f"OperatorTableEstimator({self.table.space.name}, {self.metric} on {self.platform.id})"

    @cached_property
    def predictor(self) -> OperatorPredictor:
        """What predicts operators without an entry, fitted when the first one is asked for."""
        entries = [entry for entry in self.table.entries if entry.op.kind != UNKNOWN]
        return OperatorPredictor([entry.op for entry in entries], [entry.value for entry in entries])

    def estimate_op(self, op: OpSpec) -> Estimate:
        """Return the entry of an operator, or predict it.

        Raises
        ------
        MissingEntryError
            If it has no entry and must not be predicted, or the table has no operator that is known.
        """
        entry = self.table.by_key.get(op.op_key)
        if entry is not None:
            return Estimate.of(entry)
        if op.op_key not in self._predicted:
            self._predicted[op.op_key] = self._predict(op)
        return self._predicted[op.op_key]

    def of_sum(self, entries: float) -> float:
        """Return the cost of a network whose entries add up to `entries`."""
        return self.total([Estimate(entries, entries, entries)]).value

    def check_plan(self, plan: MeasurePlan) -> None:
        """Raise `MismatchError` if the table was measured with another batch size than the plan has."""
        self.table.check_batch_size(plan.batch_size)

    def _predict(self, op: OpSpec) -> Estimate:
        if self.missing == "error":
            raise MissingEntryError(
                f"The table has no entry for the operator {op.op_key}. Measure it, or let it be predicted, with "
                "missing='predict'."
            )
        found = self.predictor.predict(op)
        if found is None and self.missing == "nearest":
            near = nearest_entry(op, self.table.entries)
            if near is not None:
                return Estimate.of(near, (op.op_key,))
        guessed = None if found is not None else self.predictor.guess(op)
        if guessed is not None:
            return Estimate.of(guessed, (f"guessed by its size: {op.op_key}",))
        if found is None:
            kinds = sorted({entry.op.kind for entry in self.table.entries})
            raise MissingEntryError(
                f"The table has no operator of a known kind from which {op.op_key} could be predicted. "
                f"It has: {', '.join(kinds)}."
            )
        return Estimate.of(found, (f"predicted: {op.op_key}",))
