# SPDX-License-Identifier: Apache-2.0
"""`OperatorProfile`: costs of the operators of several models, in context and alone, and the significant kinds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from nni_latency.documents import line
from nni_latency.energy import MeasuredOperator
from nni_latency.errors import InvalidValueError
from nni_latency.notebook import Tabular
from nni_latency.profiling._document import PROFILE, ModelProfile, ProfileDocument, ProfiledOperator
from nni_latency.tables import OPERATORS, SpaceReference, TableHeader
from nni_latency.units import number_of

#: Metrics of a profile.
METRICS = ("latency", "energy")

#: Tolerated relative difference between a model and the sum of its operators in context.
_USUAL = 0.1

#: Fields of a profile in its file besides the header.
_FIELDS = ("batch_size", "target", "significant", "failures", "meter", "assumption", "models", "operators")

#: Tolerance of sums of shares.
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True, repr=False)
class OperatorProfile(TableHeader, Tabular):
    """Operators of several models on one platform. Immutable.

    Parameters
    ----------
    batch_size : int
        Inputs per run.
    target : float
        Target share of every model's time and energy to attribute.
    models : tuple of ModelProfile
        The models.
    operators : tuple of ProfiledOperator
        Distinct operators of the models.
    significant : tuple of str
        Kinds of operators selected to reach the target, in order.
    failures : mapping of str to str
        Failed models and operators, with the reason.
    meter, assumption : str or None
        Meter of the energy, and its assumption if it does not measure.
    **header
        Fields of `nni_latency.tables.TableHeader`.

    Raises
    ------
    InvalidValueError
        If an operator of a model is missing, or there is no model.
    """

    space: SpaceReference = field(default_factory=lambda: SpaceReference(OPERATORS))
    batch_size: int
    target: float
    models: tuple[ModelProfile, ...]
    operators: tuple[ProfiledOperator, ...]
    significant: tuple[str, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    meter: str | None = None
    assumption: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.models:
            raise InvalidValueError("A profile needs at least one model. Got none.")
        unknown = {key for model in self.models for key in model.parts} - set(self.by_key)
        if unknown:
            raise InvalidValueError(f"A profile must hold all operators of its models. It lacks {min(unknown)}.")

    def __repr__(self) -> str:
        models, operators = number_of(len(self.models), "model"), number_of(len(self.operators), "operator")
        return f"OperatorProfile({models}, {operators} on {self.platform.id})"

    @cached_property
    def by_key(self) -> Mapping[str, ProfiledOperator]:
        """The operators by their keys."""
        return {item.op.op_key: item for item in self.operators}

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics available for every model: latency, and energy with a meter."""
        return METRICS if all(model.watts is not None for model in self.models) else METRICS[:1]

    def joules(self, model: ModelProfile) -> dict[str, float]:
        """Return the energy of every operator in a model by key [J]; the sum is the energy of the model.

        No meter resolves an operator inside a network. Energy is divided in proportion to the time in the network times
        the power alone; for an operator not measured alone, the power of the model is used.
        """
        whole = model.joules
        if whole is None:
            return {}
        found = {key: part.seconds * self._watts(key, model) for key, part in model.parts.items()}
        total = math.fsum(found.values())
        return {key: value / total * whole for key, value in found.items()}

    def _watts(self, key: str, model: ModelProfile) -> float:
        watts = self.by_key[key].watts
        return model.watts or 0.0 if watts is None else watts

    def costs(self, model: ModelProfile, metric: str) -> dict[str, float]:
        """Return the cost of every operator in a model by key, in the SI unit of a metric."""
        if metric == "energy":
            return self.joules(model)
        return {key: part.seconds for key, part in model.parts.items()}

    def shares(self, metric: str) -> dict[str, dict[str, float]]:
        """Return the share of every kind of operator, by model.

        Energy counts for a kind if the power of its operators was measured, or if the meter assumes it.
        """
        return {model.name: self._shares(model, metric) for model in self.models}

    def _shares(self, model: ModelProfile, metric: str) -> dict[str, float]:
        costs = self.costs(model, metric)
        total = math.fsum(costs.values())
        found: dict[str, float] = defaultdict(float)
        for key, value in costs.items():
            item = self.by_key[key]
            known = metric == "latency" or self.assumption is not None or item.watts is not None
            found[item.kind] += value / total if known else 0.0
        return dict(found)

    def attributed(self, metric: str) -> dict[str, float]:
        """Return the share of the significant kinds by model."""
        return {
            name: min(1.0, math.fsum(row.get(kind, 0.0) for kind in self.significant))
            for name, row in self.shares(metric).items()
        }

    def measured_alone(self) -> tuple[int, int]:
        """Return the number of operators of the significant kinds measured alone, and their total."""
        wanted = [item for item in self.operators if item.kind in self.significant]
        return sum(bool(item.alone) for item in wanted), len(wanted)

    def ratio(self, model: ModelProfile, way: str, metric: str) -> float | None:
        """Return the ratio of the sum of a model's operators to the whole model.

        Parameters
        ----------
        model : ModelProfile
            One of the models.
        way : {"reused", "memory", "context"}
            Operators alone, on one input or on inputs from memory; those not measured alone count with their cost in
            the model. In context: their time inside the model including marks, and as energy this time multiplied by
            their power alone.
        metric : {"latency", "energy"}
            Of what.

        Returns
        -------
        float or None
            None if not measured.
        """
        if metric == "energy" and model.joules is None:
            return None
        if way == "context":
            return self._in_context(model, metric)
        known = [key for key in model.parts if way in self.by_key[key].alone]
        if not known:
            return None
        inside = self.costs(model, metric)
        sums = [self._alone(key, model, way, metric) if key in set(known) else inside[key] for key in model.parts]
        return math.fsum(sums) / math.fsum(inside.values())

    def doubtful(self) -> dict[str, float]:
        """Return the models that differ from the sum of their operators in context by more than 10 %.

        Returns
        -------
        dict of str to float
            Ratio of the sum to the whole by model: above 1 if marks are expensive or the machine was slower, below 1 if
            the whole model was slower.
        """
        sums = {model.name: model.marked / model.value for model in self.models}
        return {name: ratio for name, ratio in sums.items() if abs(ratio - 1) > _USUAL}

    def _in_context(self, model: ModelProfile, metric: str) -> float:
        marked = model.marked / model.value
        if metric == "latency":
            return marked
        summed = math.fsum(part.seconds * self._watts(key, model) for key, part in model.parts.items())
        return marked * summed / (model.joules or math.nan)

    def _alone(self, key: str, model: ModelProfile, way: str, metric: str) -> float:
        cost = self.by_key[key].alone[way]
        watts = 1.0 if metric == "latency" else cost.watts or self._watts(key, model)
        return model.parts[key].count * cost.value * watts

    def measured(self) -> list[MeasuredOperator]:
        """Return the operators with known time and power alone, from memory if measured.

        Training data of `nni_latency.energy.PortableModel`.
        """
        found = []
        for item in self.operators:
            costs = (item.alone[way] for way in ("memory", "reused") if way in item.alone)
            cost = next((cost for cost in costs if cost.watts is not None), None)
            if cost is not None and cost.watts is not None:
                found.append(MeasuredOperator(item.op, cost.value, cost.value * cost.watts))
        return found

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per model and kind of operator."""
        return [self._row(model, kind, keys) for model in self.models for kind, keys in self._kinds(model).items()]

    def _kinds(self, model: ModelProfile) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for key in model.parts:
            found.setdefault(self.by_key[key].kind, []).append(key)
        return dict(sorted(found.items(), key=lambda item: -sum(model.parts[key].seconds for key in item[1])))

    def _row(self, model: ModelProfile, kind: str, keys: list[str]) -> dict[str, Any]:
        seconds, joules = math.fsum(model.parts[key].seconds for key in keys), self.joules(model)
        energy = math.fsum(joules[key] for key in keys) if joules else None
        return {
            "platform": self.platform.id,
            "batch_size": self.batch_size,
            "model": model.name,
            "kind": kind,
            "significant": kind in self.significant,
            "operators": len(keys),
            "runs": sum(model.parts[key].count for key in keys),
            "latency_s": seconds,
            "latency_share": seconds / model.value,
            "energy": energy,
            "energy_share": energy and energy / (model.joules or math.nan),
            "measured_alone": sum(bool(self.by_key[key].alone) for key in keys),
        }

    def save(self, path: str | Path) -> Path:
        """Write the profile as JSON atomically.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        content = {name: getattr(self, name) for name in _FIELDS[:-2]}
        content |= {**self.header_content(), "failures": dict(self.failures)}
        return PROFILE.save(path, content, {name: map(line, getattr(self, name)) for name in _FIELDS[-2:]})

    @classmethod
    def load(cls, path: str | Path) -> OperatorProfile:
        """Read a profile.

        Raises
        ------
        FileFormatError
            If the file is missing, truncated, modified, or of another type or version.
        """
        return PROFILE.load(path, cls._of_document)

    @classmethod
    def _of_document(cls, document: ProfileDocument) -> OperatorProfile:
        return cls(**document.header(), **{name: getattr(document, name) for name in _FIELDS})


