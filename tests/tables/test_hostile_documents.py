# SPDX-License-Identifier: Apache-2.0
"""Every file of ours with one value replaced by a hostile one: it is read, or refused in one sentence."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nni_latency.documents import load
from nni_latency.errors import LatencyError
from nni_latency.estimators import TransferEstimator
from nni_latency.estimators.acts import ActsEstimator
from nni_latency.micro_benchmarks import BenchmarkPoints
from nni_latency.validation import read_summary

DATA = Path(__file__).parent / "data"

READERS = {
    "acts_1_published": ActsEstimator.load,
    "acts_1_refined": ActsEstimator.load,
    "benchmark_points_1": BenchmarkPoints.load,
    "lookup_table_1": load,
    "lookup_table_1_failures": load,
    "operators_1": load,
    "operators_1_names": load,
    "transfer_1": TransferEstimator.load,
    "validation_1": read_summary,
}

HOSTILE = st.sampled_from(
    [
        *(None, True, -1, 0, 1e308, -1e308, 5e-324, 10**400, 2**63, math.nan, math.inf, -math.inf),
        *("", "\x1b[2J\x00\u202e", "../../etc/passwd", "os:system", "a" * 100_000, "NaN", "1e999"),
        *([], {}, [[]], [1e308] * 3, {"__class__": "os"}, [[[[[[[[0]]]]]]]], [1] * 10_000),
    ]
)


def _places(content, way=()):
    """Return the ways to all values of a document."""
    yield way
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield from _places(value, (*way, key))


def _replaced(content, way, value):
    if not way:
        return value
    changed = dict(content) if isinstance(content, dict) else list(content)
    changed[way[0]] = _replaced(content[way[0]], way[1:], value)
    return changed


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_hostile_values_are_refused_in_a_sentence(name, data):
    content = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    way = data.draw(st.sampled_from(list(_places(content))))
    hostile = _replaced(content, way, data.draw(HOSTILE))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hostile.json"
        path.write_text(json.dumps(hostile), encoding="utf-8")
        try:
            READERS[name](path)
        except LatencyError as error:
            sentence = str(error)
            assert "\n" not in sentence
            assert len(sentence) < 2000
