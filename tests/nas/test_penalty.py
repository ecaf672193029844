# SPDX-License-Identifier: Apache-2.0
"""`LatencyPenalty`: the gradient of the cost arrives at the architecture parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from toys import FASTEST, LATENCIES, Listed, Shared, Toy, penalty_of, profiler_of, reversed_latencies, search, seeded

from nni_latency.errors import InvalidValueError, MismatchError, UnreachableTargetError
from nni_latency.estimators import Estimate, LayerEstimator
from nni_latency.imports import quiet_nni
from nni_latency.nas import FBNet, LatencyPenalty, LatencyProfiler, TargetPenalty
from nni_latency.platforms import Platform

with quiet_nni():
    import nni
    from nni.nas.nn.pytorch import Cell, ModelSpace, MutableLinear
    from nni.nas.oneshot.pytorch.profiler import ExpectationProfilerPenalty
    from nni.nas.strategy import DARTS, GumbelDARTS, Proxyless


class Cells(ModelSpace):
    """One cell of two nodes."""

    def __init__(self):
        super().__init__()
        self.cell = Cell({"x": nn.Linear(8, 8), "y": nn.Identity()}, 2, 1, 2, "all", label="cell")

    def forward(self, inputs):
        return self.cell(inputs, inputs)


class Constant(LayerEstimator):
    """As long for every operator."""

    metric = "latency"
    platform = Platform("paper")

    def estimate_op(self, op):
        return Estimate(1e-4, 1e-4, 1e-4)


STRATEGIES = [DARTS, GumbelDARTS, Proxyless]


def _alphas(strategy):
    """Return label to architecture parameters of the supernet of a strategy that has run."""
    return {
        module.label: module._arch_alpha.detach().clone()
        for module in strategy.supernet.modules()
        if hasattr(module, "_arch_alpha")
    }


def _supernet(space):
    """Turn a space into a supernet; return the live parameters by label."""
    DARTS().mutate_model(space)
    return {module.label: module._arch_alpha for module in space.modules() if hasattr(module, "_arch_alpha")}


def _set(alphas, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for alpha in alphas.values():
            alpha.copy_(torch.randn(len(alpha), generator=generator))


def test_nnis_own_penalty_has_no_gradient():
    """What `LatencyPenalty` is for: the stock penalty of GumbelDARTS is made of Python floats."""
    space = Toy()
    penalty = ExpectationProfilerPenalty(profiler_of(space), baseline=3e-3, scale=1e4)
    alphas = _supernet(space)
    probabilities = {
        label: dict(zip(LATENCIES[label], torch.softmax(a, -1).cpu().tolist(), strict=True))
        for label, a in alphas.items()
    }
    loss = sum(a.sum() for a in alphas.values()) * 0.0
    joined, _ = penalty(loss, probabilities)
    joined.backward()
    assert all(torch.equal(a.grad, torch.zeros_like(a)) for a in alphas.values())


def test_nnis_own_penalty_does_not_steer_a_search():
    """The costs of NNI's penalty change no bit of the architecture parameters, however large its scale."""
    found = []
    for latencies in (LATENCIES, reversed_latencies()):
        space = seeded(Toy)
        strategy = GumbelDARTS(
            penalty=ExpectationProfilerPenalty(profiler_of(space, latencies), baseline=3e-3, scale=1e4),
            arc_learning_rate=0.1,
        )
        search(space, strategy)
        found.append(_alphas(strategy))
    assert all(torch.equal(found[0][label], found[1][label]) for label in LATENCIES)


def test_penalty_is_the_sum_of_probability_times_cost():
    space = Toy()
    penalty = penalty_of(space)
    alphas = _supernet(space)
    _set(alphas)
    by_hand = sum(
        float(p) * cost
        for label, row in LATENCIES.items()
        for p, cost in zip(torch.softmax(alphas[label].detach(), -1), row.values(), strict=True)
    )
    assert float(penalty.profile({}).detach()) == pytest.approx(by_hand, rel=1e-5)


def test_penalty_has_the_gradient_of_the_closed_form():
    """The derivative of the expected cost by alpha_i is p_i times (cost_i less the layer's expected cost)."""
    space = Toy()
    penalty = penalty_of(space)
    alphas = _supernet(space)
    _set(alphas)
    penalty.profile({}).backward()
    for label, row in LATENCIES.items():
        costs = torch.tensor(list(row.values()))
        p = torch.softmax(alphas[label].detach(), -1)
        torch.testing.assert_close(alphas[label].grad, p * (costs - p @ costs))


def test_penalty_agrees_with_nnis_expectation():
    space = Toy()
    profiler = profiler_of(space)
    penalty = LatencyPenalty(profiler, 3e-3)
    alphas = _supernet(space)
    _set(alphas)
    live = {
        label: dict(zip(LATENCIES[label], torch.softmax(alpha, -1), strict=True)) for label, alpha in alphas.items()
    }
    theirs = ExpectationProfilerPenalty(profiler, 3e-3).profile(live)
    torch.testing.assert_close(penalty.profile({}), theirs)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"scale": 2.0}, lambda ratio: 1 + 2 * (ratio - 1)),
        ({"scale": 2.0, "nonlinear": "positive"}, lambda ratio: 1 + 2 * max(ratio - 1, 0)),
        ({"scale": 2.0, "nonlinear": "absolute"}, lambda ratio: 1 + 2 * abs(ratio - 1)),
        ({"scale": 0.5, "aggregate": "mul"}, lambda ratio: ratio**0.5),
    ],
    ids=["linear", "positive", "absolute", "mul"],
)
def test_penalty_joins_the_loss_as_nnis_does(options, expected):
    space = Toy()
    penalty = penalty_of(space, **options)
    _set(_supernet(space))
    joined, details = penalty(torch.tensor(1.0), {})
    assert float(joined.detach()) == pytest.approx(expected(float(details["penalty"].detach()) / 3e-3), rel=1e-5)


