# SPDX-License-Identifier: Apache-2.0
"""Times of nodes and of calls become those of kernels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nni_latency.datasets import GraphDocument, kernels_of_calls, kernels_of_nodes
from nni_latency.operators import Graph, OpSpec, TracedOperator


def _graph(*operators, n_calls):
    """Make a graph of (kind, sources, last call)."""
    return Graph(
        tuple(
            TracedOperator(f"/call{call}/{kind}", OpSpec.of(kind, [(1, 8)]), sources, call)
            for kind, sources, call in operators
        ),
        n_calls,
    )


def test_an_operator_without_time_belongs_to_what_it_reads():
    graph = _graph(("conv2d", (), 0), ("relu", (0,), 1), ("mean", (1,), 2), n_calls=3)
    assert kernels_of_nodes(graph, [0.004, 1e-9, 0.001]) == (((0, 1), pytest.approx(0.004)), ((2,), 0.001))


def test_a_first_operator_without_time_belongs_to_what_reads_it():
    graph = _graph(("pad", (), 0), ("copy", (0,), 1), ("conv2d", (1,), 2), n_calls=3)
    assert kernels_of_nodes(graph, [1e-9, 1e-9, 0.004]) == (((0, 1, 2), pytest.approx(0.004)),)


def test_an_operator_without_time_belongs_to_the_last_of_what_it_reads():
    graph = _graph(("conv2d", (), 0), ("conv2d", (), 1), ("add", (0, 1), 2), n_calls=3)
    assert [numbers for numbers, _ in kernels_of_nodes(graph, [0.5, 0.25, 1e-9])] == [(0,), (1, 2)]


def test_nodes_that_compute_nothing_count_for_the_operator_behind_them():
    graph = _graph(("conv2d", (), 1), ("linear", (0,), 4), n_calls=6)
    assert kernels_of_nodes(graph, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == (((0,), 3.0), ((1,), 18.0))


def test_times_of_another_network_are_not_used():
    graph = _graph(("conv2d", (), 0), n_calls=1)
    assert kernels_of_nodes(graph, [1.0, 2.0]) == ()
    assert kernels_of_calls(_graph(("conv2d", (), 0), n_calls=1), []) == ()


def test_calls_that_have_no_node_count_for_the_call_before():
    """A normalisation is folded into the convolution before it."""
    graph = _graph(("conv2d", (), 0), ("relu", (0,), 2), n_calls=2)
    assert kernels_of_calls(graph, [0.5, 0.25, 0.125, 0.0625]) == (((0,), 0.75), ((1,), 0.1875))


def test_nodes_of_one_call_are_one_kernel():
    graph = Graph(
        tuple(
            TracedOperator(f"/call1/{kind}", OpSpec.of(kind, [(1, 8)]), (), place) for place, kind in enumerate("ab")
        ),
        2,
    )
    assert kernels_of_calls(graph, [0.5, 0.25]) == (((0, 1), 0.75),)
    unnamed = TracedOperator("Relu_3", OpSpec.of("relu", [(1, 8)]), (1,), 2)
    assert kernels_of_calls(Graph((*graph.operators, unnamed), 3), [0.5, 0.25]) == (((0, 1, 2), 0.75),)
    other = Graph((TracedOperator("conv", OpSpec.of("conv2d", [(1, 8)]), (), 0),), 1)
    assert kernels_of_calls(other, [0.5]) == ()


_VALUES = st.one_of(
    st.booleans(), st.integers(-9, 9), st.floats(), st.text(max_size=4), st.lists(st.integers(0, 9), max_size=3)
)
_OPS = st.builds(
    lambda kind, shapes, attributes, dtype: OpSpec.of(kind, shapes, dtype=dtype, **attributes),
    st.sampled_from(["conv2d", "relu", "strange"]),
    st.lists(st.lists(st.integers(1, 9), max_size=4), max_size=3),
    st.dictionaries(st.sampled_from(["out", "size", "mode", "learned"]), _VALUES, max_size=3),
    st.sampled_from(["float32", "int64"]),
)


@st.composite
def _graphs(draw):
    operators = []
    for number in range(draw(st.integers(0, 8))):
        sources = draw(st.lists(st.integers(0, number - 1), max_size=2, unique=True)) if number else []
        details = draw(st.dictionaries(st.sampled_from("abc"), st.text(max_size=3), max_size=2))
        operators.append(
            TracedOperator(
                draw(st.text(max_size=5)), draw(_OPS), tuple(sources), number, tuple(sorted(details.items()))
            )
        )
    shapes = draw(st.lists(st.tuples(st.integers(1, 9)), max_size=2))
    return Graph(tuple(operators), len(operators), tuple(shapes), tuple(shapes))


@given(graph=_graphs())
def test_a_graph_is_read_as_it_was_written(graph):
    text = GraphDocument.of(graph).model_dump_json(exclude_defaults=True)
    assert GraphDocument.model_validate_json(text).to_graph() == graph


def test_a_graph_that_reads_what_comes_later_is_refused():
    graph = _graph(("relu", (0,), 0), n_calls=1)
    with pytest.raises(ValueError, match="takes the result of one that follows"):
        GraphDocument.of(graph).to_graph()
