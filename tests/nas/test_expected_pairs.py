# SPDX-License-Identifier: Apache-2.0
"""The expected cost of a supernet with costs of pairs, against all networks."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from nni_latency import FBNetSpace, LatencyProfiler, LookupTable
from nni_latency.estimators import AdditiveCost, CostTable
from nni_latency.nas._expectation import expected_cost
from nni_latency.tables import LayerPair, Residency

SIZES = (2, 3, 2)


def make_cost(residency=None):
    generator = np.random.default_rng(0)
    columns = {f"l{place}": dict(enumerate(generator.uniform(1, 2, size).tolist())) for place, size in enumerate(SIZES)}
    pairs = (
        CostTable(("l0", "l1"), generator.normal(0, 0.3, (2, 3))),
        CostTable(("l1", "l2"), generator.normal(0, 0.3, (3, 2))),
    )
    return AdditiveCost(0.5, columns, residency=residency, pairs=pairs)


def test_expectation_is_the_mean_over_independent_choices():
    cost = make_cost()
    rows = [np.random.default_rng(place).dirichlet(np.ones(size)) for place, size in enumerate(SIZES)]
    networks = list(itertools.product(*map(range, SIZES)))
    shares = [np.prod([row[index] for row, index in zip(rows, network, strict=True)]) for network in networks]
    flat = torch.tensor(np.concatenate(rows), dtype=torch.float32, requires_grad=True)
    found = expected_cost(cost)(flat)
    assert found.item() == pytest.approx(float(np.dot(shares, cost.predict(networks))), rel=1e-5)
    found.backward()
    # The gradient is what a choice costs beside the mean neighbours.
    first = cost.columns[0] + cost.pairs[0].costs @ rows[1]
    assert flat.grad[:2].numpy() == pytest.approx(first, rel=1e-5)


@pytest.mark.parametrize("residency", [None, Residency(0.3, 2.0)])
def test_expectation_of_one_network_is_its_cost(residency):
    cost = make_cost(residency)
    for network in itertools.product(*map(range, SIZES)):
        flat = torch.cat([torch.eye(size)[index] for size, index in zip(SIZES, network, strict=True)])
        assert float(expected_cost(cost)(flat)) == pytest.approx(float(cost.predict(network)), rel=1e-5)


def test_profiler_and_its_expression_hold_pairs():
    space = FBNetSpace(num_classes=10, input_size=32, width=0.25, depth=0.25)
    labels = list(space.simplify())
    table = LookupTable.from_latencies(
        space, {label: dict.fromkeys(mutable.values, 1e-3) for label, mutable in space.simplify().items()}
    )
    kinds = (tuple(int("_g2" in str(value)) for value in space.simplify()[labels[0]].values),) * 2
    pair = LayerPair((labels[0], labels[1]), kinds, ((0.0, 3e-4), (2e-4, 0.0)))
    profiler = LatencyProfiler(space, space.example_inputs(), latency_estimator=replace(table, pairs=(pair,)))
    sample = dict.fromkeys(labels, "k3_e1")
    mixed = {**sample, labels[0]: "k3_e1_g2"}
    assert profiler.profile(mixed) - profiler.profile(sample) == pytest.approx(2e-4)
    assert profiler.expression.evaluate(mixed) == pytest.approx(profiler.profile(mixed))