def select_kinds(shares: Sequence[Mapping[str, float]], target: float, chosen: Collection[str] = ()) -> tuple[str, ...]:
    """Select kinds of operators until they reach the target share of every model and metric.

    Greedily adds the kind with the largest share of the models below the target.

    Parameters
    ----------
    shares : sequence of mapping of str to float
        Shares of the kinds for every model and metric; the sum of each is at most 1.
    target : float
        Target share, in (0, 1].
    chosen : collection of str, default=()
        Kinds selected before.

    Returns
    -------
    tuple of str
        All selected kinds in order. If the target cannot be reached, all kinds with a share in a model below it.

    Examples
    --------
    >>> select_kinds([{"conv2d": 0.7, "linear": 0.2, "relu": 0.1}, {"conv2d": 0.1, "linear": 0.9}], 0.8)
    ('linear', 'conv2d')
    """
    found = list(chosen)
    while True:
        below = [row for row in shares if _total(row, found) < target - _ROUNDING]
        gains = {kind: sum(row.get(kind, 0.0) for row in below) for row in below for kind in row if kind not in found}
        best = max(sorted(gains), key=gains.__getitem__, default=None)
        if best is None or gains[best] <= 0:
            return tuple(found)
        found.append(best)


def shortfalls(shares: Mapping[str, Mapping[str, float]], target: float, chosen: Collection[str]) -> dict[str, float]:
    """Return the attributed share of every model below the target, by name.

    Examples
    --------
    >>> shortfalls({"a": {"conv2d": 0.95}, "b": {"conv2d": 0.5}}, 0.9, ["conv2d"])
    {'b': 0.5}
    """
    totals = {name: _total(row, chosen) for name, row in shares.items()}
    return {name: total for name, total in totals.items() if total < target - _ROUNDING}


def _total(row: Mapping[str, float], kinds: Collection[str]) -> float:
    return sum(row.get(kind, 0.0) for kind in kinds)
