# SPDX-License-Identifier: Apache-2.0
"""The files that the commands and the code of the documentation read, and the names that the code takes as known."""

from __future__ import annotations

import csv
import json
import shutil
import sys
import warnings

import numpy as np
import pytest
import torch
from documented import DEVICE, ROOT, codes
from measured_graphs import fitted, save_nodes, write_measured
from nni_latency_service import ApiKeys

from nni_latency import FBNet, FBNetSpace, TableEstimator
from nni_latency.database import DatabaseStore
from nni_latency.fusion import save_rules
from nni_latency.kernels import Sampling, build_predictors, find_types
from nni_latency.loading import load_kernel_types
from nni_latency.measurement import Protocol
from nni_latency.micro_benchmarks import draw_blocks, run_benchmarks
from nni_latency.operators import FusionRule, FusionRules, FusionTimes, features_of, trace
from nni_latency.platforms import Platform
from nni_latency.profiling import own_model, profile_operators
from nni_latency.spaces import draw_samples
from nni_latency.tables import build_table, shipped_tables
from nni_latency.testing import FakeMeter, FakeRuntime

_NETWORK = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, width=8):
        super().__init__(nn.Conv2d(3, width, 3, stride=2), nn.BatchNorm2d(width), nn.ReLU())
"""

#: The rules that docs/fusion.rst shows.
_RULES = (
    FusionRule(("conv2d", "batch_norm"), True, folds=True, times=FusionTimes(631e-6, 123e-6, 657e-6, 0.208)),
    FusionRule(("conv2d depthwise", "batch_norm"), True, folds=True, times=FusionTimes(620e-6, 123e-6, 567e-6, 0.418)),
    FusionRule(("conv2d", "relu"), False, times=FusionTimes(630e-6, 78.8e-6, 756e-6, 0.335)),
    FusionRule(("conv2d", "add"), False, times=FusionTimes(630e-6, 128e-6, 956e-6, 0.946)),
)


def write_files(folder, run):
    """Write every file that is read into a folder, some of them by commands."""
    table = shipped_tables()["fbnet-224-b1.epyc-25-17-1.torch.fp32.t1"]
    (folder / "demo").mkdir()
    for name in ("TABLE", "table.json", "old.json", "new.json", "nhwc.json", "demo/table.json"):
        shutil.copy(table, folder / name)
    for name in ("cells.json", "my_space.json"):
        shutil.copy(ROOT / "tests" / "tables" / "data" / "operators_1.json", folder / name)
    run("table", "scale", table, "--factor", "0.5", "--out", folder / "faster.json")
    layers = [f"layer{place}" for place in range(22)]
    run("table", "subset", table, "--layers", ",".join(layers[:2]), "--out", folder / "part.json")
    run("table", "subset", table, "--layers", ",".join(layers[2:]), "--out", folder / "rest.json")
    for name, unit in (("fbnet-cpu.txt", "us"), ("lut.txt", "ms")):
        run("table", "export", table, "--format", "text", "--unit", unit, "--out", folder / name)
    runtime = FakeRuntime(lambda op: 2e-6 + 3e-11 * features_of(op).flops)
    protocol, series = Protocol(n_warmup=0, rounds=1, time_budget=600.0), [(block, (1,)) for block in draw_blocks(24)]
    run_benchmarks(runtime, protocol, folder / "others.json", series=series)
    for name in ("points.<platform>.json", "points.json"):
        shutil.copy(folder / "others.json", folder / name)
    run("learn", "device", folder / "others.json", "--out", folder / "acts.json")
    save_rules(FusionRules(Platform("epyc-7763", "torchscript"), _RULES), folder / "rules.json")
    (folder / "net.py").write_text(_NETWORK)
    with warnings.catch_warnings():
        # The exporter that needs no further package is on its way out.
        warnings.simplefilter("ignore")
        network = torch.nn.Conv2d(3, 8, 3).eval()
        torch.onnx.export(network, torch.zeros(1, 3, 224, 224), str(folder / "net.onnx"), dynamo=False)
    graph_platform = Platform("epyc-7763", "onnxruntime")
    fitted(2, [(graph_platform, 1.0)]).save(folder / "graph.safetensors")
    for name in ("measured", "mine"):
        write_measured(folder / name, [(graph_platform, 1.0)])
    save_nodes(folder / "mixed.zip", {graph_platform: True})
    for name, platform in (("xeon", "xeon"), ("epyc", "epyc"), ("monday", "epyc"), ("tuesday", "epyc")):
        save_nodes(folder / f"{name}.zip", {Platform(platform, "onnxruntime"): True}, count=10)
    shutil.copytree(folder / "measured" / "onnx", folder / "networks")
    for name, number in (("a.onnx", 1), ("b.onnx", 2)):
        shutil.copy(folder / "networks" / f"n{number}.onnx", folder / name)
    (folder / "nnlqp" / "onnx").mkdir(parents=True)
    shutil.copy(folder / "net.onnx", folder / "nnlqp" / "onnx" / "net.onnx")
    (folder / "nnlqp" / "gt.txt").write_text("1 onnx/net.onnx 1 3.5 net laptop\n")
    write_measured(folder / "elsewhere", [(Platform("xeon-6-167-1", "onnxruntime"), 1.0)])
    run("dataset", "merge", folder / "elsewhere" / "gt.txt", "--out", folder / "networks.zip")
    keys = {"Conv-input:224x224x3-output:112x112x24": 1.5, "Logits-input:1x1x1536-output:1000": 0.9}
    (folder / "jetson.json").write_text(json.dumps(keys))
    elsewhere = ("--space", "none", "--unit", "ms", "--platform", "jetson", "--out", folder / "jetson-table.json")
    run("table", "import", folder / "jetson.json", *elsewhere)
    _write_latencies(folder, layers)
    _write_operators(folder)
    _write_own_space(folder)
    kinds, sampling = find_types(["conv_bn_relu"], load_kernel_types()), Sampling(10, iteration=0)
    build_predictors(
        kinds, runtime, folder / "platform.kernels.json", protocol=protocol, sampling=sampling, store="memory"
    )
    run("learn", "energy", f"a30={folder}/a30_operators.csv", "--training", "trees=5", "--out", folder / "energy.json")
    for name in ("mine.sqlite", "theirs.sqlite", "colleague.sqlite"):
        DatabaseStore(str(folder / name)).close()
    _write_campaign(folder)
    issued = ApiKeys([])
    issued.add("alice", "read")
    issued.save(folder / "keys.json")


def _write_campaign(folder):
    """Measure a table into the database that the commands read."""
    plan = FBNetSpace(num_classes=10, input_size=32, width=0.25, depth=0.25).measure_plan()
    runtime = FakeRuntime(lambda op: 2e-6 + 3e-11 * features_of(op).flops, platform=Platform(DEVICE, "torch"))
    store = DatabaseStore(str(folder / "mine.sqlite"))
    build_table(plan, runtime, Protocol(n_warmup=0, rounds=1, time_budget=600.0), folder / "small.json", store=store)
    store.close()


def names_of_code():
    """Return what code takes as known."""
    draw = np.random.default_rng(0)
    space, architectures = FBNetSpace(), draw.integers(0, 9, (200, 22))
    seconds = 1e-3 + (draw.uniform(1e-4, 1e-3, (22, 9))[np.arange(22), architectures]).sum(axis=1)
    network, inputs = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval(), torch.zeros(1, 3, 224, 224)
    return {
        "__name__": "documented",
        "torch": torch,
        "FBNet": FBNet,
        "TableEstimator": TableEstimator,
        "platform": Platform("epyc-7763", "torchscript"),
        "network": network,
        "inputs": inputs,
        "ops": [item.op for item in trace(network, inputs).operators],
        "block": torch.nn.Conv2d(64, 64, 3),
        "space": space,
        "sample": draw_samples(space, 1, 0)[0],
        "architectures": architectures,
        "seconds": seconds,
        "measured": 2 * seconds[:10],
    }


def _write_operators(folder):
    """Write measured operators as a table and as a profile."""
    rows = [f'ReLU(),"(1, {2**power})",{1e-6 + 2**power * 1e-9},{power}' for power in range(6, 18)]
    header = "operator,input_shape,latency_s,energy_mj"
    (folder / "a30_operators.csv").write_text("\n".join([header, *rows]) + "\n")
    network = torch.nn.Sequential(*(torch.nn.Linear(size, 2 * size) for size in (4, 8, 16, 32, 64, 128)))
    runtime = FakeRuntime(lambda op: 1e-6 * op.input_shapes[0][-1])
    profile = profile_operators(
        [own_model("net", network, torch.zeros(1, 4))],
        runtime,
        protocol=Protocol(n_warmup=0, rounds=1, time_budget=1e9),
        target=1.0,
        store="memory",
        timer=lambda: runtime.clock.now,
        meters=(FakeMeter(runtime.clock),),
    )
    for name in ("here", "a", "b"):
        profile.save(folder / f"operators.{name}.b32.json")


def _write_own_space(folder):
    """Write the space of docs/spaces.rst, its table by the code of the page, and a sample."""
    home = folder / "path" / "to"
    home.mkdir(parents=True, exist_ok=True)
    page = [code for code in codes() if code.place.startswith("spaces.rst:")]
    (space,) = (code.text for code in page if code.file == "my_space.py")
    (table,) = (code.text for code in page if "from_latencies" in code.text)
    (home / "my_space.py").write_text(space)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [str(home), *sys.path])
        exec(compile(table, "spaces.rst", "exec"), {})
        sys.modules.pop("my_space")
    (folder / "found.json").write_text('{"width": 32, "block0": "large", "block1": "small", "block2": "small"}')


def _write_latencies(folder, layers):
    """Write 60 networks, two known devices and a new one, as ``transfer`` reads them."""
    draw = np.random.default_rng(0)
    networks, base = draw.integers(0, 9, (60, len(layers))), draw.uniform(1, 5, (len(layers), 9))
    known, other, new = (2 + (base**power)[np.arange(len(layers)), networks].sum(axis=1) for power in (1.0, 0.6, 0.8))
    for name, header, rows in (
        ("A.csv", layers, networks),
        ("L.csv", ["laptop", "phone"], np.stack([known, other], axis=1)),
        ("T.csv", ["board"], new[:, None]),
    ):
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows(
                [["index", *header], *([place, *row] for place, row in enumerate(rows.tolist()))]
            )
