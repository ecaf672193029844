# SPDX-License-Identifier: Apache-2.0
"""Tracer, features and predictors on architectures of today."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from zoo import ZOO

from nni_latency import load_estimator
from nni_latency.estimators import break_down
from nni_latency.operators import TracingWarning, features_of, trace

DATA = Path(__file__).parents[1] / "tables" / "data"

#: Networks whose control flow depends on the data: they are run on their inputs.
ON_DATA = {"ScalarGate", "MixtureOfExperts"}

every_network = pytest.mark.parametrize("name", ZOO)


def _made(name):
    build, inputs, keywords = ZOO[name]
    torch.manual_seed(0)
    given = (*inputs, dict(keywords)) if keywords else inputs
    return build().eval(), given[0] if len(given) == 1 else given


def _quietly(name, function, *arguments):
    """Call a function; only a network whose control flow depends on the data may say so."""
    if name not in ON_DATA:
        return function(*arguments)
    with pytest.warns(TracingWarning, match="cannot be traced without data"):
        return function(*arguments)


def test_zoo_holds_thirty_architectures():
    assert len(ZOO) >= 30


@every_network
@pytest.mark.parametrize("by", ["module", "graph"])
def test_trace_holds_what_runs(name, by):
    network, inputs = _made(name)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    found = _quietly(name, trace, network, inputs, by)
    assert found.operators
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    keywords = args[-1] if isinstance(args[-1], dict) else {}
    with torch.inference_mode():
        result = network(*args[: len(args) - bool(keywords)], **keywords)
    shapes = [tuple(tensor.shape) for tensor in torch.utils._pytree.tree_leaves(result)]
    assert list(found.outputs) == shapes
    for item in found.operators:
        features = features_of(item.op)
        assert all(math.isfinite(value) and value >= 0 for value in vars(features).values()), item
    after = network.state_dict()
    assert all(torch.equal(value, after[key]) for key, value in before.items())


@every_network
def test_trace_survives_the_other_way_of_counting(name):
    """Work is the same whether modules or calls are counted, where all of it can be counted."""
    network, inputs = _made(name)
    by_module, by_graph = (_quietly(name, trace, network, inputs, by) for by in ("module", "graph"))
    assert by_module.outputs == by_graph.outputs


@every_network
@pytest.mark.parametrize("variant", ["refined", "published"])
def test_predictors_estimate_it(name, variant):
    network, inputs = _made(name)
    estimator = load_estimator(f"acts:{DATA / f'acts_1_{variant}.json'}")
    found = _quietly(name, break_down, estimator, network, inputs)
    assert 0 < found.total.low <= found.total.value <= found.total.high < 1
    assert math.isclose(sum(item.share for item in found.operators), 1.0, rel_tol=1e-6)


@every_network
@pytest.mark.parametrize("variant", ["refined", "published"])
def test_parts_and_whole_have_one_estimate(name, variant):
    """What an estimator says operator by operator is what an analysis and Python say of the whole."""
    network, inputs = _made(name)
    estimator = load_estimator(f"acts:{DATA / f'acts_1_{variant}.json'}")
    parts, whole = (
        _quietly(name, break_down, estimator, network, inputs).total,
        _quietly(name, estimator.estimate, network, inputs),
    )
    for end in ("value", "low", "high"):
        assert math.isclose(getattr(parts, end), getattr(whole, end), rel_tol=0.02), end
