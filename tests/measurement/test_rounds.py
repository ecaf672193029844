# SPDX-License-Identifier: Apache-2.0
"""Balanced rounds."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from nni_latency.measurement import balanced_round, light_network

_sizes = st.lists(st.integers(1, 12), min_size=1, max_size=24)
_indices = st.integers(0, 10**6)


@given(st.integers(1, 12), st.integers(1, 24), _indices)
def test_round_holds_every_candidate_exactly_once_when_layers_are_alike(size, n_layers, index):
    networks = balanced_round([size] * n_layers, index)
    assert len(networks) == size
    assert all(sorted(column) == list(range(size)) for column in zip(*networks, strict=True))


@given(_sizes, _indices, st.integers(0, 99))
def test_round_counts_candidates_alike_up_to_one(sizes, index, seed):
    networks = balanced_round(sizes, index, seed)
    assert len(networks) == max(sizes)
    for size, column in zip(sizes, zip(*networks, strict=True), strict=True):
        counts = Counter(column)
        assert set(counts) == set(range(size))
        assert max(counts.values()) - min(counts.values()) <= 1


@given(_sizes, _indices, st.integers(0, 99))
def test_round_is_the_same_every_time(sizes, index, seed):
    assert balanced_round(sizes, index, seed) == balanced_round(sizes, index, seed)


def test_round_is_the_same_in_another_process():
    """A journal holds the number of a round alone, so its networks must follow from it for ever."""
    code = "from nni_latency.measurement import balanced_round; print(balanced_round([3, 1, 2], 5, 7))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "3"}
    )
    assert done.stdout.strip() == str(balanced_round([3, 1, 2], 5, 7))


def test_rounds_are_pinned():
    """Campaigns that were interrupted go on only while this holds."""
    assert balanced_round([3, 3], 0) == [(0, 0), (2, 2), (1, 1)]


def test_rounds_differ_by_number_and_by_seed():
    sizes = [9] * 22
    assert len({tuple(balanced_round(sizes, index, seed)) for index in range(5) for seed in range(5)}) == 25


def test_rounds_pair_all_candidates_in_the_long_run():
    """Neighbours change from round to round, so no candidate is always timed behind the same one."""
    pairs = {network[:2] for index in range(100) for network in balanced_round([4, 4], index)}
    assert len(pairs) == 16


@st.composite
def _dealings(draw):
    """Layers with their costs, and the candidates of each that are wanted."""
    sizes = draw(_sizes)
    # Costs that are all different, so that it is clear which is the cheapest.
    costs = [draw(st.permutations([1.0 + cost for cost in range(size)])) for size in sizes]
    hands = [sorted(draw(st.sets(st.integers(0, size - 1), min_size=1))) for size in sizes]
    return sizes, costs, hands


@given(_dealings(), _indices, st.integers(0, 99), st.floats(0, 1))
def test_round_deals_every_wanted_candidate_alike_up_to_one(dealing, index, seed, alignment):
    sizes, costs, hands = dealing
    networks = balanced_round(sizes, index, seed, wanted=hands, costs=costs, alignment=alignment)
    assert len(networks) == max(map(len, hands))
    for hand, column in zip(hands, zip(*networks, strict=True), strict=True):
        counts = Counter(column)
        assert set(counts) == set(hand)
        assert max(counts.values()) - min(counts.values()) <= 1


@given(_dealings(), _indices, st.floats(0, 1))
def test_round_that_is_aligned_is_the_same_every_time(dealing, index, alignment):
    sizes, costs, hands = dealing
    one, other = (balanced_round(sizes, index, wanted=hands, costs=costs, alignment=alignment) for _ in range(2))
    assert one == other


@given(st.integers(1, 12), st.integers(1, 24), _indices, st.data())
def test_round_that_is_sorted_has_networks_of_all_cheapest_and_all_costliest(size, n_layers, index, data):
    costs = [data.draw(st.permutations([1.0 + cost for cost in range(size)])) for _ in range(n_layers)]
    networks = balanced_round([size] * n_layers, index, costs=costs, alignment=1.0)
    assert tuple(column.index(min(column)) for column in costs) in networks
    assert tuple(column.index(max(column)) for column in costs) in networks


@given(_sizes, _indices, st.integers(0, 99))
def test_round_without_alignment_does_not_look_at_the_costs(sizes, index, seed):
    costs = [[1.0] * size for size in sizes]
    assert balanced_round(sizes, index, seed, costs=costs) == balanced_round(sizes, index, seed)


def test_round_that_is_sorted_does_not_visit_the_cheapest_first():
    """In which order the networks are timed is drawn anew, or a machine that slows down would look like heavy ones."""
    costs = [[1.0, 2.0, 3.0]] * 4
    firsts = {balanced_round([3] * 4, index, costs=costs, alignment=1.0)[0] for index in range(30)}
    assert firsts == {(0,) * 4, (1,) * 4, (2,) * 4}


def test_round_spreads_the_costs_of_networks_the_more_it_is_aligned():
    costs = [[1.0, 2.0, 4.0, 8.0]] * 10

    def spread(alignment):
        ranges = []
        for index in range(50):
            networks = balanced_round([4] * 10, index, costs=costs, alignment=alignment)
            totals = [sum(cost[choice] for cost, choice in zip(costs, network, strict=True)) for network in networks]
            ranges.append(max(totals) - min(totals))
        return sum(ranges) / len(ranges)

    assert spread(0.0) < spread(0.5) < spread(1.0) == 70.0


@given(_dealings(), _indices, st.integers(0, 99))
def test_light_network_takes_one_of_the_five_cheapest_that_are_there(dealing, index, seed):
    _, costs, hands = dealing
    network = light_network(hands, costs, index, seed)
    for choice, hand, cost in zip(network, hands, costs, strict=True):
        assert choice in hand
        assert sum(cost[other] < cost[choice] for other in hand) < 5


@given(_dealings(), _indices, st.integers(0, 99))
def test_light_network_is_the_same_every_time(dealing, index, seed):
    _, costs, hands = dealing
    assert light_network(hands, costs, index, seed) == light_network(hands, costs, index, seed)


def test_light_network_is_the_cheapest_of_all_now_and_then():
    """One draw in five, and hardly ever by chance."""
    costs = [[3.0, 1.0, 2.0, 5.0, 4.0, 6.0]] * 12
    networks = [light_network([range(6)] * 12, costs, index) for index in range(100)]
    assert 8 <= networks.count((1,) * 12) <= 35


def test_light_network_takes_equally_many_of_the_cheapest_in_all_layers():
    costs = [[float(cost) for cost in range(9)]] * 40
    most = Counter(max(light_network([range(9)] * 40, costs, index)) for index in range(200))
    assert set(most) == {0, 1, 2, 3, 4}
    assert min(most.values()) > 20
