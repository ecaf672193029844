# SPDX-License-Identifier: Apache-2.0
"""`TableComparison`: two tables compared candidate by candidate."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from nni_latency.errors import MismatchError
from nni_latency.regression import rank_correlation
from nni_latency.tables._arithmetic import fold_calibration
from nni_latency.tables._lookup_table import LookupTable


@dataclass(frozen=True)
class TableComparison:
    """Costs of the same candidates in two tables. Immutable.

    Parameters
    ----------
    first, second : LookupTable
        The tables, with their calibration folded in.
    costs : mapping of str to mapping
        ``{layer: {choice: (cost in the first, cost in the second)}}`` of the candidates in both; for tables of
        operators by kind and key.
    only_first, only_second : tuple of (str, str)
        Layer and choice of candidates in only one table.
    differences : tuple of str
        Other differences: space, platform, input, costs of pairs of layers, costs beside neighbours.

    Examples
    --------
    >>> table = LookupTable.from_latencies({"a": ["x", "y"]}, {"a": {"x": 0.001, "y": 0.002}})
    >>> compare_tables(table, table).ratio
    1.0
    """

    first: LookupTable
    second: LookupTable
    costs: Mapping[str, Mapping[str, tuple[float, float]]]
    only_first: tuple[tuple[str, str], ...]
    only_second: tuple[tuple[str, str], ...]
    differences: tuple[str, ...]

    @property
    def ratios(self) -> dict[str, dict[str, float]]:
        """Ratio of the costs, second to first, by layer and choice, where neither is zero."""
        return {
            layer: {choice: b / a for choice, (a, b) in costs.items() if a > 0 and b > 0}
            for layer, costs in self.costs.items()
        }

    @property
    def layer_ratios(self) -> dict[str, float]:
        """Median ratio of every layer."""
        return {layer: statistics.median(row.values()) for layer, row in self.ratios.items() if row}

    @property
    def _all(self) -> list[float]:
        return [ratio for row in self.ratios.values() for ratio in row.values()]

    @property
    def ratio(self) -> float:
        """Median ratio of all candidates; nan without common candidates of positive cost."""
        ratios = self._all
        return statistics.median(ratios) if ratios else math.nan

    @property
    def spread(self) -> float:
        """Spread s of the ratios: nine tenths lie within the median times or divided by 1 + s."""
        ratios, middle = self._all, self.ratio
        if len(ratios) < 2:
            return 0.0
        logs = sorted(abs(math.log(ratio / middle)) for ratio in ratios)
        return math.expm1(logs[math.ceil(0.9 * len(logs)) - 1])

    @property
    def agreement(self) -> float:
        """Share of the candidates whose costs, apart from the median ratio, agree within their intervals.

        Of two builds on one machine it is nominally 0.95. nan without intervals.
        """
        theirs, ratio = dict(self.second.places()), self.ratio
        if math.isnan(ratio):
            return math.nan
        found: list[bool] = []
        for place, entry in self.first.places():
            if place in theirs:
                other = theirs[place].scaled(1 / ratio)
                width = math.hypot(entry.half_width, other.half_width)
                found += [abs(other.value - entry.value) <= width] if width else []
        return statistics.mean(found) if found else math.nan

    @property
    def spearman(self) -> float:
        """Rank correlation of the costs of all candidates; nan with fewer than three, or if all are equal."""
        pairs = [pair for row in self.costs.values() for pair in row.values()]
        return rank_correlation([first for first, _ in pairs], [second for _, second in pairs])


def compare_tables(first: LookupTable, second: LookupTable) -> TableComparison:
    """Compare two tables, which may be of different platforms.

    Parameters
    ----------
    first, second : LookupTable
        Tables of one metric, with common candidates by layer and name.

    Raises
    ------
    MismatchError
        If they are of different metrics, or have no candidate in common.
    """
    if first.metric != second.metric:
        raise MismatchError(f"A table of {first.metric} cannot be compared with one of {second.metric}.")
    folded: list[LookupTable] = [fold_calibration(table) for table in (first, second)]
    mine, theirs = ({place: entry.value for place, entry in table.places()} for table in folded)
    common = _common(mine, theirs)
    if not common:
        raise MismatchError(
            f"The tables have no candidate in common: {first.space} has the layers {_few(first)}, "
            f"{second.space} has {_few(second)}."
        )
    differences = [*first.space.differences(second.space), *first.platform.differences(second.platform)]
    if first.input_shape != second.input_shape:
        differences.append(f"input {_shape(first)} against {_shape(second)}")
    if bool(first.pairs) != bool(second.pairs):
        differences.append(f"only the {'first' if first.pairs else 'second'} has costs of pairs of neighbouring layers")
    first_beside, second_beside = (any(entry.beside for entry in table.operators) for table in folded)
    if first_beside != second_beside:
        which = "first" if first_beside else "second"
        differences.append(f"only the {which} has costs of operators beside their neighbours")
    return TableComparison(
        first=folded[0],
        second=folded[1],
        costs=common,
        only_first=tuple(place for place in mine if place not in theirs),
        only_second=tuple(place for place in theirs if place not in mine),
        differences=tuple(differences),
    )


def _common(
    mine: Mapping[tuple[str, str], float], theirs: Mapping[tuple[str, str], float]
) -> dict[str, dict[str, tuple[float, float]]]:
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for (layer, choice), cost in mine.items():
        if (layer, choice) in theirs:
            found.setdefault(layer, {})[choice] = (cost, theirs[layer, choice])
    return found


def _few(table: LookupTable) -> str:
    names = list(dict.fromkeys(layer for (layer, _), _ in table.places()))
    return f"{', '.join(names[:3])}{' ...' if len(names) > 3 else ''}"


def _shape(table: LookupTable) -> str:
    return "x".join(map(str, table.input_shape))
