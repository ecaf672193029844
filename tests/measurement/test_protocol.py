# SPDX-License-Identifier: Apache-2.0
"""How a measurement is taken."""

from __future__ import annotations

import dataclasses
import math

import pytest

from nni_latency.errors import InvalidValueError, MismatchError
from nni_latency.measurement import Protocol


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("n_warmup", -1),
        ("n_warmup", 1.0),
        ("n_run", 0),
        ("n_run", True),
        ("rounds", 0),
        ("threads", 0),
        ("threads", "2"),
        ("seed", -1),
        ("outlier", 0.5),
        ("outlier", -0.1),
        ("outlier", math.nan),
        ("statistic", 0.0),
        ("statistic", 1.0),
        ("confidence", 1.0),
        ("time_budget", 0),
        ("time_budget", math.inf),
        ("time_budget", "60"),
        ("half_width", -0.01),
        ("half_width", 1.0),
        ("half_width", math.nan),
        ("half_width", "2 %"),
        ("timeout", 0),
        ("timeout", -1.0),
        ("timeout", math.inf),
        ("timeout", None),
        ("max_measure_execution_time", 0),
        ("max_measure_execution_time", None),
    ],
)
def test_protocol_names_the_field_and_the_value_it_refuses(name, bad):
    with pytest.raises(InvalidValueError, match=rf"The '{name}' of a Protocol must be .*Got {bad!r}\."):
        Protocol(**{name: bad})


def test_protocol_allows_the_ends_that_mean_something():
    protocol = Protocol(n_warmup=0, outlier=0, seed=0, half_width=0)
    assert (protocol.n_warmup, protocol.outlier, protocol.half_width) == (0, 0.0, 0.0)


def test_protocol_makes_floats_of_whole_numbers():
    assert repr(Protocol(time_budget=20).time_budget) == "20.0"


def test_protocol_round_trips_through_a_dictionary():
    protocol = Protocol(n_run=3, outlier=0.1, seed=9)
    assert Protocol(**protocol.as_dict()) == protocol


def test_protocol_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"cannot assign to field 'n_run'"):
        Protocol().n_run = 2  # type: ignore[misc]


def test_differences_name_both_values():
    assert Protocol(n_run=1, seed=2).differences(Protocol(n_run=3, seed=4)) == [
        "n_run: 1 against 3",
        "seed: 2 against 4",
    ]


def test_differences_pass_over_what_is_ignored():
    assert Protocol(rounds=1).differences(Protocol(rounds=2), ignore=("rounds",)) == []


def test_runtime_of_other_threads_is_refused():
    Protocol(threads=2).check_threads(2)
    with pytest.raises(MismatchError, match=r"The 'threads' must agree: the runtime has 4, the protocol says 2\."):
        Protocol(threads=2).check_threads(4)
