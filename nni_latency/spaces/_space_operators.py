# SPDX-License-Identifier: Apache-2.0
"""`SpaceOperators`: the operators of all networks of a space, each with the choices under which it runs."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from nni_latency.combinations import Combination
from nni_latency.errors import InvalidValueError
from nni_latency.estimators import CostTable, Derived, GroupedCost, LayerEstimator, sample_error
from nni_latency.operators import By, Inputs, OpSpec, freeze_inputs
from nni_latency.spaces._cells import CellRunner, handlers_of
from nni_latency.spaces._nasbench101 import run_nasbench101_cell
from nni_latency.spaces._nds import is_elastic, run_nds
from nni_latency.spaces._neighbours import Beside, Neighbours, pairs_of
from nni_latency.spaces._nni import NDS, NasBench101Cell
from nni_latency.spaces._samples import list_choices
from nni_latency.spaces._shortening import shortened
from nni_latency.spaces._space_key import cached, space_key
from nni_latency.spaces._symbolic import NotSymbolicError
from nni_latency.spaces._varying import Choices, ImpossibleError, Invalid, TooManyChoicesError, Varying, as_key
from nni_latency.spaces._walker import Handler, Walker
from nni_latency.tables import cost_beside
from nni_latency.units import combination_of

_NONE: Mapping[OpSpec, Iterable[str]] = MappingProxyType({})


@dataclass(frozen=True)
class SpaceOperators:
    """The operators of all networks of a space. Immutable.

    Parameters
    ----------
    values : mapping of str to tuple
        Choices of every label, derived ones included; lists stand as tuples.
    derived : tuple of Derived
        Labels that follow from others.
    parts : tuple of Varying
        Operators by choices, a tuple of `OpSpec` and `Beside` or a `Invalid` each.
    beside : frozenset of Beside
        Operators beside neighbours that were looked for.
    """

    values: Mapping[str, tuple[Any, ...]]
    derived: tuple[Derived, ...]
    parts: tuple[Varying, ...]
    beside: frozenset[Beside] = frozenset()

    @functools.cached_property
    def distinct(self) -> tuple[OpSpec, ...]:
        """All operators that some network of the space has, each once."""
        found: dict[OpSpec, None] = {}
        for part in self.parts:
            for ops in part.values:
                if not isinstance(ops, Invalid):
                    found.update(dict.fromkeys(op for op in ops if isinstance(op, OpSpec)))
        return tuple(found)

    def operators_of(self, sample: Mapping[str, Any]) -> Counter[OpSpec]:
        """Count the operators of one network; raises as `items_of`."""
        return Counter({item: count for item, count in self.items_of(sample).items() if isinstance(item, OpSpec)})

    def items_of(self, sample: Mapping[str, Any]) -> Counter[OpSpec | Beside]:
        """Count the operators of one network, and those beside neighbours that were looked for.

        Raises
        ------
        MissingEntryError
            If the sample lacks a label, or has a choice that is not in the space.
        InvalidValueError
            If the sample is not a network of the space.
        """
        indices = self._indices(sample)
        found: Counter[OpSpec | Beside] = Counter()
        for part in self.parts:
            ops = part.at(indices)
            if isinstance(ops, Invalid):
                raise sample_error(sample, {}, ops.reason)
            found.update(ops)
        return found

    def priced(self, estimator: LayerEstimator) -> GroupedCost:
        """Ask an estimator for every operator, and add up the costs by choices.

        Raises
        ------
        MissingEntryError
            If the estimator does not know one of them.
        InvalidValueError
            If it has costs beside neighbours that were not looked for.
        """
        beside = estimator.beside
        if not self.beside.issuperset(pairs_of(beside)):
            raise InvalidValueError(
                f"{estimator!r} has costs of operators beside neighbours that were not looked for in the space."
            )
        prices = {op: estimator.estimate_op(op) for op in self.distinct}
        costs_of: dict[OpSpec | Beside, float] = {
            op: price.value + cost_beside(beside.get(op, {}), ()) for op, price in prices.items()
        }
        costs_of |= {item: beside.get(item.op, {}).get(item.neighbour, 0.0) for item in self.beside}
        combination = combination_of(estimator.metric)
        constants, tables = [estimator.constant], []
        counted = {item: combination.counted(cost, estimator.calibration) for item, cost in costs_of.items()}
        for part in self.parts:
            costs = np.array([_price(ops, counted, combination) for ops in part.values])
            if part.labels:
                tables.append(CostTable(part.labels, costs[part.ids]))
            else:
                constants.append(float(costs[0]))
        missing = dict.fromkeys(name for price in prices.values() for name in price.missing)
        return GroupedCost(
            combination.total(constants),
            tuple(tables),
            self.values,
            derived=self.derived,
            metric=estimator.metric,
            missing=tuple(missing),
            residency=estimator.residency,
        )

    def _indices(self, sample: Mapping[str, Any]) -> dict[str, int]:
        plain = {label: as_key(value) for label, value in sample.items()}
        try:
            for item in self.derived:
                plain.update(zip(item.outputs, item.function(plain), strict=True))
            return {label: values.index(plain[label]) for label, values in self.values.items()}
        except (KeyError, ValueError, TypeError) as error:
            raise sample_error(plain, self.values, error, self.derived) from error


def _price(ops: Any, counted: Mapping[OpSpec | Beside, float], combination: Combination) -> float:
    """Return what some operators count for; not a number where no network has them."""
    return math.nan if isinstance(ops, Invalid) else combination.total(counted[op] for op in ops)


def operators_of_space(
    space: Any,
    example_inputs: Any,
    by: By = "module",
    *,
    runs_unused: bool = True,
    beside: Mapping[OpSpec, Iterable[str]] = _NONE,
    fresh: bool = False,
) -> SpaceOperators:
    """Find the operators of all networks of a space in one symbolic forward pass.

    Nothing is computed: shapes are worked out on meta tensors, once for every distinct combination of choices that
    matters at a place. Layer choices, input choices, repeats, cells, value choices and expressions of them are known;
    modules that freeze themselves in their own way are frozen for every combination of their own choices.

    Parameters
    ----------
    space : ModelSpace
        The space; it is not changed.
    example_inputs : Tensor, tuple or dict
        What the forward pass takes.
    by : {"module", "graph"}, default="module"
        What counts as one operator, as for `nni_latency.operators.trace`.
    runs_unused : bool, default=True
        Whether operators that no output depends on count, as in eager torch. If not, as in compiled runtimes, they are
        left out.
    beside : mapping of OpSpec to collection of str, optional
        Operators and neighbours that are looked for, such as `LayerEstimator.beside`.
    fresh : bool, default=False
        Walk the space even if the result of the same walk is in the user's cache.

    Raises
    ------
    TooManyChoicesError
        If something in the space depends on too many choices together, or on one that cannot be listed.
    InvalidValueError
        If the inputs do not fit.
    """
    inputs = freeze_inputs(example_inputs)
    pairs = pairs_of(beside)
    named = sorted(f"{item.op.op_key} {item.neighbour}" for item in pairs)
    key = space_key(space, inputs, by, f"{runs_unused=}", *named)
    return cached("walk", key, lambda: _walk(space, inputs, by, runs_unused, pairs), fresh=fresh)


def _walk(space: Any, inputs: Inputs, by: By, runs_unused: bool, pairs: frozenset[Beside]) -> SpaceOperators:
    values, raw = list_choices(space)
    choices = Choices(values)
    cells = CellRunner(space.op_candidates if isinstance(space, NDS) else None)
    handlers: list[tuple[type, Handler]] = [
        (NDS, run_nds),
        (NasBench101Cell, functools.partial(run_nasbench101_cell, cells.derived)),
        *handlers_of(cells),
    ]
    neighbours = Neighbours(pairs) if pairs else None
    walker = Walker(
        choices, raw, by, handlers, elastic=is_elastic(space), runs_unused=runs_unused, neighbours=neighbours
    )
    try:
        parts = walker.walk(space, inputs.args, inputs.kwargs)
    except (NotSymbolicError, ImpossibleError) as error:
        raise TooManyChoicesError(f"The networks of {type(space).__name__} cannot be followed: {error}") from error
    if pairs:
        parts = shortened(choices, parts, cells.derived)
    return SpaceOperators(choices.values, tuple(cells.derived), tuple(parts), pairs)
