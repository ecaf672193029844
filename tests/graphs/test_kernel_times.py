# SPDX-License-Identifier: Apache-2.0
"""What a predictor learns from times of kernels, and which networks it holds out together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from measured_graphs import FAST, WIDE, latency, measured

from nni_latency.graphs import GraphPredictor, MeasuredNetwork
from nni_latency.graphs._examples import Measurements
from nni_latency.operators import Graph, OpSpec, chained


def _with_parts(items: list[MeasuredNetwork]) -> list[MeasuredNetwork]:
    """Add what every operator takes; activations run with what is before them."""
    found = []
    for item in items:
        slower = item.latency / latency(item.graph)
        parts: list[tuple[tuple[int, ...], float]] = []
        for number, operator in enumerate(item.graph.operators):
            seconds = slower * (latency(Graph((operator,), 1)) - 5e-6)
            if seconds > 0:
                parts.append(((number,), seconds))
            else:
                parts[-1] = ((*parts[-1][0], number), parts[-1][1])
        found.append(replace(item, parts=tuple(parts)))
    return found


def _slower_where(items: list[MeasuredNetwork], is_slow: Callable[[OpSpec], bool]) -> list[MeasuredNetwork]:
    """Let the kernels of some operators take twenty times as long."""
    found = []
    for item in _with_parts(items):
        slower = [1.0 + 19.0 * is_slow(item.graph.operators[numbers[0]].op) for numbers, _ in item.parts]
        parts = tuple((numbers, by * seconds) for (numbers, seconds), by in zip(item.parts, slower, strict=True))
        more = sum(seconds for _, seconds in parts) - sum(seconds for _, seconds in item.parts)
        found.append(replace(item, parts=parts, latency=item.latency + more))
    return found


def test_families_are_held_out_as_a_whole_and_random_blocks_one_by_one() -> None:
    items = measured(4, [(FAST, 1.0)])
    mixed = [replace(item, name=f"mixed-{item.name}", family="mixed-small") for item in items]
    data = Measurements.of([*items, *mixed])
    folds = data.folds(2, 0)
    assert sorted(row for fold in folds for row in fold) == list(range(2 * len(items)))
    families, blocks = (
        [[row for row in fold if (row >= len(items)) == is_mixed] for fold in folds] for is_mixed in (0, 1)
    )
    assert all(len({items[row].family for row in fold}) * 4 == len(fold) for fold in families)
    assert sorted(map(len, blocks)) == [len(mixed) // 2] * 2
    assert {items[row - len(items)].family for row in blocks[0]} == {item.family for item in items}
    predictor = GraphPredictor(hidden=8, epochs=1, n_folds=2, n_members=1).fit([*items, *mixed])
    assert not np.isnan(predictor.held_out_).any()
    assert (predictor.widths_ > 0).all()
    assert predictor.counts_.tolist() == [len(items) + len(mixed)]


def _after_a_lookup(count: int) -> list[MeasuredNetwork]:
    """Return networks whose first kernel includes 5 us a run, 0.1 us a kernel and 2 % of the time."""
    found = []
    for number in range(count):
        length = 5 + 2 * number
        lookup = OpSpec.of("index", [(1, 8)], dim=1, out=(1,))
        graph = chained([lookup, *(OpSpec.of("linear", [(8, 64)], out_features=64) for _ in range(length))])
        whole = (5e-6 + 0.1e-6 * length + 2e-6 * length) / 0.98
        first = 5e-6 + 0.1e-6 * length + 0.02 * whole
        parts = ((0,), first), *(((place,), 2e-6) for place in range(1, length + 1))
        found.append(MeasuredNetwork(f"n{number}", graph, whole, FAST, "rows", parts))
    return found


def test_what_a_run_costs_outside_of_kernels_is_spread_over_them() -> None:
    """Otherwise a lookup would take 6 us in a short network, and 22 in a long one."""
    items = _after_a_lookup(60)
    examples = Measurements.of(items).examples
    for item, (first, *rest) in zip(items, examples.parts, strict=True):
        assert first.seconds == pytest.approx(5.5e-6, rel=0.2)
        assert sum(part.seconds for part in (first, *rest)) == pytest.approx(item.latency)
        assert [part.seconds for part in rest] == pytest.approx([2.14e-6] * len(rest), rel=0.03)


def test_of_few_networks_times_of_kernels_stay_as_they_are() -> None:
    items = _after_a_lookup(20)
    for item, parts in zip(items, Measurements.of(items).examples.parts, strict=True):
        assert [part.seconds for part in parts] == pytest.approx([seconds for _, seconds in item.parts])


def test_a_platform_that_is_added_learns_from_times_of_kernels() -> None:
    """A few networks do not tell what additions cost in them; their kernels do."""
    predictor = GraphPredictor(hidden=16, epochs=10, n_folds=2, n_members=1).fit(measured(8, [(FAST, 1.0)]))
    slow = _slower_where(measured(8, [(WIDE, 0.3)]), lambda op: op.kind == "add")
    few, others = slow[::5], [item for number, item in enumerate(slow) if number % 5]

    def off(known: list[MeasuredNetwork]) -> float:
        """Return how far the costs of additions are off in other networks."""
        adapted, errors = predictor.adapt(known), []
        for item in others:
            costs = adapted.explain(item.graph, WIDE)
            for numbers, seconds in item.parts:
                if item.graph.operators[numbers[0]].op.kind == "add":
                    errors.append(sum(costs[number].seconds for number in numbers) / seconds - 1)
        return float(np.abs(errors).mean())

    assert off(few) < 0.5 * off([replace(item, parts=()) for item in few])
