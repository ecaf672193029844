"""Balanced rounds."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from nni_latency.measurement import balanced_round

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
    """Journals of older versions go on only while this holds; change it with the journal's version."""
    assert balanced_round([3, 3], 0) == [(0, 0), (2, 2), (1, 1)]


def test_rounds_differ_by_number_and_by_seed():
    sizes = [9] * 22
    assert len({tuple(balanced_round(sizes, index, seed)) for index in range(5) for seed in range(5)}) == 25


def test_rounds_pair_all_candidates_in_the_long_run():
    """Neighbours change from round to round, so no candidate is always timed behind the same one."""
    pairs = {network[:2] for index in range(100) for network in balanced_round([4, 4], index)}
    assert len(pairs) == 16
