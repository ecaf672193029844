# SPDX-License-Identifier: Apache-2.0
"""Multi-trial strategies of NNI within a range of costs: no network outside it is ever tried."""

from __future__ import annotations

import functools

import pytest
import torch
from toys import Toy, latency_of, profiler_of, run_experiment

from nni_latency.errors import InvalidValueError
from nni_latency.imports import quiet_nni
from nni_latency.nas import TPE, GridSearch, LatencyFilter, LatencyProfiler
from nni_latency.spaces import CANDIDATES, FBNetSpace
from nni_latency.tables import LookupTable

with quiet_nni():
    import nni
    from nni.nas.evaluator import FunctionalEvaluator
    from nni.nas.experiment.config import ModelFormatConfig, SequentialEngineConfig
    from nni.nas.nn.pytorch import InputChoice, LayerChoice, ModelSpace
    from nni.nas.strategy import TPE as NNI_TPE
    from nni.nas.strategy import GridSearch as NniGridSearch
    from nni.nas.strategy import Random, RegularizedEvolution
    from nni.nas.strategy.middleware import Chain, Filter

STRATEGIES = [
    functools.partial(Random, seed=0),
    functools.partial(GridSearch, seed=0),
    functools.partial(GridSearch, shuffle=False),
    functools.partial(RegularizedEvolution, population_size=4, sample_size=2, mutation_prob=0.5, seed=0),
    functools.partial(TPE, seed=0),
]


def _judge(model, tried, inputs):
    """Run the network once; call slow ones accurate."""
    with torch.no_grad():
        model(inputs)
    sample = dict(nni.get_current_parameter().sample)
    tried.append(sample)
    nni.report_final_result({"default": latency_of(sample), "latency_ms": 1e3 * latency_of(sample)})


def _search(space, strategy, folder, judge, *, model_format, trials=6):
    return run_experiment(
        space,
        strategy,
        FunctionalEvaluator(judge),
        folder,
        execution_engine=SequentialEngineConfig(),
        model_format=ModelFormatConfig(model_format),
        max_trial_number=trials,
    )


@pytest.mark.parametrize("model_format", ["raw", "simplified"])
@pytest.mark.parametrize("make", STRATEGIES, ids=lambda make: make.func.__name__)
def test_every_network_tried_lies_in_the_range(make, model_format, tmp_path):
    space, tried = Toy(), []
    strategy = Chain(make(), Filter(LatencyFilter(profiler_of(space), min=4e-3, max=5.5e-3)))
    judge = functools.partial(_judge, tried=tried, inputs=torch.zeros(1, 8))
    best = _search(space, strategy, tmp_path, judge, model_format=model_format)
    assert len(tried) == 6
    assert all(4e-3 <= latency_of(sample) <= 5.5e-3 for sample in tried)
    assert latency_of(best) == max(map(latency_of, tried))


@pytest.mark.parametrize("make", STRATEGIES, ids=lambda make: make.func.__name__)
def test_strategies_learn_from_the_metric_of_refused_networks(make, tmp_path):
    space, tried = Toy(), []
    strategy = Chain(make(), Filter(LatencyFilter(profiler_of(space), max=4.5e-3), metric_for_invalid=-1.0))
    judge = functools.partial(_judge, tried=tried, inputs=torch.zeros(1, 8))
    _search(space, strategy, tmp_path, judge, model_format="raw", trials=4)
    assert len(tried) == 4
    assert max(map(latency_of, tried)) <= 4.5e-3


