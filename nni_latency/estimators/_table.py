"""`TableEstimator`: a lookup table as an estimator, for any metric."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nni_latency.errors import InvalidValueError, MismatchError, MissingEntryError, UnknownNameError
from nni_latency.estimators._additive import AdditiveCost
from nni_latency.estimators._base import Estimate, LayerEstimator
from nni_latency.operators import OpSpec, features_of
from nni_latency.platforms import Platform
from nni_latency.tables import Entry, LookupTable, MeasurePlan, TableLayer

Missing = Literal["error", "nearest"]

#: An argument of a space that changes the head alone, so that a table for other classes still ranks networks.
_HEAD_ONLY = ("num_classes", "head_channels")


@dataclass(frozen=True)
class LayerShare:
    """What one layer of a network costs."""

    name: str
    choice: str
    estimate: Estimate
    share: float


class TableEstimator(LayerEstimator):
    """A lookup table as an estimator. Immutable.

    Parameters
    ----------
    table : LookupTable
        The costs.
    missing : {"error", "nearest"}, default="error"
        What to do about a candidate without an entry: raise, or take the nearest entry of its layer, or of the whole
        table for a single operator. "Nearest" compares multiply-adds, ACTS, INP and parameters by their ratios, and
        every estimate lists what it took that way.

    Raises
    ------
    InvalidValueError
        If `missing` is neither.

    Examples
    --------
    >>> table = LookupTable.from_latencies({"a": ["x", "y"]}, {"a": {"x": 0.001, "y": 0.002}})
    >>> TableEstimator(table).estimate_sample({"a": "y"}).value
    0.002
    """

    def __init__(self, table: LookupTable, *, missing: Missing = "error") -> None:
        if missing not in ("error", "nearest"):
            raise InvalidValueError(f"The 'missing' of TableEstimator must be 'error' or 'nearest'. Got {missing!r}.")
        self.table = table
        self.missing = missing
        self.metric = table.metric
        self.platform: Platform = table.platform
        self.calibration = table.calibration

    def __repr__(self) -> str:
        return f"TableEstimator({self.table.space}, {self.metric} on {self.platform.id})"

    def estimate_op(self, op: OpSpec) -> Estimate:
        """Return the mean cost of the entries with this operator; it may stand in several layers."""
        entries = self._by_op.get(op.op_key)
        if entries:
            low, value, high = (
                math.fsum(column) / len(entries)
                for column in zip(*((entry.low, entry.value, entry.high) for entry in entries), strict=True)
            )
            return Estimate(value, low, high)
        known = [entry for found in self._by_op.values() for entry in found]
        return self._nearest(op, known, op.op_key, f"The table has no entry for the operator {op.op_key}.")

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
        return Estimate.sum((part for _, _, part in self._parts(sample)), self.calibration)

    def breakdown(self, sample: Mapping[str, Any] | Sequence[int]) -> list[LayerShare]:
        """List what every layer of a network costs, in order; calibrated, so that they add up to the whole."""
        parts = self._parts(sample)
        total = math.fsum(part.value for _, _, part in parts)
        return [
            LayerShare(name, choice, Estimate.sum([part], self.calibration), part.value / total)
            for name, choice, part in parts
        ]

    def estimate_choice(self, layer: str, choice: str, op: OpSpec) -> Estimate:
        """Estimate one candidate of a plan, before calibration.

        Parameters
        ----------
        layer, choice : str
            Names in the plan.
        op : OpSpec
            What the plan says the candidate computes; a fixed layer of other sizes takes the nearest entry.

        Raises
        ------
        MissingEntryError
            If a searched layer has no entry for it, and `missing` is "error".
        """
        found = next((item for item in self.table.layers if item.name == layer), None)
        if found is not None and found.searched:
            return self._part(found, choice)
        return self._fixed_part(layer, choice, op)

    def predict(self, architectures: ArrayLike) -> NDArray[np.float64]:
        """Estimate many networks at once.

        Parameters
        ----------
        architectures : array-like of int of shape (n_architectures, n_layers)
            Indices of the searched layers' candidates.

        Returns
        -------
        ndarray of shape (n_architectures,)
            In the SI unit of `metric`.
        """
        return self.cost.predict(architectures)

    @cached_property
    def cost(self) -> AdditiveCost:
        """The whole table in the form that is fast to evaluate.

        Raises
        ------
        MissingEntryError
            If candidates have no entry, and `missing` is "error".
        """
        self._check_coverage()
        fixed = [self._part(layer, self._default(layer)) for layer in self.table.layers if not layer.searched]
        searched = {
            layer.name: {choice: self._part(layer, choice) for choice in layer.choices} for layer in self.table.searched
        }
        taken = [name for part in fixed for name in part.missing]
        taken += [name for parts in searched.values() for part in parts.values() for name in part.missing]
        return AdditiveCost(
            self.calibration * math.fsum(part.value for part in fixed),
            {
                name: {choice: self.calibration * part.value for choice, part in parts.items()}
                for name, parts in searched.items()
            },
            self.metric,
            tuple(taken),
        )

    def cost_of_plan(self, plan: MeasurePlan) -> AdditiveCost:
        """Cost a space by its plan, which must be that of the table apart from the head.

        A head of other width or classes is taken from the nearest entry: it costs every network the same.

        Raises
        ------
        MismatchError
            If the table belongs to another space, input size or batch size.
        MissingEntryError
            If candidates have no entry, and `missing` is "error".
        """
        self.check_plan(plan)
        cost = self.cost
        missing = list(cost.missing)
        constant = 0.0
        for layer in plan.layers:
            if not layer.searched and layer.default is not None:
                part = self._fixed_part(layer.name, layer.default, layer.candidates[layer.default].op)
                constant += self.calibration * part.value
                missing += [name for name in part.missing if name not in missing]
        return AdditiveCost(constant, cost.costs, self.metric, tuple(missing))

    def check_plan(self, plan: MeasurePlan) -> None:
        """Raise `MismatchError` if the table belongs to another space, input size or batch size than the plan."""
        if self.table.batch_size != plan.batch_size:
            raise MismatchError(
                f"The table was measured with batch size {self.table.batch_size}, "
                f"asked is batch size {plan.batch_size}."
            )
        differences = self.table.space.differences(plan.space, ignore=_HEAD_ONLY)
        if differences:
            raise MismatchError(
                f"The table belongs to another space than asked ({'; '.join(differences)}): "
                f"{self.table.space} against {plan.space}."
            )

    def selection(self, sample: Mapping[str, Any] | Sequence[int]) -> dict[str, str]:
        """Name the choice of every layer of a network, the fixed ones included.

        Raises
        ------
        InvalidValueError
            If the sample does not belong to the space.
        """
        if not isinstance(sample, Mapping):
            sample = self._from_indices(sample)
        unknown = [label for label in sample if label not in {layer.name for layer in self.table.layers}]
        if unknown:
            raise InvalidValueError(f"The sample has labels that the table has not: {', '.join(map(str, unknown))}.")
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
            raise InvalidValueError(f"An architecture of this table has {len(layers)} layers. Got {len(indices)}.")
        for layer, index in zip(layers, indices, strict=True):
            if not 0 <= int(index) < len(layer.choices):
                raise InvalidValueError(
                    f"An index of {layer.name!r} must be in [0, {len(layer.choices) - 1}]. Got {index}."
                )
        return {layer.name: layer.choices[int(index)] for layer, index in zip(layers, indices, strict=True)}

    def _parts(self, sample: Mapping[str, Any] | Sequence[int]) -> list[tuple[str, str, Estimate]]:
        selection = self.selection(sample)
        return [
            (layer.name, selection[layer.name], self._part(layer, selection[layer.name])) for layer in self.table.layers
        ]

    def _part(self, layer: TableLayer, choice: str) -> Estimate:
        entry = layer.entries.get(choice)
        if entry is not None:
            return Estimate(*_triple(entry))
        return self._nearest(
            None,
            list(layer.entries.values()),
            f"{layer.name}:{choice}",
            f"The table has no entry for {layer.name!r}: {choice}.",
        )

    def _fixed_part(self, name: str, choice: str, op: OpSpec) -> Estimate:
        """Cost a fixed layer of a plan; unknown to a table made by hand, it costs nothing and is listed."""
        layer = next((layer for layer in self.table.layers if layer.name == name), None)
        if layer is None or not layer.entries:
            return Estimate(0.0, 0.0, 0.0, (name,))
        entry = layer.entries.get(choice)
        if entry is not None and (entry.op is None or entry.op == op):
            return Estimate(*_triple(entry))
        near = _nearest_entry(op, list(layer.entries.values())) or next(iter(layer.entries.values()))
        return Estimate(*_triple(near), (f"{name}:{choice}",))

    def _nearest(self, op: OpSpec | None, entries: list[Entry], name: str, complaint: str) -> Estimate:
        entry = _nearest_entry(op, entries) if self.missing == "nearest" else None
        if entry is None:
            raise MissingEntryError(f"{complaint} Measure it, or take the nearest entry with missing='nearest'.")
        return Estimate(*_triple(entry), (name,))

    def _default(self, layer: TableLayer) -> str:
        return layer.default or layer.choices[0]

    def _check_coverage(self) -> None:
        if self.missing == "error" and self.table.missing:
            names = [f"{layer}:{choice}" for layer, choice in self.table.missing]
            more = f" and {len(names) - 12} more" if len(names) > 12 else ""
            raise MissingEntryError(
                f"The table lacks {len(names)} candidates: {', '.join(names[:12])}{more}. "
                "Measure them, or take the nearest entry with missing='nearest'."
            )

    def _estimate_ops(self, ops: list[OpSpec]) -> list[Estimate]:
        """Cost the operators of a captured network: each by its own layer where they are the space's layers."""
        layers = self.table.layers
        if len(ops) != len(layers):
            return [self.estimate_op(op) for op in ops]
        return [
            next((Estimate(*_triple(entry)) for entry in layer.entries.values() if entry.op == op), None)
            or self.estimate_op(op)
            for layer, op in zip(layers, ops, strict=True)
        ]

    @cached_property
    def _by_op(self) -> dict[str, list[Entry]]:
        found: dict[str, list[Entry]] = {}
        for layer in self.table.layers:
            for entry in layer.entries.values():
                if entry.op is not None:
                    found.setdefault(entry.op.op_key, []).append(entry)
        return found


def _triple(entry: Entry) -> tuple[float, float, float]:
    return entry.value, entry.low, entry.high


def _nearest_entry(op: OpSpec | None, entries: list[Entry]) -> Entry | None:
    """Return the entry whose operator is most alike; without an operator to compare, the one in the middle."""
    if op is None:
        ordered = sorted(entries, key=lambda entry: entry.value)
        return ordered[len(ordered) // 2] if ordered else None
    try:
        wanted = features_of(op)
    except UnknownNameError:
        return None
    alike = [entry for entry in entries if entry.op is not None]
    names = ("macs", "acts", "inp", "params")

    def distance(entry: Entry) -> tuple[bool, float]:
        have = entry.features
        logs = (abs(math.log((getattr(wanted, n) + 1) / (getattr(have, n) + 1))) for n in names)
        return entry.op is None or entry.op.kind != op.kind, sum(logs)

    return min(alike, key=distance, default=None)
