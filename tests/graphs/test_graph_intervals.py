# SPDX-License-Identifier: Apache-2.0
"""Intervals: they cover what was held out, and widen with doubts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nni_latency.graphs._encoding import EncodedGraph, encode_graph
from nni_latency.graphs._intervals import (
    FARTHEST,
    Ranges,
    doubts_of,
    importance_of,
    spreads_with,
    unfamiliar,
    weights_of_doubts,
    widths_of,
)
from nni_latency.operators import OpSpec, chained


def _graph(*widths: int, kind: str = "relu") -> EncodedGraph:
    return encode_graph(chained([OpSpec.of(kind, [(1, width)]) for width in widths]))


def test_sizes_inside_of_what_was_learned_are_at_no_distance() -> None:
    ranges = Ranges.of([_graph(8, 64), _graph(1024)], np.array([[1.0, np.nan], [1.0, 1.0]]))
    assert ranges.distances(_graph(8, 32, 1024))[:, 0].tolist() == [0, 0, 0]
    # The second platform has learned from 1024 alone.
    np.testing.assert_allclose(ranges.distances(_graph(256, 1024, 2048))[:, 1], [2, 0, 1], atol=0.02)
    assert ranges.distances(_graph(8, kind="softplus")).tolist() == [[FARTHEST, FARTHEST]]


def test_what_other_platforms_have_learned_counts_for_a_new_one() -> None:
    known = Ranges.of([_graph(8), _graph(64)], np.array([[1.0, np.nan], [np.nan, 1.0]]))
    new = Ranges.of([_graph(512)], np.ones((1, 1))).widened(known)
    assert new.distances(_graph(8, 512)).ravel().tolist() == [0, 0]
    joined = known.joined(new, 2)
    assert joined.check(3) is joined
    assert joined.distances(_graph(512))[0, 2] == 0
    assert known.joined(new, 0).check(2).distances(_graph(512))[0, 0] == 0
    with pytest.raises(ValueError, match="every platform"):
        joined.check(2)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.01, 0.2), st.floats(0, 5))
def test_nine_in_ten_further_networks_are_inside(seed: int, spread: float, weight: float) -> None:
    random = np.random.default_rng(seed)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        doubts = random.uniform(0, 1, (count, 1, 3)) * [1, 0, 1]
        return random.normal(0, spread, (count, 1)) * (1 + weight * doubts[:, :, 0]), doubts

    errors, doubts = draw(600)
    families = [f"family {number % 20}" for number in range(600)]
    weights = weights_of_doubts(errors, doubts, importance_of(errors, families))
    assert (weights >= 0).all()
    assert weights[1] == 0
    half = spreads_with(errors, widths_of(doubts, weights), families, 0.9)[0]
    errors, doubts = draw(2000)
    assert 0.84 < (np.abs(errors) <= half * widths_of(doubts, weights)).mean() < 0.96


def test_families_count_alike() -> None:
    errors = np.array([[0.1], [0.1], [0.1], [0.5], [np.nan]])
    found = importance_of(errors, ["a", "a", "a", "b", "b"])
    np.testing.assert_allclose(found.ravel(), [1 / 6, 1 / 6, 1 / 6, 1 / 2, 0])


def test_random_blocks_count_as_much_as_all_families() -> None:
    found = importance_of(np.full((5, 1), 0.1), ["a", "a", "b", "mixed", "blocks-token"])
    np.testing.assert_allclose(found.ravel(), [1 / 4, 1 / 4, 1 / 2, 1 / 2, 1 / 2])


def test_intervals_hold_for_families_as_well_as_for_random_blocks() -> None:
    errors = np.concatenate([np.linspace(0, 0.1, 100), np.linspace(0, 0.4, 100)])[:, None]
    for first, second in (("mixed", "resnet"), ("resnet", "mixed")):
        found = spreads_with(errors, np.ones_like(errors), [*(100 * [first]), *(100 * [second])], 0.9)
        np.testing.assert_allclose(found, 0.36, atol=0.01)


def test_what_is_unknown_counts_for_more_than_it_is_predicted_to_take() -> None:
    distances, costs = np.array([[0.0], [FARTHEST]]), np.array([[9e-3], [1e-3]])
    doubt = doubts_of(costs, distances)[0, 0]
    assert doubt > FARTHEST * 0.3
    assert doubts_of(costs * 1e-3, distances)[0].tolist() == pytest.approx([doubt, 4])


def test_operators_that_widen_an_interval_are_named() -> None:
    ops = [OpSpec.of(kind, [(1, 8)]) for kind in ("relu", "strange", "linear", "odd")]
    found = unfamiliar(ops, np.array([0, FARTHEST, 1.0, FARTHEST]), np.array([0.4, 0.1, 0.3, 0.2]))
    assert found == (
        "operators never learned from: odd, strange",
        "sizes outside of those learned from: linear",
    )
    assert unfamiliar(ops, np.array([0, 0, 1.0, 0]), np.array([0.9, 0.05, 0.01, 0.04])) == ()
