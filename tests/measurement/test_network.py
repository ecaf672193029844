"""Measuring a whole network."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nni_latency import Protocol
from nni_latency.errors import MeasurementError
from nni_latency.measurement import measure_network
from nni_latency.measurement.runtimes import TorchEager
from nni_latency.testing import FakeRuntime

_PROTOCOL = Protocol(n_warmup=1, n_run=3)


def test_network_is_measured_as_often_as_the_protocol_says():
    measurement = measure_network(nn.Linear(4, 2), (1, 4), TorchEager(), _PROTOCOL)
    assert len(measurement.samples) == 3
    assert measurement.summary.value > 0


def test_warm_up_ends_when_two_windows_agree():
    runtime = FakeRuntime(lambda op: 0.25)
    steady = measure_network(nn.ReLU(), (1, 4), runtime, Protocol(n_warmup=3, n_run=2))
    assert steady.warmups == (0.25,) * 6
    runs = iter(range(100))
    runtime.noise = lambda: 1.0 if next(runs) < 4 else 0.0
    slow_at_first = measure_network(nn.ReLU(), (1, 4), runtime, Protocol(n_warmup=2, n_run=2))
    # Two slow windows agree as well; one slow and one fast do not.
    runtime.noise = lambda: max(0.0, 1.0 - 0.25 * next(runs))
    runs = iter(range(100))
    falling = measure_network(nn.ReLU(), (1, 4), runtime, Protocol(n_warmup=1, n_run=2))
    assert slow_at_first.warmups == (1.25,) * 4
    assert falling.warmups == (1.25, 1.0, 0.75, 0.5, 0.25, 0.25)
    assert falling.samples == (0.25, 0.25)


def test_network_is_left_as_it_was():
    network = nn.Linear(4, 2).train()
    measure_network(network, (1, 4), TorchEager(precision="bf16"), _PROTOCOL)
    assert network.training
    assert network.weight.dtype == torch.float32
    assert network.weight.requires_grad


def test_network_that_does_not_fit_its_input_is_reported():
    with pytest.raises(MeasurementError, match=r"network cannot be run on .*\.torch\.fp32\.t1"):
        measure_network(nn.Linear(4, 2), (1, 5), TorchEager(), _PROTOCOL)
