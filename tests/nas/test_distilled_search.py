# SPDX-License-Identifier: Apache-2.0
"""An estimator of whole networks steers a differentiable search, by way of a sum."""

from __future__ import annotations

import math

import pytest
import torch
from toys import evaluator_for, run_experiment

from nni_latency.errors import InvalidValueError
from nni_latency.estimators import Estimate, NetworkEstimator, distil, score
from nni_latency.imports import quiet_nni
from nni_latency.nas import FBNet, LatencyFilter, LatencyPenalty, LatencyProfiler
from nni_latency.platforms import Platform
from nni_latency.spaces import FBNetSpace
from nni_latency.tables import LookupTable

with quiet_nni():
    from nni.nas.nn.pytorch import LayerChoice, ModelSpace
    from nni.nas.strategy import DARTS


class Saturating(NetworkEstimator):
    """A device that overlaps work: the largest layer counts twice, and small networks stay in the cache."""

    metric = "latency"
    platform = Platform("paper")

    def __init__(self):
        self.asked = 0

    def estimate(self, model, example_inputs=None):
        assert tuple(example_inputs.shape) == (1, 3, 32, 32)
        self.asked += 1
        convolutions = [module for module in model.modules() if isinstance(module, torch.nn.Conv2d)]
        times = [2e-5 + 1e-8 * module.weight.numel() for module in convolutions]
        whole = (sum(times) + 2 * max(times)) * (1 - 0.2 * math.exp(-sum(times) / 1e-3))
        return Estimate(whole, whole, whole)


def _space():
    torch.manual_seed(0)
    return FBNetSpace(num_classes=2, input_size=32, width=0.25, depth=0.25, head_channels=16)


def _true(whole, sample):
    plan = _space().measure_plan()
    network = plan.network_of({"stem": "conv", **sample, "head": "16"})()
    return whole.estimate(network, torch.zeros(1, 3, 32, 32)).value


@pytest.fixture(scope="module")
def distilled():
    return distil(Saturating(), _space(), n_samples=50)


def test_cross_validation_tells_what_the_sum_loses(distilled):
    """The reported error is that on networks that were not drawn."""
    whole = Saturating()
    generator = torch.Generator().manual_seed(5)
    drawn = torch.randint(0, 9, (20, 7), generator=generator)
    names = list(next(iter(distilled.cost.costs.values())))
    samples = [dict(zip(distilled.cost.costs, (names[i] for i in row), strict=True)) for row in drawn.tolist()]
    truth = [_true(whole, sample) for sample in samples]
    found = score([distilled.cost(sample) for sample in samples], truth)
    assert distilled.n_samples == 50
    assert 0 < distilled.scores.mape < 0.1
    assert found.mape == pytest.approx(distilled.scores.mape, abs=0.03)
    assert min(found.spearman, distilled.scores.spearman) > 0.9


def test_distillation_says_what_it_is(distilled):
    assert "from 50 of them; on others it is off by" in str(distilled)
    assert "within 10 %, Spearman 0.9" in str(distilled)


@pytest.mark.filterwarnings("ignore:The target excludes no network")
def test_profiler_takes_an_estimator_of_whole_networks():
    space = _space()
    before = torch.random.get_rng_state()
    profiler = LatencyProfiler(space, latency_estimator=Saturating(), n_samples=30)
    assert torch.equal(before, torch.random.get_rng_state())
    assert profiler.distillation is not None
    assert profiler.estimator.asked == 30
    sample = dict.fromkeys(space.simplify(), "k3_e6")
    truth = _true(Saturating(), sample)
    assert profiler.profile(sample) == pytest.approx(truth, rel=0.3)
    assert LatencyFilter(profiler, max=2 * truth)(sample)


def test_profiler_of_a_table_has_no_distillation():
    space = _space()
    costs = {label: dict.fromkeys(mutable.values, 0.001) for label, mutable in space.simplify().items()}
    table = LookupTable.from_latencies(space, {"stem": {"conv": 1e-3}, **costs, "head": {"16": 1e-3}})
    assert LatencyProfiler(space, latency_estimator=table).distillation is None


def _pictures(count=12):
    generator = torch.Generator().manual_seed(0)
    return torch.utils.data.TensorDataset(
        torch.randn(count, 3, 32, 32, generator=generator), torch.randint(0, 2, (count,), generator=generator)
    )


_LEARNING = {"dataset": _pictures(), "batch_size": 4, "learning_rate": 1e-3}


