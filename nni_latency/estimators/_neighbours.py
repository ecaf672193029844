# SPDX-License-Identifier: Apache-2.0
"""What neighbouring layers of a table cost together, in estimates of networks and in the cost of a space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from nni_latency.estimators._additive import AdditiveCost
from nni_latency.estimators._base import Estimate
from nni_latency.estimators._chain import share_pairs
from nni_latency.estimators._choice_cost import CostTable
from nni_latency.tables import LookupTable
from nni_latency.units import combination_of


def neighbouring_parts(
    table: LookupTable, parts: Sequence[tuple[str, str, Estimate]]
) -> list[tuple[str, str, Estimate]]:
    """Return the parts of a network of a table, each with its layer and choice, with the costs of pairs.

    A pair is shared by its two layers in proportion to their costs, and no part falls below zero. Intervals widen with
    the parts; the uncertainty of pairs is part of the error of whole networks.
    """
    if not table.pairs:
        return list(parts)
    sizes = {layer.name: layer.choices for layer in table.layers}
    chosen = {layer: _index(sizes[layer], choice) for layer, choice, _ in parts if layer in sizes}
    combination = combination_of(table.metric)
    counted = {layer: combination.counted(part) for layer, _, part in parts}
    shared = share_pairs(
        {layer: part.value for layer, part in counted.items()},
        chosen,
        [(pair.layers, pair.by_choice) for pair in table.pairs],
    )
    return [
        (layer, choice, own if shared[layer] == part.value else combination.counted(_changed(part, shared[layer])))
        for (layer, choice, own), part in zip(parts, counted.values(), strict=True)
    ]


def _changed(part: Estimate, value: float) -> Estimate:
    if not part.value:
        return part.shifted(value)
    return part.scaled(value / part.value)


def _index(choices: Sequence[str], choice: str) -> int:
    """Return the index of a choice; of a fixed layer of another size than in the table, that of its first choice."""
    return choices.index(choice) if choice in choices else 0


def paired_cost(cost: AdditiveCost, table: LookupTable, defaults: Mapping[str, str]) -> AdditiveCost:
    """Add the costs of pairs to the cost of a space; those of a fixed and a searched layer belong to its choices."""
    constant = cost.constant
    columns = {label: np.array(list(choices.values())) for label, choices in cost.costs.items()}
    sizes, pairs = {layer.name: layer.choices for layer in table.layers}, []
    for pair in table.pairs:
        matrix = table.calibration * pair.by_choice
        fixed = [
            None if layer in columns else _index(sizes[layer], defaults.get(layer, sizes[layer][0]))
            for layer in pair.layers
        ]
        first, second = fixed
        if first is None and second is None:
            pairs.append(CostTable(pair.layers, matrix))
        elif first is None:
            columns[pair.layers[0]] = columns[pair.layers[0]] + matrix[:, second]
        elif second is None:
            columns[pair.layers[1]] = columns[pair.layers[1]] + matrix[first]
        else:
            constant += float(matrix[first, second])
    costs = {label: dict(zip(cost.costs[label], column.tolist(), strict=True)) for label, column in columns.items()}
    return replace(cost, constant=constant, costs=costs, pairs=tuple(pairs)) if table.pairs else cost
