# SPDX-License-Identifier: Apache-2.0
"""`graph_key`: equal for equal networks, different for different ones."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nni_latency.graphs import families
from nni_latency.operators import OpSpec, Trace, TracedOperator, graph_key, trace

_KINDS = ("relu", "exp", "add", "cat", "conv2d")


@st.composite
def graphs(draw):
    """Draw operators that each take results of some before them."""
    count = draw(st.integers(1, 12))
    operators = []
    for number in range(count):
        sources = draw(st.lists(st.integers(0, number - 1), max_size=3, unique=True)) if number else []
        op = OpSpec.of(draw(st.sampled_from(_KINDS)), [(1, draw(st.integers(1, 3)))], size=draw(st.integers(1, 2)))
        operators.append(TracedOperator(f"node {number}", op, tuple(sources)))
    return Trace(tuple(operators), count, ((1, 2),))


def _shuffled(graph, seed):
    """Put operators into another order in which they can run, under other names."""
    draw, order, left = random.Random(seed), [], set(range(len(graph.operators)))
    while left:
        ready = [number for number in sorted(left) if not set(graph.operators[number].sources) & left]
        order.append(draw.choice(ready))
        left.remove(order[-1])
    places = {number: place for place, number in enumerate(order)}
    operators = (
        TracedOperator(f"other {place}", item.op, tuple(places[source] for source in item.sources))
        for place, item in ((place, graph.operators[number]) for place, number in enumerate(order))
    )
    return Trace(tuple(operators), graph.n_calls, graph.outputs)


@settings(max_examples=100)
@given(graph=graphs(), seed=st.integers(0, 100))
def test_names_and_order_do_not_matter(graph, seed):
    assert graph_key(_shuffled(graph, seed)) == graph_key(graph)


@settings(max_examples=100)
@given(graph=graphs(), place=st.integers(0, 100))
def test_every_attribute_matters(graph, place):
    operators = list(graph.operators)
    changed = operators[place % len(operators)]
    operators[place % len(operators)] = TracedOperator(changed.name, changed.op.replace(size=3), changed.sources)
    assert graph_key(Trace(tuple(operators), graph.n_calls, graph.outputs)) != graph_key(graph)


def test_who_takes_a_result_matters():
    """The same operators, all of them on the same inputs, but for whose result is taken by how many."""
    relu, exp = OpSpec.of("relu", [(1, 8)]), OpSpec.of("exp", [(1, 8)])

    def made(*sources):
        ends = [TracedOperator("e", exp, (source,)) for source in sources]
        return Trace((TracedOperator("a", relu), TracedOperator("b", relu), *ends), 4)

    assert graph_key(made(0, 1)) != graph_key(made(0, 0))
    assert graph_key(made(0, 0)) == graph_key(made(1, 1))


def test_inputs_of_a_sum_change_places_and_those_of_a_concatenation_do_not():
    relu, exp = OpSpec.of("relu", [(1, 8)]), OpSpec.of("exp", [(1, 8)])

    def made(kind, sources):
        joined = TracedOperator("j", OpSpec.of(kind, [(1, 8), (1, 8)]), sources)
        return graph_key(Trace((TracedOperator("a", relu), TracedOperator("b", exp), joined), 3))

    assert made("add", (0, 1)) == made("add", (1, 0))
    assert made("cat", (0, 1)) != made("cat", (1, 0))


@pytest.mark.parametrize("name", ["squeezenet", "shufflenetv2", "vit"])
def test_members_of_a_family_have_keys_of_their_own(name):
    family = families()[name]
    inputs = family.example_inputs()
    with torch.device("meta"):
        keys = [graph_key(trace(family.network(seed), inputs, by="graph")) for seed in (0, 1, 2, 3, 0)]
    assert len(set(keys)) == 4
    assert keys[0] == keys[-1]
