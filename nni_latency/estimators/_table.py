# SPDX-License-Identifier: Apache-2.0
"""`TableEstimator`: estimator backed by a table, by layer and by operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

import nni_latency.estimators.transfer as transfer
from nni_latency.errors import InvalidValueError, MismatchError, MissingEntryError, listed
from nni_latency.estimators._additive import AdditiveCost, additive_cost, paired_parts, separable_cost
from nni_latency.estimators._base import Estimate, LayerEstimator, LayerShare, layer_shares
from nni_latency.estimators._operator_predictor import OperatorPredictor, nearest_entry
from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform
from nni_latency.tables import (
    HEAD_ONLY,
    UNKNOWN,
    Entry,
    LayerPair,
    LookupTable,
    MeasurePlan,
    TableLayer,
    weigh_tables,
)
from nni_latency.units import combination_of, number_of

Missing = Literal["error", "nearest", "predict"]


class TableEstimator(LayerEstimator):
    """A lookup table as an estimator, for every metric. Immutable.

    Parameters
    ----------
    table : LookupTable
        The costs.
    missing : {"error", "nearest", "predict"}, optional
        Handling of a candidate or an operator without an entry. ``"error"``, the default for a table with layers:
        raise. ``"nearest"``: take the entry with the nearest operator by the ratios of multiply-adds, ACTS, INP,
        parameters and bytes; if the operator is unknown, the same choice in the nearest layer. ``"predict"``, the
        default for a table of operators: predict it from the measured operators of its family, with a wider interval.
        Every estimate lists such parts.

    Raises
    ------
    InvalidValueError
        If `missing` is not one of these.

    Examples
    --------
    >>> table = LookupTable.from_latencies({"a": ["x", "y"]}, {"a": {"x": 0.001, "y": 0.002}})
    >>> TableEstimator(table).estimate_sample({"a": "y"}).value
    0.002
    """

    #: How well whole networks determine the table, if it was recovered from them.
    recovery: transfer.Recovery | None = None
    #: Estimator and weight of every table of a weighted sum.
    addends: tuple[tuple[float, TableEstimator], ...] = ()

    def __init__(self, table: LookupTable, *, missing: Missing | None = None) -> None:
        if missing not in (None, *get_args(Missing)):
            known = ", ".join(map(repr, get_args(Missing)))
            raise InvalidValueError(f"The 'missing' of TableEstimator must be one of {known}. Got {missing!r}.")
        self.table = table
        self.missing: Missing = missing or ("error" if table.layers else "predict")
        self.metric = table.metric
        self.platform: Platform = table.platform
        self.calibration = table.calibration
        self.residency = table.residency
        self.network_error = table.network_error or 0.0
        self._predicted: dict[str, Estimate] = {}

    @classmethod
    def weighted(
        cls, tables: Sequence[LookupTable], weights: Sequence[float], *, missing: Missing | None = None
    ) -> TableEstimator:
        """Return the weighted sum of several metrics as an estimator that keeps its terms.

        Parameters
        ----------
        tables, weights
            As for `nni_latency.tables.weigh_tables`, which also documents the exceptions.
        missing : {"error", "nearest", "predict"}, optional
            Handling of a candidate without an entry.

        Examples
        --------
        >>> costs = {"a": {"x": 0.001, "y": 0.002}}
        >>> latency = LookupTable.from_latencies({"a": ["x", "y"]}, costs)
        >>> energy = LookupTable.from_latencies({"a": ["x", "y"]}, {"a": {"x": 0.05, "y": 0.01}}, metric="energy")
        >>> both = TableEstimator.weighted([latency, energy], [100, 2])
        >>> [(weight, part.estimate_sample({"a": "x"}).value) for weight, part in both.addends]
        [(100.0, 0.001), (2.0, 0.05)]
        """
        found = cls(weigh_tables(tables, weights), missing=missing)
        parts = [(float(weight), cls(table, missing=missing)) for table, weight in zip(tables, weights, strict=True)]
        found.addends = tuple(parts)
        return found

    @classmethod
    def from_networks(
        cls,
        space: Any,
        architectures: Any,
        latencies: ArrayLike,
        *,
        platform: Platform | None = None,
        random_state: int = 0,
    ) -> TableEstimator:
        """Recover a table from latencies of whole networks.

        Candidates with similar operators are assumed to have similar costs, to a degree found by marginal likelihood.
        Outliers have little weight. The attribute `recovery` describes how well each entry is determined, and which
        further networks would help most.

        Parameters
        ----------
        space : object
            A model space with a measure plan, a plan, or a mapping of labels to choices.
        architectures : array-like of int of shape (n, n_layers), or list of samples
            The networks, at least 10.
        latencies : array-like of shape (n,)
            Measured latencies [s].
        platform : Platform, optional
            Platform of the measurements.
        random_state : int, default=0
            Seed of the networks used to estimate variances.

        Raises
        ------
        InvalidValueError
            If there are too few networks, they are outside the space, or latencies are not positive and finite.

        Examples
        --------
        >>> networks = np.random.default_rng(0).integers(0, 2, (40, 3))
        >>> seconds = 0.01 + 0.001 * networks @ [1, 2, 4]
        >>> found = TableEstimator.from_networks({"a": "xy", "b": "xy", "c": "xy"}, networks, seconds)
        >>> found.predict([[0, 1, 0]]).round(4), found.recovery.suggest(1).shape
        (array([0.012]), (1, 3))
        """
        table, recovery = transfer.recover(
            space, architectures, latencies, platform=platform, random_state=random_state
        )
        estimator = cls(table)
        estimator.recovery = recovery
        return estimator

    def __repr__(self) -> str:
        return f"TableEstimator({self.table.space}, {self.metric} on {self.platform.id})"

    def estimate_op(self, op: OpSpec) -> Estimate:
        """Return the entry of an operator, or the mean over several layers; otherwise handle it by `missing`.

        Raises
        ------
        MissingEntryError
            If there is no entry and `missing` is "error", or the table has no operators to derive it from.
        """
        if not self.table.by_op:
            raise MissingEntryError(
                "The table was made by hand, of costs by choice. It estimates samples of its space and has no "
                f"operators, such as {op.op_key}."
            )
        entry = self.table.by_op.get(op.op_key)
        return self._missing(op, op.op_key, f"the operator {op.op_key}") if entry is None else Estimate.of(entry)

    @cached_property
    def predictor(self) -> OperatorPredictor:
        """Predictor of operators without an entry, fitted on first use."""
        known = [
            (entry.op, entry.value) for entry in self.table.by_op.values() if entry.op and entry.op.kind != UNKNOWN
        ]
        return OperatorPredictor([op for op, _ in known], [value for _, value in known])

    def of_sum(self, entries: float) -> float:
        """Return the cost of a network whose entries add up to `entries`."""
        return self.total([Estimate(entries, entries, entries)]).value

    @property
    def runs_unused(self) -> bool:
        """Whether operators that no output depends on count: where the platform executes them, and all of a layer."""
        return super().runs_unused or bool(self.table.layers)

    def estimate_sample(self, sample: Mapping[str, Any] | Sequence[int]) -> Estimate:
        """Estimate a network of the space by its choices.

        Parameters
        ----------
        sample : mapping or sequence of int
            An NNI sample, ``{label: choice}``, which may also name the choice of a fixed layer; or the indices of the
            searched layers in order.

        Raises
        ------
        MissingEntryError
            If a candidate has no entry, and `missing` is "error".
        InvalidValueError
            If the sample does not belong to the space.
        """
        return self.total(part for _, _, part in self._parts(sample))

    def breakdown(self, sample: Mapping[str, Any] | Sequence[int]) -> list[LayerShare]:
        """Return the cost of every layer of a network in order; the costs add up to the total."""
        return layer_shares(self, self._parts(sample))

    def estimate_choice(self, layer: str, choice: str, op: OpSpec | None) -> Estimate:
        """Estimate one candidate of a plan, before calibration.

        Parameters
        ----------
        layer, choice : str
            Names in the plan.
        op : OpSpec or None
            Operator of the candidate in the plan; not needed for a table with layers.

        Raises
        ------
        MissingEntryError
            If a searched layer has no entry for it, and `missing` is "error".
        """
        if self.table.layers or op is None:
            return self._part(self._layer(layer), choice, op)
        return self.estimate_op(op)

    def predict(self, architectures: ArrayLike) -> NDArray[np.float64]:
        """Estimate many networks at once, or one.

        Parameters
        ----------
        architectures : array-like of int of shape (n_architectures, n_layers) or (n_layers,)
            Indices of the searched layers' candidates.

        Returns
        -------
        ndarray of shape (n_architectures,), or float
            In the SI unit of `metric`; a number for a single network.
        """
        return self.cost.predict(architectures)

    @cached_property
    def cost(self) -> AdditiveCost:
        """The whole table in a form for fast evaluation.

        Raises
        ------
        MissingEntryError
            If candidates have no entry, and `missing` is "error".
        """
        self._check_coverage()
        layers = {layer.name: dict.fromkeys(layer.choices) for layer in self.table.layers}
        fixed = {layer.name: self._default(layer) for layer in self.table.layers if not layer.searched}
        return separable_cost(self, layers, fixed)

    def cost_of_plan(self, plan: MeasurePlan) -> AdditiveCost:
        """Return the cost of a space from its plan, which must match the table except for the head.

        A head of another width or number of classes is taken from the nearest entry and listed: it costs every network
        the same.

        Raises
        ------
        MismatchError
            If the table belongs to another space, input size or batch size.
        MissingEntryError
            If candidates have no entry, and `missing` is "error".
        """
        self.check_plan(plan)
        self._check_coverage()
        return additive_cost(self, plan)

    def check_plan(self, plan: MeasurePlan) -> None:
        """Raise `MismatchError` if the table belongs to another space, input size or batch size than the plan."""
        self.table.check_batch_size(plan.batch_size)
        differences = self.table.space.differences(plan.space, ignore=HEAD_ONLY) if self.table.layers else []
        if differences:
            raise MismatchError(
                f"The table belongs to another space than asked ({'; '.join(differences)}): "
                f"{self.table.space} against {plan.space}."
            )

    def selection(self, sample: Mapping[str, Any] | Sequence[int]) -> dict[str, str]:
        """Return the choice of every layer of a network, including fixed layers.

        Raises
        ------
        InvalidValueError
            If the sample does not belong to the space.
        """
        if not self.table.layers:
            raise InvalidValueError(
                "A table of operators does not distinguish the choices of a network. Estimate the network itself, or "
                "its space with LatencyProfiler."
            )
        if not isinstance(sample, Mapping):
            sample = self._from_indices(sample)
        unknown = [label for label in sample if label not in {layer.name for layer in self.table.layers}]
        if unknown:
            raise InvalidValueError(f"The sample has labels that the table has not: {listed(unknown)}.")
        selection = {}
        for layer in self.table.layers:
            if layer.searched and layer.name not in sample:
                raise InvalidValueError(f"The sample has no choice for {layer.name!r}.")
            choice = str(sample[layer.name]) if layer.name in sample else self._default(layer)
            if choice not in layer.choices:
                raise InvalidValueError(
                    f"The choice of {layer.name!r} must be one of {', '.join(layer.choices)}. Got {choice!r}."
                )
            selection[layer.name] = choice
        return selection

    def _from_indices(self, indices: Sequence[int]) -> dict[str, str]:
        layers = self.table.searched
        if len(indices) != len(layers):
            raise InvalidValueError(
                f"An architecture of this table has {number_of(len(layers), 'layer')}. Got {len(indices)}."
            )
        for layer, index in zip(layers, indices, strict=True):
            if not 0 <= int(index) < len(layer.choices):
                raise InvalidValueError(
                    f"An index of {layer.name!r} must be in [0, {len(layer.choices) - 1}]. Got {index}."
                )
        return {layer.name: layer.choices[int(index)] for layer, index in zip(layers, indices, strict=True)}

    def _parts(self, sample: Mapping[str, Any] | Sequence[int]) -> list[tuple[str, str, Estimate]]:
        selection = self.selection(sample)
        parts = [
            (layer.name, choice, self._part(layer, choice))
            for layer, choice in zip(self.table.layers, selection.values(), strict=True)
        ]
        return paired_parts(self, parts, self._choices)

    @property
    def pairs(self) -> tuple[LayerPair, ...]:
        """Costs of pairs of neighbouring layers of the table."""
        return self.table.pairs

    @cached_property
    def beside(self) -> Mapping[OpSpec, Mapping[str, float]]:
        """Costs beside neighbours of the table's operators."""
        return {entry.op: entry.beside for entry in self.table.operators if entry.op and entry.beside}

    @property
    def base_table(self) -> LookupTable | None:
        """The table, if it covers the layers of a space."""
        return self.table if self.table.layers else None

    @property
    def _choices(self) -> dict[str, tuple[str, ...]]:
        return {layer.name: layer.choices for layer in self.table.layers}

    def _layer(self, name: str) -> TableLayer:
        """Return one layer; an unknown fixed layer has no entries."""
        known = (layer for layer in self.table.layers if layer.name == name)
        return next(known, TableLayer(name, (), {}, searched=False))

    def _part(self, layer: TableLayer, choice: str, op: OpSpec | None = None) -> Estimate:
        """Cost one candidate, before calibration.

        Fixed layers cost every network the same and never prevent an estimate: for another size, the nearest entry of
        the layer is used, and a layer without entries, in a hand-made table, counts as zero. Both are listed.
        """
        entry, name = layer.entries.get(choice), f"{layer.name}:{choice}"
        if entry is not None and (layer.searched or op is None or entry.op in (None, op)):
            return Estimate.of(entry)
        if not layer.searched:
            if not layer.entries:
                # For throughput, zero cost corresponds to infinity.
                nothing = combination_of(self.metric).nothing
                return Estimate(nothing, nothing, nothing, (layer.name,))
            entries = list(layer.entries.values())
            return Estimate.of(nearest_entry(op, entries) or entries[0], (name,))
        what = f"{layer.name!r}: {choice}"
        return self._missing(op, name, what, self._nearby(layer, choice) if op is None else None)

    def _nearby(self, layer: TableLayer, choice: str) -> Entry | None:
        """Return the entry of the same choice in the nearest layer that has one, for an unknown operator."""
        place = self.table.layers.index(layer)
        others = [item for item in self.table.layers if item.searched and choice in item.entries]
        nearest = min(others, key=lambda item: abs(self.table.layers.index(item) - place), default=None)
        if nearest is not None:
            return nearest.entries[choice]
        ordered = sorted(layer.entries.values(), key=lambda entry: entry.value)
        return ordered[len(ordered) // 2] if ordered else None

    def _missing(self, op: OpSpec | None, name: str, what: str, nearby: Entry | None = None) -> Estimate:
        """Handle a missing entry by `missing`; `nearby` is the entry to use for an unknown operator."""
        if self.missing == "predict" and op is not None:
            if op.op_key not in self._predicted:
                self._predicted[op.op_key] = self._predict(op)
            return self._predicted[op.op_key]
        near = None if self.missing == "error" else nearest_entry(op, self.table.entries) or nearby
        if near is None:
            raise MissingEntryError(
                f"The table has no entry for {what}. Measure it, take the nearest entry with missing='nearest', or "
                "have it predicted with missing='predict'."
            )
        return Estimate.of(near, (name,))

    def _predict(self, op: OpSpec) -> Estimate:
        found = self.predictor.estimate_op(op) or self.predictor.guess(op)
        if found is None:
            kinds = sorted({entry.op.kind for entry in self.table.by_op.values() if entry.op})
            raise MissingEntryError(
                f"The table has no operator of a known kind from which {op.op_key} could be predicted. "
                f"It has: {', '.join(kinds)}."
            )
        return found

    def _default(self, layer: TableLayer) -> str:
        return layer.default or layer.choices[0]

    def _check_coverage(self) -> None:
        names = [f"{layer.name}:{choice}" for layer in self.table.searched for choice in layer.missing]
        if self.missing == "error" and names:
            raise MissingEntryError(
                f"The table lacks {number_of(len(names), 'candidate')}: {listed(names)}. Measure them, or take the "
                "nearest entries with missing='nearest'."
            )

    def _estimate_ops(self, ops: list[OpSpec]) -> list[Estimate]:
        return self.in_places(ops, self.estimate_op)

    def in_places(self, ops: Sequence[OpSpec], elsewhere: Callable[[OpSpec], Estimate]) -> list[Estimate]:
        """Estimate the operators of a captured network.

        If they may be the layers of the space, being as many, the entries of these count, and the costs of pairs.

        Parameters
        ----------
        ops : sequence of OpSpec
            The operators in order.
        elsewhere : callable
            Estimates an operator that is not a candidate of the layer at its position.
        """
        if len(ops) != len(self.table.layers):
            return list(map(elsewhere, ops))
        parts = []
        for layer, op in zip(self.table.layers, ops, strict=True):
            choice, entry = next((item for item in layer.entries.items() if item[1].op == op), ("", None))
            parts.append((layer.name, choice, elsewhere(op) if entry is None else Estimate.of(entry)))
        return [part for _, _, part in paired_parts(self, parts, self._choices)]
