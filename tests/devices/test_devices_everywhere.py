# SPDX-License-Identifier: Apache-2.0
"""Every command that measures, with ONNX Runtime on a device that is reached by SSH: this machine behind a server.

Where it can be made, another user with nothing but the runtime and numpy measures there.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
from importlib import metadata
from pathlib import Path
from unittest import mock

import pytest
import sklearn.datasets
import torch
from click.testing import CliRunner
from measured_graphs import use_few_networks
from registries import use_registry
from sklearn.utils import Bunch
from ssh_server import SSHD, device_account, running_ssh_server
from torch import nn

from nni_latency import micro_benchmarks
from nni_latency.cli import main
from nni_latency.estimators import GraphEstimator, MeasuredNetworkEstimator, ModuleEstimator
from nni_latency.loading import load_runtime
from nni_latency.measurement import Protocol
from nni_latency.micro_benchmarks import Block, run_benchmarks
from nni_latency.plugins import GROUP, collect

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SSHD.exists() or shutil.which("ssh") is None, reason="needs openssh-server"),
]

_PLUGIN = Path(__file__).parents[2] / "plugins" / "nni_latency_onnxruntime"

_NETWORK = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
"""

_SPACE = ("--space-args", "preset=cifar,width=0.25,depth=0.1")

_ON_DEVICE = ("--device", "board", "--runtime", "onnxruntime")

#: As many rounds as it takes, however long they take where other processes are busy.
_QUICK = ("--protocol", "rounds=2", "--protocol", "processes=1", "--budget", "10min")

#: As few visits of a network or a kernel as there can be.
_ROUGH = ("--protocol", "half_width=0.5", "--budget", "10min")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Run a server with a device ``board``; yield a folder with a network, and the account on the device."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    here = tmp_path_factory.mktemp("here")
    (here / "net.py").write_text(_NETWORK)
    with (
        device_account("numpy", "onnxruntime") as account,
        running_ssh_server(account=account) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.syspath_prepend(_PLUGIN)
        patch.setenv("PATH", f"{server.binaries}:{os.environ['PATH']}")
        core = min(os.sched_getaffinity(0))
        (here / "nni_latency").mkdir()
        (here / "nni_latency" / "devices.toml").write_text(
            f'[board]\nconnection = "ssh:{server.address}"\npython = "{account.python}"\ncores = "{core}"\n'
        )
        points = [
            metadata.EntryPoint("builtin", "nni_latency.builtin_plugin", GROUP),
            metadata.EntryPoint("onnxruntime", "nni_latency_onnxruntime.plugin", GROUP),
        ]
        registry = collect(points)
        use_registry(patch, registry)
        patch.chdir(here)
        yield here, account


@pytest.fixture(autouse=True)
def _at_the_place(place, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place[0]))
    monkeypatch.setenv("NNI_LATENCY_DATABASE", str(place[0] / "db.sqlite"))


@pytest.fixture
def run(place):
    """Run a command, which must succeed, use the device, and leave nothing there."""
    _, account = place

    def invoke(*words):
        account.starts.unlink(missing_ok=True)
        result = CliRunner().invoke(main, list(map(str, words)))
        assert result.exit_code == 0, result.output
        assert account.starts.exists(), result.output
        # A command's process would end now.
        gc.collect()
        account.assert_nothing_is_left()
        return result

    return invoke


def _platform_of(path):
    facts = json.loads(path.read_text())["platform"]["facts"]
    assert facts["cpu_affinity"] == str(min(os.sched_getaffinity(0)))
    return facts


@pytest.fixture(scope="module")
def table(place):
    """Build a table of the device; other tests go on from it."""
    here, _ = place
    with mock.patch.dict(os.environ, {"XDG_CONFIG_HOME": str(here), "NNI_LATENCY_DATABASE": str(here / "db.sqlite")}):
        result = CliRunner().invoke(main, ["build-lut", *_SPACE, *_ON_DEVICE, *_QUICK, "--out", "t.json"])
    assert result.exit_code == 0, result.output
    _platform_of(here / "t.json")
    return here / "t.json"


def test_table_is_validated(run, table):
    assert "MAPE" in run("validate", table, "--device", "board", "--networks", "3", *_QUICK, "--out", "v.json").output


def test_table_is_made_of_that_of_another_device(run, table):
    run("build-lut", "--from", table, "--samples", "3", *_ON_DEVICE, *_QUICK, "--out", "made.json")
    _platform_of(table.with_name("made.json"))


def test_network_found_by_a_search_is_measured_there(run, table):
    few = sklearn.datasets.load_digits()
    few = Bunch(images=few.images[:120], target=few.target[:120])
    with mock.patch.object(sklearn.datasets, "load_digits", lambda: few):
        run(
            *("search", "--estimator", table, "--device", "board", "--target", "1s", "--epochs", "1"),
            *("--training", "final_epochs=0,batch_size=32", *_QUICK, "--out", "found"),
        )
    assert json.loads((table.parent / "found" / "search.json").read_text())["measured"] > 0


def _measure_few_blocks(runtime, protocol, out, **options):
    convolutions = [Block.of("conv", 8, channels=4 * size, out=4, kernel=3) for size in range(1, 5)]
    blocks = [*convolutions, Block.of("head", 4, channels=8, classes=10)]
    return run_benchmarks(runtime, protocol, out, series=[(block, (1, 2)) for block in blocks], **options)


def test_blocks_are_learned(run, place, monkeypatch):
    monkeypatch.setattr(micro_benchmarks, "run_benchmarks", _measure_few_blocks)
    run("learn", "device", *_ON_DEVICE, *_QUICK, "--out", "acts.json")
    _platform_of(place[0] / "acts.json")


def test_kernels_are_learned(run, place):
    few = ("--sampling", "init_sample_num=10", "--sampling", "iteration=0")
    run("learn", "kernels", *_ON_DEVICE, "--kernel", "fc_relu", *few, *_ROUGH, "--out", "kernels.json")
    _platform_of(place[0] / "kernels.json")


def test_fusion_is_found(run):
    words = ("--fusion", "conv2d+relu", *_QUICK, "--out", "fusion.json")
    assert "one kernel" in run("learn", "kernels", *_ON_DEVICE, *words).output


def test_data_set_is_measured(run):
    words = ("--per-family", "1", "--family", "squeezenet", "--platform", "onnxruntime", "--device", "board")
    assert "onnxruntime.fp32.t1" in run("dataset", "measure", *words, *_ROUGH, "--out", "n.zip").output


def test_operators_are_profiled(run):
    words = ("net.py:Net", "--input", "3,8,8", "--measure", *_QUICK, "--out", "profile.json")
    assert "conv2d" in run("profile", *_ON_DEVICE, *words).output


def test_predictor_of_graphs_learns_the_device(run, monkeypatch):
    use_few_networks(monkeypatch, 6)
    assert "kept apart" in run("learn", "graph", *_ON_DEVICE, "--budget", "10min", "--out", "g.safetensors").output


def test_estimators_measure_there(place):
    runtime = load_runtime("onnxruntime", "board")
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    for kind in (ModuleEstimator, GraphEstimator, MeasuredNetworkEstimator):
        estimator = kind(runtime=runtime, protocol=Protocol(rounds=2, processes=1), store="memory")
        assert 0 < estimator.estimate(network, torch.zeros(1, 3, 8, 8)).value < 0.1
        assert estimator.platform.facts["cpu_affinity"] == str(min(os.sched_getaffinity(0)))
    runtime.close()
    runtime.place.session.connection.close()
    place[1].assert_nothing_is_left()
