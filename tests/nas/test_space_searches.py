# SPDX-License-Identifier: Apache-2.0
"""Searches of spaces whose choices act together, through the real profiler: all kinds of choices, and the hub."""

from __future__ import annotations

import pytest
import torch
from test_profiler import ByMacs
from torch.utils.data import TensorDataset
from toys import evaluator_for, run_experiment, search, seeded

from nni_latency.imports import quiet_nni
from nni_latency.nas import FBNet, LatencyPenalty, LatencyProfiler, likeliest_sample
from nni_latency.spaces import hub_space

with quiet_nni():
    import nni
    from nni.nas.nn.pytorch import InputChoice, LayerChoice, ModelSpace, MutableLinear, Repeat
    from nni.nas.strategy import DARTS, GumbelDARTS

INPUTS = torch.zeros(1, 8)


class Mixed(ModelSpace):
    """A choice of inputs, of layers inside a repeated block, and of a width that two layers share."""

    def __init__(self):
        super().__init__()
        self.pick = InputChoice(2, n_chosen=1, label="pick")
        self.repeat = Repeat(
            lambda index: LayerChoice(
                {
                    "wide": torch.nn.Sequential(torch.nn.Linear(8, 512), torch.nn.Linear(512, 8)),
                    "thin": torch.nn.Linear(8, 8),
                },
                label=f"kind{index}",
            ),
            (1, 3),
            label="depth",
        )
        width = nni.choice("width", [64, 512])
        self.up = MutableLinear(8, width)
        self.down = MutableLinear(width, 2)

    def forward(self, inputs):
        return self.down(self.up(self.repeat(self.pick([inputs, inputs.relu()]))))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [DARTS, GumbelDARTS])
def test_penalty_makes_the_mean_network_cheaper(kind):
    expected = []
    for scale in (0.0, 100.0):
        space = seeded(Mixed)
        profiler = LatencyProfiler(space, INPUTS, latency_estimator=ByMacs())
        penalty = LatencyPenalty(profiler, baseline=profiler.cost.range[0], scale=scale)
        search(space, kind(penalty=penalty, arc_learning_rate=0.3), epochs=3)
        expected.append(float(penalty.profile({}).detach()))
    assert expected[1] < 0.9 * expected[0]
    limit = 1.2 * profiler.cost.range[0]
    found = likeliest_sample(profiler, max=limit)
    assert ByMacs().estimate(Mixed().freeze(found), INPUTS).value <= limit


def test_fbnet_exports_a_network_within_the_target():
    costs = LatencyProfiler(Mixed(), INPUTS, latency_estimator=ByMacs()).cost
    target = sum(costs.range) / 3
    strategy = FBNet(ByMacs(), target=target, example_inputs=INPUTS, arc_learning_rate=0.3, warmup_epochs=0)
    found = search(seeded(Mixed), strategy, epochs=2)
    assert ByMacs().estimate(Mixed().freeze(found), INPUTS).value <= target


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        (
            "mobilenetv3",
            {
                "num_labels": 2,
                "base_widths": (8,) * 9,
                "width_multipliers": (1.0, 2.0),
                "expand_ratios": (1.0, 4.0),
                "depth_range": (1, 2),
            },
        ),
        ("nasbench201", {"num_labels": 2, "stem_out_channels": 4, "num_modules_per_stack": 1}),
    ],
)
def test_fbnet_searches_spaces_of_the_hub(name, arguments, tmp_path):
    space, inputs = hub_space(name, **arguments), torch.zeros(1, 3, 32, 32)
    costs = LatencyProfiler(hub_space(name, **arguments), inputs, latency_estimator=ByMacs()).cost
    target = costs.range[0] + 0.3 * (costs.range[1] - costs.range[0])
    strategy = FBNet(ByMacs(), target=target, example_inputs=inputs, arc_learning_rate=0.1, warmup_epochs=0)
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randn(16, 3, 32, 32, generator=generator)
    dataset = TensorDataset(pictures, torch.randint(0, 2, (16,), generator=generator))
    found = run_experiment(space, strategy, evaluator_for(1, tmp_path, dataset=dataset, batch_size=8), tmp_path)
    network = hub_space(name, **arguments).freeze(found)
    assert ByMacs().estimate(network, inputs).value <= target