@pytest.mark.slow
def test_whole_networks_steer_fbnet_to_the_target(tmp_path, distilled):
    low, high = distilled.cost.range
    target = low + 0.3 * (high - low)
    strategy = FBNet(latency_estimator=Saturating(), target=target, arc_learning_rate=0.3, warmup_epochs=0)
    found = run_experiment(_space(), strategy, evaluator_for(1, str(tmp_path), **_LEARNING), tmp_path)
    assert strategy.profiler.profile(found) <= target
    assert _true(Saturating(), found) <= target * (1 + strategy.profiler.distillation.scores.worst)


@pytest.mark.slow
def test_whole_networks_steer_darts_with_a_penalty(tmp_path):
    costs = []
    for scale in (0.0, 100.0):
        space = _space()
        profiler = LatencyProfiler(space, latency_estimator=Saturating(), n_samples=30)
        penalty = LatencyPenalty(profiler, baseline=profiler.cost.range[0], scale=scale)
        strategy = DARTS(penalty=penalty, arc_learning_rate=0.5)
        folder = tmp_path / str(scale)
        found = run_experiment(space, strategy, evaluator_for(1, str(folder), **_LEARNING), folder)
        costs.append(_true(Saturating(), found))
    low, high = profiler.cost.range
    assert costs[1] < costs[0]
    assert costs[1] <= low + 0.2 * (high - low)


class Free(ModelSpace):
    """A space without a plan: the prior knows nothing."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            *(LayerChoice([torch.nn.Linear(8, 8), torch.nn.Identity()], label=f"l{n}") for n in range(3))
        )
        self.head = torch.nn.Linear(8, 2)

    def forward(self, inputs):
        return self.head(self.layers(inputs))


class Counting(NetworkEstimator):
    """A millisecond for every linear layer, another for every pair of them; or how many networks fit a second."""

    platform = Platform("paper")

    def __init__(self, metric="latency", together=0.0):
        self.metric = metric
        self.together = together

    def estimate(self, model, example_inputs=None):
        n = sum(isinstance(module, torch.nn.Linear) for module in model.modules())
        seconds = 1e-3 * (n + self.together * n * (n - 1) / 2)
        value = 1 / seconds if self.metric == "throughput" else seconds
        return Estimate(value, value, value, ("conv",))


@pytest.mark.parametrize("metric", ["latency", "energy", "throughput"])
def test_what_is_a_sum_is_found_exactly(metric):
    found = distil(Counting(metric), Free(), torch.zeros(1, 8))
    assert found.n_samples == 8
    cost = found.cost({"l0": "0", "l1": "1", "l2": "0"})
    assert cost == pytest.approx(1 / 3e-3 if metric == "throughput" else 3e-3, rel=0.02)
    assert found.scores.mape < 0.05
    assert found.cost.missing == ("conv",)


def test_what_is_no_sum_shows_in_the_scores():
    found = distil(Counting(together=3.0), Free(), torch.zeros(1, 8))
    assert found.scores.mape > 0.05


def test_draw_is_repeatable_and_balanced():
    first, again = (distil(Saturating(), _space(), n_samples=18, random_state=3) for _ in range(2))
    assert first.cost == again.cost
    assert first.scores == again.scores


def test_every_network_asked_for_is_reported():
    reported = []
    distil(Counting(), Free(), torch.zeros(1, 8), on_progress=lambda done, total: reported.append((done, total)))
    assert reported == [(n, 8) for n in range(1, 9)]


def test_plan_is_as_good_as_its_space():
    by_plan, by_space = (distil(Saturating(), each, n_samples=20) for each in (_space().measure_plan(), _space()))
    assert by_plan.cost.range == pytest.approx(by_space.cost.range, rel=1e-6)


@pytest.mark.parametrize("n_samples", [3, 2.5, "many"])
def test_number_of_networks_is_checked(n_samples):
    with pytest.raises(InvalidValueError, match=r"'n_samples' of distil must be an int >= 10\. Got"):
        distil(Counting(), Free(), n_samples=n_samples)


def test_a_largest_part_is_no_sum():
    with pytest.raises(InvalidValueError, match=r"A peak_memory is the largest of its parts: no sum can stand for it"):
        distil(Counting("peak_memory"), Free())


def test_what_is_no_space_is_refused():
    with pytest.raises(InvalidValueError, match=r"must be an NNI model space or a measure plan\. Got Linear"):
        distil(Counting(), torch.nn.Linear(2, 2))


def test_space_without_choices_is_refused():
    class Plain(ModelSpace):
        pass

    with pytest.raises(InvalidValueError, match=r"The space Plain has no choices: there is nothing to distil"):
        distil(Counting(), Plain())
