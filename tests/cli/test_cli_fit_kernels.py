# SPDX-License-Identifier: Apache-2.0
"""``learn kernels --dataset`` on the command line."""

from __future__ import annotations

import json

import pytest
from measured_graphs import save_nodes

from nni_latency.platforms import Platform

pytest.importorskip("onnx", reason="the package onnx is not installed")

FAST, SLOW = Platform("toy", "onnxruntime"), Platform("toy", "ncnn")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Save twelve small networks, with what their nodes took on one of two platforms."""
    folder = tmp_path_factory.mktemp("kernels")
    return save_nodes(folder / "networks.zip", {FAST: True, SLOW: False}, count=12)


def test_predictors_are_fitted_to_kernels_of_networks(run, data, tmp_path):
    done = run("learn", "kernels", "--dataset", data, "--platform", "onnxruntime", "--format", "json")
    content = json.loads(done.stdout)
    assert content["platform"] == FAST.id
    assert [row["group"] for row in content["groups"]] == ["conv"]
    assert content["tested"]["n"] == 2
    assert f"{FAST.id}.kernels.json" in [path.name for path in tmp_path.iterdir()]
    shown = run("show", tmp_path / f"{FAST.id}.kernels.json")
    assert "not learned from" in " ".join(shown.stdout.split())
    assert "measured in" not in shown.stdout


def test_table_and_picture_are_made(run, data, tmp_path):
    done = run("learn", "kernels", "--dataset", data, "--platform", FAST.id, "--out", "k.json", "--plot", "k.png")
    assert "Wrote k.json and k.png" in " ".join(done.stdout.split())
    assert (tmp_path / "k.png").stat().st_size > 5000


def test_too_few_kernels_are_refused(fails, tmp_path):
    few = save_nodes(tmp_path / "few.zip", {FAST: True}, count=4)
    assert "needs 10 kernels of a group" in fails("learn", "kernels", "--dataset", few)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "Name one with --platform; the data has toy.ncnn"),
        (["--platform", "openvino"], "names 0 platforms of the data"),
        (["--platform", "toy"], "names 2 platforms of the data"),
        (["--platform", "ncnn"], "have no times of kernels"),
        (["--platform", "onnxruntime", "--family", "vgg"], "Unknown family of the data 'vgg'"),
    ],
)
def test_wrong_words_are_refused_and_nothing_is_written(fails, data, options, message, tmp_path):
    assert message in fails("learn", "kernels", "--dataset", data, *options)
    assert not list(tmp_path.glob("*.json"))
