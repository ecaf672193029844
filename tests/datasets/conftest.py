# SPDX-License-Identifier: Apache-2.0
"""A small data set: two networks of a few layers, on two platforms, with what their nodes took."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from toy_platforms import FAST, SLOW

from nni_latency.datasets import NetworkFile, PlatformLatencies, save_networks
from nni_latency.measurement import NetworkSummary, Protocol
from nni_latency.operators import export_onnx, read_onnx


def _network(channels):
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, 10),
    ).eval()


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Save two networks as ONNX files."""
    onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
    folder = tmp_path_factory.mktemp("onnx")
    found = []
    for seed, channels in enumerate((16, 64)):
        path = folder / f"toy-{seed:05}.onnx"
        onnx.save(export_onnx(_network(channels), [torch.zeros(1, 3, 8, 8)]).model, path)
        found.append(NetworkFile(path.stem, path, "toy", seed))
    return found


def _latencies(files, platform, seconds, *, sees_nodes, failures=()):
    able = [item for item in files if item.name not in failures]
    nodes = read_onnx(files[0].path).n_calls
    return PlatformLatencies(
        platform,
        1,
        Protocol(threads=platform.threads),
        "7",
        {item.key: NetworkSummary(seconds, 0.9 * seconds, 1.2 * seconds, 20, 4, 0.01) for item in able},
        {item.key: (seconds / 5,) * (nodes if sees_nodes else 5) for item in able},
        {item.key: "it cannot" for item in files if item.name in failures},
        3.5,
        {"before": {"load": 0.25}},
        sees_nodes,
    )


@pytest.fixture(scope="session")
def measured(files):
    """Invent what they take: the second one cannot run on the slow platform."""
    return [
        _latencies(files, FAST, 0.001, sees_nodes=True),
        _latencies(files, SLOW, 0.004, sees_nodes=False, failures=["toy-00001"]),
    ]


@pytest.fixture(scope="session")
def saved(files, measured, tmp_path_factory):
    """Save them as a data set."""
    path = tmp_path_factory.mktemp("set") / "networks.zip"
    save_networks(path, files, measured)
    return path