@pytest.mark.slow
@pytest.mark.parametrize("make", [STRATEGIES[0], *STRATEGIES[3:]], ids=["Random", "RegularizedEvolution", "TPE"])
def test_range_holds_on_the_space_of_fbnet(make, tmp_path):
    space = FBNetSpace(num_classes=2, input_size=32, width=0.25, depth=0.25, head_channels=16)
    generator = torch.Generator().manual_seed(0)
    latencies = {
        label: {choice: 1e-3 * float(torch.rand((), generator=generator)) for choice in CANDIDATES}
        for label in space.simplify()
    }
    table = LookupTable.from_latencies(space, {"stem": {"conv": 1e-3}, **latencies, "head": {"16": 1e-3}})
    profiler = LatencyProfiler(space, space.example_inputs(), latency_estimator=table)
    tried = []

    def judge(model):
        with torch.no_grad():
            accuracy = float(model.eval()(torch.ones(1, 3, 32, 32))[0, 0])
        tried.append(dict(nni.get_current_parameter().sample))
        nni.report_final_result(accuracy)

    strategy = Chain(make(), Filter(LatencyFilter(profiler, max=5e-3)))
    _search(space, strategy, tmp_path, judge, model_format="raw", trials=3)
    costs = [2e-3 + sum(latencies[label][choice] for label, choice in sample.items()) for sample in tried]
    assert len(costs) == 3
    assert max(costs) <= 5e-3


def test_grid_search_tries_every_network_once(tmp_path):
    space, tried = Toy(), []
    judge = functools.partial(_judge, tried=tried, inputs=torch.zeros(1, 8))
    _search(space, GridSearch(seed=0), tmp_path, judge, model_format="raw", trials=100)
    assert len({tuple(sorted(sample.items())) for sample in tried}) == len(tried) == 24


def test_nnis_own_grid_search_loses_the_samples(tmp_path):
    """What `GridSearch` is for; when this fails, NNI has mended it."""
    model = next(iter(NniGridSearch(shuffle=False)._grid_generator(_raw(Toy()))))
    before = dict(model.sample)
    models = list(NniGridSearch(shuffle=False)._grid_generator(_raw(Toy())))
    assert before
    assert all(found.sample == {} for found in models)
    assert all(found.sample for found in list(GridSearch(shuffle=False)._grid_generator(_raw(Toy()))))


def _raw(space):
    with quiet_nni():
        from nni.nas.space import RawFormatModelSpace
    return RawFormatModelSpace.from_model(space, FunctionalEvaluator(print))


class Wired(ModelSpace):
    """A choice of inputs beside a choice of layers."""

    def __init__(self):
        super().__init__()
        self.layer = LayerChoice({"wide": torch.nn.Linear(8, 8), "skip": torch.nn.Identity()}, label="layer")
        self.pick = InputChoice(3, n_chosen=2, label="pick")

    def forward(self, inputs):
        found = self.layer(inputs)
        return self.pick([inputs, found, found + inputs])


def _prefer_the_last(model, tried):
    model(torch.zeros(1, 8))
    sample = dict(nni.get_current_parameter().sample)
    tried.append(sample)
    nni.report_final_result(float(sample["pick"] == [1, 2]) + float(sample["layer"] == "skip"))


def test_tpe_takes_a_choice_of_inputs(tmp_path):
    tried = []
    best = _search(
        Wired(), TPE(seed=0), tmp_path, functools.partial(_prefer_the_last, tried=tried), model_format="raw", trials=10
    )
    assert len(tried) == 6
    assert best == {"layer": "skip", "pick": [1, 2]}


def test_nnis_own_tpe_does_not_take_a_choice_of_inputs(tmp_path):
    with pytest.raises(NotImplementedError, match="CategoricalMultiple"):
        _search(Wired(), NNI_TPE(), tmp_path, print, model_format="raw")


@pytest.mark.parametrize("mode", ["maximize", "minimize"])
def test_tpe_looks_for_large_metrics_unless_told_otherwise(mode, tmp_path):
    space, tried = Toy(), []
    options = {} if mode == "maximize" else {"optimize_mode": mode}
    tpe = TPE(seed=0, tpe_args={"n_startup_jobs": 6}, **options)
    judge = functools.partial(_judge, tried=tried, inputs=torch.zeros(1, 8))
    _search(space, tpe, tmp_path, judge, model_format="raw", trials=14)
    late = [latency_of(sample) for sample in tried[6:]]
    assert (sum(late) / len(late) > 6e-3) == (mode == "maximize")
    assert NNI_TPE().tuner.optimize_mode.value == "minimize"


def test_tpe_refuses_another_mode():
    with pytest.raises(InvalidValueError, match=r"'optimize_mode' of TPE must be 'maximize' or 'minimize'\. Got 'max'"):
        TPE(optimize_mode="max")
