# SPDX-License-Identifier: Apache-2.0
"""What did not run as it was asked for, in records and in words."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nni_latency.measurement import Fallback, LocalBench, Protocol, Record, Subject, fallbacks_of, summarise_fallbacks
from nni_latency.operators import OpSpec
from nni_latency.testing import FakeModule, FakeRuntime, check_runtime

_FOUND = st.builds(
    Fallback.of, st.text(min_size=1), st.lists(st.text(min_size=1), min_size=1, max_size=5), st.integers(5, 99)
)


class Falling(FakeRuntime):
    """Runs one of two nodes elsewhere."""

    def fallbacks(self, stage, value):
        return fallbacks_of([("Conv", "gpu"), ("Softmax", "cpu")], ["gpu"], "on {}")


@given(st.lists(_FOUND, max_size=3))
def test_record_keeps_what_fell_back(found):
    record = Record(1.0, (), {"latency": (0.5,)}, ("net",), fallbacks=tuple(found))
    assert Record.of(json.loads(json.dumps(record.content()))) == record


@pytest.mark.parametrize(("count", "n_nodes"), [(0, 4), (5, 4), (0, 0)])
def test_absurd_numbers_are_refused(count, n_nodes):
    with pytest.raises(ValueError, match=r"nodes cannot fall back"):
        Fallback.of_content({"ran": "in f32", "operators": [["Softmax", count]], "n_nodes": n_nodes})


def test_record_without_any_is_what_it_was():
    assert "fallbacks" not in Record(1.0, (), {}).content()


def test_bench_asks_the_runtime_at_every_visit():
    runtime = Falling(lambda op: 0.5)
    check_runtime(runtime)
    with LocalBench(runtime, Protocol()) as bench:
        bench.admit(Subject("net", lambda: FakeModule(OpSpec.of("identity", [(1, 4)])), (1, 4)))
        visit = bench.visit(["net"])
    assert [str(item) for item in visit.fallbacks] == ["1 of 2 nodes ran on cpu: Softmax"]


def test_summary_names_operators_by_where_they_ran():
    one, other = Fallback.of("in f32", ["Softmax", "Softmax"], 4), Fallback.of("on cpu", ["Gather"], 4)
    assert summarise_fallbacks({"a": [one], "b": [one]}) == ("Of every network, 2 of 4 nodes ran in f32: Softmax (2).",)
    assert summarise_fallbacks({"a": [one, other], "b": []}) == (
        "In 1 of 2 networks, up to 2 of 4 nodes ran in f32: Softmax.",
        "In 1 of 2 networks, up to 1 of 4 nodes ran on cpu: Gather.",
    )
    assert summarise_fallbacks({"a": [one]}) == ("2 of 4 nodes ran in f32: Softmax (2).",)
    assert summarise_fallbacks({"a": []}) == ()
