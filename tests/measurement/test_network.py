"""Measuring a whole network."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nni_latency import Protocol
from nni_latency.errors import MeasurementError
from nni_latency.measurement import measure_network
from nni_latency.measurement.runtimes import TorchEager

_PROTOCOL = Protocol(n_warmup=1, n_run=3)


def test_network_is_measured_as_often_as_the_protocol_says():
    measurement = measure_network(nn.Linear(4, 2), (1, 4), TorchEager(), _PROTOCOL)
    assert len(measurement.samples) == 3
    assert len(measurement.warmups) == 1
    assert measurement.summary.value > 0


def test_network_is_left_as_it_was():
    network = nn.Linear(4, 2).train()
    measure_network(network, (1, 4), TorchEager(precision="bf16"), _PROTOCOL)
    assert network.training
    assert network.weight.dtype == torch.float32
    assert network.weight.requires_grad


def test_network_that_does_not_fit_its_input_is_reported():
    with pytest.raises(MeasurementError, match=r"network can not be run on .*\.torch\.fp32\.t1"):
        measure_network(nn.Linear(4, 2), (1, 5), TorchEager(), _PROTOCOL)
