"""``fit kernels`` on the command line."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch
from torch import nn

from nni_latency.datasets import NetworkFile, PlatformLatencies, save_networks
from nni_latency.measurement import NetworkSummary, Protocol
from nni_latency.operators import export_onnx, read_onnx, work_of
from nni_latency.platforms import Platform

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")

FAST, SLOW = Platform("toy", "onnxruntime"), Platform("toy", "ncnn")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Save eight small networks, with what their nodes took on one of two platforms."""
    folder = tmp_path_factory.mktemp("kernels")
    files, nodes = [], {}
    for seed in range(8):
        widths = [3, 8 + 3 * seed, 12 + 5 * seed]
        layers = [layer for pair in pairwise(widths) for layer in (nn.Conv2d(*pair, 3), nn.ReLU())]
        path = folder / f"toy-{seed}.onnx"
        onnx.save(export_onnx(nn.Sequential(*layers).eval(), [torch.zeros(1, 3, 16, 16)]).model, path)
        files.append(NetworkFile(path.stem, path, "toy" if seed % 2 else "other", seed))
        graph = read_onnx(path)
        times = [0.0] * graph.n_calls
        for item in graph.operators:
            if item.op.kind == "conv2d":
                times[item.last_call] = 1e-5 + work_of(item.op)[0].flops / 1e10
        nodes[files[-1].key] = tuple(times)
    measured = [
        PlatformLatencies(
            platform,
            1,
            Protocol(),
            str(sees_nodes),
            {key: NetworkSummary(sum(times), sum(times), sum(times), 20, 4, 0.01) for key, times in nodes.items()},
            nodes if sees_nodes else {},
            {},
            1.0,
            {"before": {"load": 0.25}},
            sees_nodes,
        )
        for platform, sees_nodes in ((FAST, True), (SLOW, False))
    ]
    path = folder / "networks.zip"
    save_networks(path, files, measured)
    return path


def test_predictors_are_fitted_to_kernels_of_networks(run, data, tmp_path):
    done = run("fit", "kernels", "--data", data, "--platform", "onnxruntime", "--held-out", 4, "--json")
    content = json.loads(done.stdout)
    assert content["platform"] == FAST.id
    assert [row["group"] for row in content["groups"]] == ["conv"]
    assert content["tested"]["n"] == 4
    assert f"{FAST.id}.kernels.json" in [path.name for path in tmp_path.iterdir()]
    shown = run("show", tmp_path / f"{FAST.id}.kernels.json")
    assert "kernels that were never learned from" in " ".join(shown.stdout.split())
    assert "measured in" not in shown.stdout


def test_table_and_picture_are_made(run, data, tmp_path):
    done = run("fit", "kernels", "--data", data, "--platform", FAST.id, "--out", "k.json", "--plot", "k.png")
    assert "Wrote k.json and k.png" in " ".join(done.stdout.split())
    assert (tmp_path / "k.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "Name one with --platform; the data has toy.ncnn"),
        (["--platform", "openvino"], "names 0 platforms of the data"),
        (["--platform", "toy"], "names 2 platforms of the data"),
        (["--platform", "ncnn"], "have no times of kernels"),
        (["--platform", "onnxruntime", "--families", "vgg"], "Unknown family of the data 'vgg'"),
        (["--platform", "onnxruntime", "--families", "other"], "needs 10 kernels of a group"),
    ],
)
def test_wrong_words_are_refused_and_nothing_is_written(fails, data, options, message, tmp_path):
    assert message in fails("fit", "kernels", "--data", data, *options)
    assert not list(tmp_path.glob("*.json"))
