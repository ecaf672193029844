# SPDX-License-Identifier: Apache-2.0
"""`ENAS`: the controller learns from rewards, and the costs are part of them."""

from __future__ import annotations

import math

import pytest
import torch
from toys import (
    FASTEST,
    LATENCIES,
    Toy,
    expected_latency,
    latency_of,
    penalty_of,
    profiler_of,
    reversed_latencies,
    search,
    seeded,
)

from nni_latency.errors import InvalidValueError, UnreachableTargetError
from nni_latency.imports import quiet_nni
from nni_latency.nas import ENAS, LatencyFilter, LatencyProfiler

# Private: what the controller draws is compared with the probabilities that it states.
from nni_latency.nas._enas import Controller

with quiet_nni():
    from nni.nas.nn.pytorch import InputChoice, LayerChoice, ModelSpace, Repeat
    from nni.nas.oneshot.pytorch.profiler import SampleProfilerPenalty

#: Learns within a hundred rewards.
QUICK = {"batches_per_update": 4, "controller_learning_rate": 0.03}


def _penalty(space, latencies=None, scale=-100.0):
    return SampleProfilerPenalty(profiler_of(space, latencies), baseline=3e-3, scale=scale)


@pytest.mark.parametrize("latencies", [LATENCIES, reversed_latencies()], ids=["given", "reversed"])
def test_penalty_draws_the_controller_to_cheap_networks(latencies):
    space = seeded(Toy)
    strategy = ENAS(penalty=_penalty(space, latencies), **QUICK)
    found = search(space, strategy, epochs=16)
    cheapest = sum(min(row.values()) for row in latencies.values())
    costliest = sum(max(row.values()) for row in latencies.values())
    assert latency_of(found, latencies) <= cheapest + 0.2 * (costliest - cheapest)
    expected = expected_latency(strategy.oneshot_module.export_probs(), latencies)
    even = sum(sum(row.values()) / len(row) for row in latencies.values())
    assert expected < even


def test_penalty_without_weight_changes_nothing():
    found = []
    for latencies in (LATENCIES, reversed_latencies()):
        space = seeded(Toy)
        strategy = ENAS(penalty=_penalty(space, latencies, scale=0.0), **QUICK)
        found.append((search(space, strategy, epochs=2), strategy.oneshot_module.export_probs()))
    assert found[0] == found[1]


def test_every_path_and_the_export_lie_in_the_range():
    space = seeded(Toy)
    keep, passed = LatencyFilter(profiler_of(space), min=4e-3, max=5e-3), []

    def noted(sample):
        passes = keep(sample)
        if passes:
            passed.append(dict(sample))
        return passes

    strategy = ENAS(filter=noted, **QUICK)
    trained = []
    for module in space.modules():
        if isinstance(module, LayerChoice):
            for name, candidate in module.named_children():
                candidate.register_forward_hook(lambda *_, label=module.label, name=name: trained.append((label, name)))
    found = search(space, strategy, epochs=2)
    assert 4e-3 <= latency_of(found) <= 5e-3
    paths = [dict(trained[start : start + 3]) for start in range(0, len(trained), 3)]
    assert len(paths) == 16
    assert all(4e-3 <= latency_of(path) <= 5e-3 for path in paths)


def test_costs_of_inputs_and_depths_count():
    class Wired(ModelSpace):
        def __init__(self):
            super().__init__()
            self.pick = InputChoice(2, n_chosen=1, label="pick")
            self.repeat = Repeat(lambda index: torch.nn.Linear(8, 8), (1, 3), label="depth")
            self.head = torch.nn.Linear(8, 2)

        def forward(self, inputs):
            return self.head(self.repeat(self.pick([inputs, inputs + 1])))

    asked = []

    class Counted(LatencyProfiler):
        def __init__(self):
            pass

        def profile(self, sample):
            asked.append(dict(sample))
            return 1e-3 * (sample["depth"] + 2 * sample["pick"][0])

    penalty = SampleProfilerPenalty(Counted(), baseline=1e-3, scale=-100.0)
    found = search(seeded(Wired), ENAS(penalty=penalty, **QUICK), epochs=10)
    assert found == {"pick": [0], "depth": 1}
    assert len(asked) == 40


