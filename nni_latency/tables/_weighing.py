"""Tables of a weighted sum of metrics, such as latency and energy, for a search that trades them off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from nni_latency.errors import InvalidValueError, MismatchError
from nni_latency.platforms import check_same_platform
from nni_latency.tables._arithmetic import fold_calibration
from nni_latency.tables._entry import Entry
from nni_latency.tables._lookup_table import LookupTable
from nni_latency.tables._table_layer import TableLayer
from nni_latency.units import combination_of, number_of

#: The metric of a weighted sum.
WEIGHTED = "weighted"


def weigh_tables(tables: Sequence[LookupTable], weights: Sequence[float]) -> LookupTable:
    """Return the table of a weighted sum of metrics: every entry is the sum of the tables' entries times the weights.

    Parameters
    ----------
    tables : sequence of LookupTable
        Of one space, input and platform; metrics whose costs add up over layers.
    weights : sequence of float
        One a table, in one over the SI unit of its metric: with 100 for latency and 20 for energy, 10 ms count as much
        as 50 mJ.

    Returns
    -------
    LookupTable
        Of the metric ``weighted``. What small networks save does not count.

    Raises
    ------
    InvalidValueError
        If there are fewer than two tables, a weight is not positive, or a metric does not add up.
    MismatchError
        If the tables differ in space, input, platform or candidates.

    Examples
    --------
    >>> costs = {"a": {"x": 0.001, "y": 0.002}}
    >>> latency = LookupTable.from_latencies({"a": ["x", "y"]}, costs)
    >>> energy = LookupTable.from_latencies({"a": ["x", "y"]}, {"a": {"x": 0.05, "y": 0.01}}, metric="energy")
    >>> weigh_tables([latency, energy], [100, 2])["a"]["x"].value
    0.2
    """
    if len(tables) < 2 or len(tables) != len(weights) or not all(0 < weight < math.inf for weight in weights):
        raise InvalidValueError(
            "A weighted sum takes two tables at least and a positive weight for each. Got "
            f"{number_of(len(tables), 'table')} and the weights {list(weights)}."
        )
    first = tables[0]
    for table in tables:
        if not combination_of(table.metric).has_expectation:
            raise InvalidValueError(f"The {table.metric} of layers does not add up, so it has no weighted sum.")
        check_same_platform(first.platform, table.platform, "A weighted sum")
        if (table.space, table.input_shape) != (first.space, first.input_shape):
            raise MismatchError("The tables of a weighted sum must be of one space and input.")
        if [(layer.name, layer.choices) for layer in table.layers] != [
            (layer.name, layer.choices) for layer in first.layers
        ]:
            raise MismatchError("The tables of a weighted sum must have the same layers and candidates.")
    folded = [fold_calibration(table) for table in tables]
    layers = [_weighed([table.layers[place] for table in folded], weights) for place in range(len(first.layers))]
    return replace(
        folded[0], metric=WEIGHTED, layers=tuple(layers), residency=None, network_error=None, reference=None,
        campaign=None, remarks=tuple(dict.fromkeys(remark for table in tables for remark in table.remarks)),
    )  # fmt: skip


def _weighed(layers: Sequence[TableLayer], weights: Sequence[float]) -> TableLayer:
    """Return a layer with the candidates that all tables know."""
    entries = {}
    for choice, entry in layers[0].entries.items():
        parts = [layer.entries.get(choice) for layer in layers]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            total = Entry.sum(part.scaled(weight) for part, weight in zip(known, weights, strict=True))
            entries[choice] = replace(total, op=entry.op)
    return replace(layers[0], entries=entries)
