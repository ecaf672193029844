# SPDX-License-Identifier: Apache-2.0
"""What a profiler counts in spaces where some samples have operators that no output depends on."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from nni_latency.estimators import TableEstimator
from nni_latency.nas import LatencyProfiler, expected_cost
from nni_latency.operators import trace
from nni_latency.platforms import Platform
from nni_latency.spaces import draw_samples, hub_space, network_of, operators_of_space, reference_of
from nni_latency.tables import Entry, LookupTable

TORCH, COMPILED = Platform("paper", "torch"), Platform("paper", "onnxruntime")


def _estimator(space, inputs, platform):
    """Return a table in which every operator of a space has another cost."""
    operators = operators_of_space(space, inputs).distinct
    entries = [Entry(1e-6 * n, 1e-6 * n, 1e-6 * n, op=op) for n, op in enumerate(operators, 100)]
    shape = tuple(inputs.shape)
    table = LookupTable(space=reference_of(space), platform=platform, input_shape=shape, operators=tuple(entries))
    return TableEstimator(table, missing="error")


def _samples(space):
    """Yield samples with cells that take both predecessors, or only one: normal cells and those that reduce."""
    both, first, second = (0, 1), (0,), (1,)
    kinds = [(both, both), (first, first), (first, second), (second, first), (second, second)]
    for seed, (normal, reduce) in enumerate(kinds):
        (sample,) = draw_samples(space, 1, seed)
        for label, chosen in sample.items():
            kind, _, name = label.partition("/")
            if name.startswith("input_"):
                allowed = normal if kind == "normal" else reduce
                sample[label] = [place if place > 1 else allowed[place % len(allowed)] for place in chosen]
        yield sample


def _estimate(estimator, space, sample, inputs):
    with torch.device("meta"):
        network = network_of(space, sample)()
    return estimator.estimate(network, inputs).value


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("darts", {"width": 4, "num_cells": (3, 4), "dataset": "cifar"}),
        ("darts", {"width": (4, 8), "num_cells": 3, "dataset": "imagenet"}),
        ("enas", {"width": 4, "num_cells": 4, "dataset": "cifar"}),
        ("nasnet", {"width": 4, "num_cells": 3, "dataset": "cifar"}),
        ("amoebanet", {"width": 4, "num_cells": 3, "dataset": "imagenet"}),
        ("pnas", {"width": 4, "num_cells": 3, "dataset": "cifar"}),
    ],
)
def test_profile_counts_what_the_platform_executes(name, arguments):
    space = hub_space(name, **arguments)
    inputs = torch.zeros(1, 3, 32, 32)
    eager, compiled = (_estimator(space, inputs, platform) for platform in (TORCH, COMPILED))
    profilers = [LatencyProfiler(space, inputs, latency_estimator=estimator) for estimator in (eager, compiled)]
    saved = []
    for sample in _samples(space):
        costs = [profiler.profile(sample) for profiler in profilers]
        slow = [_estimate(estimator, space, sample, inputs) for estimator in (eager, compiled)]
        assert costs == pytest.approx(slow, rel=1e-12)
        assert profilers[1].expression.evaluate(sample) == costs[1]
        saved.append(costs[0] - costs[1])
    assert saved[0] >= -1e-12
    assert min(saved[1:]) > 1e-4


def test_functions_on_which_no_output_depends_are_left_out():
    space, inputs = hub_space("darts", width=4, num_cells=3, dataset="imagenet"), torch.zeros(1, 3, 32, 32)
    found = operators_of_space(space, inputs, "graph", runs_unused=False)
    for sample in _samples(space):
        graph = trace(network_of(space, sample)(), inputs, "graph").without_unused()
        assert found.operators_of(sample) == Counter(item.op for item in graph.operators)


@pytest.mark.parametrize("name", ["darts", "pnas"])
def test_expected_cost_of_certain_choices_is_their_profile(name):
    space = hub_space(name, width=4, num_cells=4, dataset="cifar")
    inputs = torch.zeros(1, 3, 32, 32)
    profiler = LatencyProfiler(space, inputs, latency_estimator=_estimator(space, inputs, COMPILED))
    expected = expected_cost(profiler.cost)
    for sample in _samples(space):
        alphas = []
        for label, values in profiler.cost.choices.items():
            chosen = tuple(sample[label]) if isinstance(sample[label], list) else sample[label]
            alphas.append(torch.tensor([100.0 if value == chosen else 0.0 for value in values]))
        assert float(expected(expected.softmax(alphas))) == pytest.approx(profiler.profile(sample), rel=1e-5)
