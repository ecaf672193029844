# SPDX-License-Identifier: Apache-2.0
"""The figures of ``figures.py`` are those of ``expected.json``."""

from __future__ import annotations

import pytest
from figures import PUBLISHED, TOPICS, differences, expected
from threadpoolctl import threadpool_limits

#: Topics of a few seconds; the others are slow tests.
FAST = {"tables_from_raw_samples", "tables_that_ship", "gradient_of_a_search"}

#: Topics that need data of others.
OF_OTHERS = {"acts_of_published_operators", "transfer_to_published_devices"}


@pytest.mark.parametrize(
    "topic", [topic if topic in FAST else pytest.param(topic, marks=pytest.mark.slow) for topic in TOPICS]
)
def test_figures_are_the_same(topic):
    if topic in OF_OTHERS and not PUBLISHED.is_dir():
        pytest.skip(f"the published data are not at {PUBLISHED}")
    make, tolerance = TOPICS[topic]
    with threadpool_limits(1):
        found = differences(expected()[topic], make(), tolerance)
    assert not found, "\n".join(found[:20])


def test_a_figure_that_changed_is_named():
    assert differences({"a": 1.0, "b": 2.0}, {"a": 1.001, "c": 3.0}, 1e-4) == [
        "b: 2.0 -> None",
        "c: None -> 3.0",
        "a: 1.0 -> 1.001",
    ]
