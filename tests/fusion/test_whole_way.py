# SPDX-License-Identifier: Apache-2.0
"""The whole way: rules found on small networks make the cost of a large one out of its kernels."""

from __future__ import annotations

import pytest
import torch
from fusing_devices import CONSTANT, PLATFORM, PROBES, PROTOCOL, fusing, seconds_of
from torch import nn

from nni_latency.estimators import Estimate, KernelEstimator
from nni_latency.fusion import detect_fusion, read_rules
from nni_latency.measurement import measure_network


class _Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, inputs):
        inner = torch.relu(self.norms[0](self.first(inputs)))
        return torch.relu(self.norms[1](self.second(inner)) + inputs)


class _Costs:
    """Knows what the invented device takes for a kernel."""

    platform, metric = PLATFORM, "latency"

    def estimate_fused(self, ops):
        value = max(map(seconds_of, ops))
        return Estimate(value, value, value)


def test_kernels_add_up_to_the_network(tmp_path):
    detect_fusion(fusing(), PROTOCOL, tmp_path / "rules.json", probes=PROBES, store="memory")
    rules = read_rules(tmp_path / "rules.json", PLATFORM)
    network, inputs = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), _Block(4), _Block(4)), torch.zeros(1, 3, 8, 8)
    estimate = KernelEstimator(rules, _Costs(), constant=rules.constant).estimate(network, inputs)
    measured = measure_network(network, inputs, fusing(by="graph"), PROTOCOL)
    assert estimate.value == pytest.approx(measured.summary.value)
    assert estimate.value == pytest.approx(5 * 4e-4 + CONSTANT)
