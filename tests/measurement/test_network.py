# SPDX-License-Identifier: Apache-2.0
"""Measuring a whole network."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from nni_latency import Protocol
from nni_latency.errors import MeasurementError
from nni_latency.measurement import (
    Campaign,
    CampaignHeader,
    MemoryStore,
    NetworkSchedule,
    Subject,
    measure_network,
)
from nni_latency.measurement.runtimes import TorchEager
from nni_latency.testing import FakeRuntime

_PROTOCOL = Protocol(n_warmup=1, n_run=3, rounds=1, processes=1)


@pytest.mark.slow
def test_network_is_measured_as_often_as_the_protocol_says():
    measurement = measure_network(nn.Linear(4, 2), (1, 4), TorchEager(), _PROTOCOL)
    assert len(measurement.samples) == 3
    assert measurement.summary.value > 0


def test_network_is_warmed_up_until_two_rounds_agree():
    runs = iter(range(100))
    runtime = FakeRuntime(lambda op: 0.25, noise=lambda: max(0.0, 1.0 - 0.25 * next(runs)))
    measured = measure_network(nn.ReLU(), (1, 4), runtime, Protocol(n_warmup=0, n_run=1, rounds=2, half_width=0.0))
    assert measured.samples == (0.25, 0.25)


@pytest.mark.slow
def test_network_is_left_as_it_was():
    network = nn.Linear(4, 2).train()
    measure_network(network, (1, 4), TorchEager(precision="bf16"), _PROTOCOL)
    assert network.training
    assert network.weight.dtype == torch.float32
    assert network.weight.requires_grad


@pytest.mark.slow
def test_network_that_does_not_fit_its_input_is_reported():
    with pytest.raises(MeasurementError, match=r"network cannot be run on .*\.torch\.fp32\.t1"):
        measure_network(nn.Linear(4, 2), (1, 5), TorchEager(), _PROTOCOL)


def test_network_that_failed_after_some_rounds_is_an_error_of_the_next_run_too():
    calls = itertools.count()

    def noise():
        if next(calls) >= 12:
            raise RuntimeError("out of memory")
        return 0.0

    subject, protocol = Subject.of_module(nn.ReLU(), (1, 4)), Protocol(n_warmup=0, rounds=50, half_width=0.0)
    benches, store = FakeRuntime(lambda op: 0.25, noise=noise).benches(), MemoryStore()
    header = CampaignHeader("networks", {}, benches.platform, protocol)
    for said in (r"out of memory\.$", r"out of memory\. This failed in an earlier run"):
        with store.campaign(header) as log, pytest.raises(MeasurementError, match=said):
            Campaign(NetworkSchedule([subject], protocol, isolated=False), benches, log).run()
        assert log.records
