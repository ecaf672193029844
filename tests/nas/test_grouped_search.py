# SPDX-License-Identifier: Apache-2.0
"""Differentiable searches where choices act together."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from toys import search, seeded

from nni_latency.estimators import CostTable, GroupedCost
from nni_latency.imports import quiet_nni
from nni_latency.nas import FBNet, LatencyPenalty, LatencyProfiler, likeliest_sample

with quiet_nni():
    from nni.nas.nn.pytorch import InputChoice, LayerChoice, ModelSpace, Repeat
    from nni.nas.strategy import DARTS, GumbelDARTS, Proxyless


class Wired(ModelSpace):
    """A choice of layers inside a repeated block, and a choice of inputs."""

    def __init__(self):
        super().__init__()
        self.pick = InputChoice(2, n_chosen=1, label="pick")
        self.repeat = Repeat(
            lambda index: LayerChoice({"wide": torch.nn.Linear(8, 8), "thin": torch.nn.Linear(8, 8)}, label="kind"),
            (1, 3),
            label="depth",
        )
        self.head = torch.nn.Linear(8, 2)

    def forward(self, inputs):
        return self.head(self.repeat(self.pick([inputs, inputs.relu()])))


#: A layer costs once per repetition, so depth and kind act together; the second input costs extra.
COST = GroupedCost(
    1e-3,
    (
        CostTable(("depth", "kind"), 1e-3 * np.array([[2.0, 1.0], [4.0, 2.0], [6.0, 3.0]])),
        CostTable(("pick",), np.array([0.0, 1e-3])),
    ),
    {"depth": (1, 2, 3), "kind": ("wide", "thin"), "pick": ((0,), (1,))},
)
CHEAPEST = {"depth": 1, "kind": "thin", "pick": [0]}


class Preset(LatencyProfiler):
    """A profiler whose cost is given."""

    def __init__(self, space, *_arguments, **_options):
        self.space = space
        self.cost = COST


@pytest.mark.parametrize("kind", [DARTS, GumbelDARTS, Proxyless])
def test_penalty_steers_choices_that_act_together(kind):
    expected = []
    for scale in (0.0, 1e3):
        space = seeded(Wired)
        penalty = LatencyPenalty(Preset(space), baseline=2e-3, scale=scale)
        search(space, kind(penalty=penalty, arc_learning_rate=0.3), epochs=4)
        expected.append(float(penalty.profile({}).detach()))
    assert expected[1] < expected[0]
    found = likeliest_sample(Preset(space), max=2.1e-3)
    assert found == CHEAPEST
    assert Wired().freeze(found)(torch.zeros(1, 8)).shape == (1, 2)


@pytest.mark.slow
def test_fbnet_meets_the_target_where_choices_act_together(monkeypatch):
    monkeypatch.setattr("nni_latency.nas._fbnet.LatencyProfiler", Preset)
    for target in (2.1e-3, 4.1e-3):
        strategy = FBNet(latency_estimator="preset", target=target, arc_learning_rate=0.3, warmup_epochs=0)
        found = search(seeded(Wired), strategy, epochs=3)
        assert COST(found) <= target
        assert set(found) == {"depth", "kind", "pick"}