@pytest.mark.parametrize(
    ("latencies", "fastest"),
    [(LATENCIES, FASTEST), (reversed_latencies(), {"a": "y", "b": "y", "c": "x"})],
    ids=["as they are", "reversed"],
)
@pytest.mark.parametrize("kind", STRATEGIES)
def test_overwhelming_penalty_ends_at_the_fastest_candidates(kind, latencies, fastest):
    space = seeded(Toy)
    strategy = kind(penalty=penalty_of(space, latencies, scale=1e4), arc_learning_rate=0.5)
    # Proxyless draws what it exports, so the probabilities must be all but certain.
    assert search(space, strategy, epochs=5) == fastest


@pytest.mark.parametrize("kind", STRATEGIES)
def test_penalty_without_weight_changes_nothing(kind):
    found = []
    for latencies in (LATENCIES, reversed_latencies()):
        space = seeded(Toy)
        strategy = kind(penalty=penalty_of(space, latencies, scale=0.0), arc_learning_rate=0.1)
        found.append((search(space, strategy), _alphas(strategy)))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(found[0][1][label], found[1][1][label]) for label in LATENCIES)


class Wide(ModelSpace):
    """A layer whose width is searched."""

    def __init__(self):
        super().__init__()
        width = nni.choice("width", [2, 4, 8])
        self.first = MutableLinear(8, width)
        self.second = MutableLinear(width, 2)

    def forward(self, inputs):
        return self.second(self.first(inputs).relu())


@pytest.mark.parametrize(
    ("kind", "latencies"),
    [
        (Listed, {"first": {0: 1e-3, 1: 3e-3, 2: 2e-3}, "second": {0: 1e-3, 1: 2e-3}}),
        (Listed, {"first": {1: 1e-3, 0: 3e-3, 2: 2e-3}, "second": {1: 1e-3, 0: 2e-3}}),
        (Shared, {"both": {"x": 1e-3, "y": 3e-3}}),
        (Shared, {"both": {"y": 1e-3, "x": 3e-3}}),
        (Wide, {"width": {4: 1e-3, 2: 3e-3, 8: 2e-3}}),
    ],
)
def test_penalty_steers_indices_shared_labels_and_values_to_the_fastest(kind, latencies):
    space = seeded(kind)
    strategy = DARTS(penalty=penalty_of(space, latencies, scale=1e4), arc_learning_rate=0.5)
    assert search(space, strategy) == {label: min(row, key=row.get) for label, row in latencies.items()}


def test_penalty_needs_the_very_space_that_is_searched():
    penalty = penalty_of(Toy())
    with pytest.raises(MismatchError, match=r"it is not the one that is searched"):
        search(Toy(), DARTS(penalty=penalty), epochs=1)


def test_penalty_names_labels_that_the_supernet_has_not():
    space = Toy()
    penalty = penalty_of(space)
    _supernet(space)
    space.layers[1] = torch.nn.Identity()
    with pytest.raises(MismatchError, match=r"no fitting architecture parameters for b\."):
        penalty.profile({})


@pytest.mark.parametrize("baseline", [0.0, -1.0, float("nan")])
def test_penalty_refuses_a_baseline_that_is_not_positive(baseline):
    with pytest.raises(InvalidValueError, match=r"'baseline' of LatencyPenalty must be > 0\. Got"):
        LatencyPenalty(profiler_of(Toy()), baseline)
    with pytest.raises(InvalidValueError, match=r"'profiler' of LatencyPenalty must be a LatencyProfiler\. Got str"):
        LatencyPenalty("table.json", 1e-3)


def test_positive_penalty_refuses_an_unreachable_baseline():
    with pytest.raises(UnreachableTargetError, match=r"Reachable is 3\.00 ms to 9\.00 ms"):
        LatencyPenalty(profiler_of(Toy()), 2e-3, nonlinear="positive")


def test_space_with_a_cell_is_refused_before_the_search():
    """What DARTS learns of a cell is not the probability of a choice."""
    space = Cells()
    profiler = LatencyProfiler(space, torch.zeros(1, 8), latency_estimator=Constant())
    for kind in (LatencyPenalty, TargetPenalty):
        with pytest.raises(InvalidValueError, match=r"of Cells: 'cell' is a Cell.*Take ENAS or RandomOneShot"):
            kind(profiler, 1e-3)
    with pytest.raises(InvalidValueError, match="FBNet cannot follow the cost of Cells: 'cell' is a Cell"):
        FBNet(Constant(), example_inputs=torch.zeros(1, 8)).mutate_model(space)