def test_warmup_epochs_leave_the_controller_alone():
    space = seeded(Toy)
    strategy = ENAS(penalty=_penalty(space), warmup_epochs=2, **QUICK)
    torch.manual_seed(0)
    search(space, strategy, epochs=2)
    rows = strategy.oneshot_module.export_probs()
    assert all(abs(share - 1 / len(row)) < 0.1 for row in rows.values() for share in row.values())


def test_reward_is_named():
    space = seeded(Toy)
    search(space, ENAS(reward_metric_name="val_acc", **QUICK), epochs=1)
    with pytest.raises(InvalidValueError, match=r"logged 'val_loss', 'val_acc'\. Name one with 'reward_metric_name'"):
        search(Toy(), ENAS(reward_metric_name="val_f1", **QUICK), epochs=1)


def test_filter_that_nothing_passes_ends_the_search():
    with pytest.raises(UnreachableTargetError, match=r"None of 128 networks drawn passes the filter"):
        search(Toy(), ENAS(filter=lambda sample: False, attempts=128), epochs=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"penalty": "table.json"}, r"must be a SampleProfilerPenalty of NNI, which judges single networks\. Got str"),
        ({"batches_per_update": 1}, r"'batches_per_update' of ENAS must be an int >= 2\. Got 1"),
        ({"warmup_epochs": -1}, r"'warmup_epochs' of ENAS must be an int >= 0\. Got -1"),
        ({"attempts": 0.5}, r"'attempts' of ENAS must be an int >= 1\. Got 0\.5"),
        ({"controller_learning_rate": 0}, r"'controller_learning_rate' of ENAS must be > 0\. Got 0"),
    ],
)
def test_enas_refuses_wrong_arguments(options, message):
    with pytest.raises(InvalidValueError, match=message):
        ENAS(**options)


def test_enas_refuses_a_penalty_that_rewards_slow_networks():
    with pytest.raises(InvalidValueError, match=r"its scale must be negative\. Got 2\.0"):
        ENAS(penalty=_penalty(Toy(), scale=2.0))


def test_enas_refuses_a_penalty_on_expectations():
    with pytest.raises(InvalidValueError, match=r"judges single networks\. Got LatencyPenalty"):
        ENAS(penalty=penalty_of(Toy()))


def test_enas_takes_a_penalty_as_a_dictionary():
    strategy = ENAS(penalty={"profiler": profiler_of(Toy()), "baseline": 3e-3, "scale": -1.0})
    assert strategy.penalty.baseline == 3e-3


def test_enas_refuses_a_space_without_choices():
    class Plain(ModelSpace):
        pass

    with pytest.raises(InvalidValueError, match=r"The space Plain has no choices"):
        ENAS().mutate_model(Plain())


def test_controller_judges_what_it_draws():
    torch.manual_seed(0)
    controller = Controller([3, 2])
    networks = torch.tensor([[a, b] for a in range(3) for b in range(2)])
    scores, entropies = controller.judge(networks)
    assert float(scores.exp().sum().detach()) == pytest.approx(1.0, abs=1e-6)
    drawn = controller.draw(20_000)
    shares = torch.stack([(drawn == network).all(1).double().mean() for network in networks])
    assert shares.tolist() == pytest.approx(scores.exp().tolist(), abs=0.02)
    assert float(entropies.detach().max()) <= math.log(6) + 1e-6


def test_controller_knows_the_likeliest():
    torch.manual_seed(1)
    controller = Controller([4])
    assert int(controller.likeliest()[0]) == max(range(4), key=controller.probabilities()[0].__getitem__)


@pytest.mark.slow
def test_enas_finds_the_fastest_when_nothing_else_counts():
    space = seeded(Toy)
    strategy = ENAS(penalty=_penalty(space, scale=-1e6), batches_per_update=8, controller_learning_rate=0.02)
    assert search(space, strategy, epochs=25) == FASTEST
