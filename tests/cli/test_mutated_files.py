# SPDX-License-Identifier: Apache-2.0
"""A valid file of every kind that a command reads, damaged 2,000 times: it is read, or refused in one sentence.

To repeat what a failure names, set ``MUTATION_SEED``; more or fewer mutations are made with ``MUTATIONS``.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
import signal
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch
from measured_graphs import FAST, SLOW, save_nodes, write_measured
from mutations import (
    change_archive,
    change_json,
    change_numpy,
    change_onnx,
    change_safetensors,
    change_sqlite,
    change_text,
    damage,
)
from onnx import helper
from tiny import TINY, TINY_KWARGS, make_table
from torch import nn
from written_files import write_files

from nni_latency.database import DatabaseStore, DatabaseWarning
from nni_latency.errors import LatencyError
from nni_latency.measurement import CampaignHeader, Failure, Protocol, Record, Subject
from nni_latency.operators import export_onnx
from nni_latency.platforms import Platform
from nni_latency.spaces import FBNetSpace
from nni_latency.tables.formats import FORMATS, export_table, import_table

_SEED = int(os.environ.get("MUTATION_SEED", "0"))

#: Mutations of all kinds together.
_COUNT = int(os.environ.get("MUTATIONS", "1000"))

#: Longest time of the processor that a command may take for a small file [s].
_LONGEST = 20


class _Hang(BaseException):
    """A command takes too long; nothing that handles errors handles this."""


def _write_database(path):
    store = DatabaseStore(str(path))
    header = CampaignHeader("networks", {"space": "tiny"}, Platform("device-1", facts={"memory": 8}), Protocol())
    with store.campaign(header, fresh=False) as log:
        log.admit(Subject("net", dict, (1,), "network", "digest-net", {"graph": {"nodes": []}}))
        log.admit(Subject("stem", dict, (1,), "candidate", "digest-stem"))
        for number in range(4):
            log.append(
                Record(0.5, ((0.25, 0.75),), {"latency": (0.001,)}, ("net", "stem"), number, 0, 0.1, 1.7e9 + number)
            )
        log.fail(Failure("stem", "it raised"))
        log.note("before", {"load": 0.5})
    store.close()
    return path


def _write_exported(path):
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU6(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8 * 7 * 7, 4))
    path.write_bytes(export_onnx(network.eval(), [torch.zeros(1, 3, 16, 16)]).model.SerializeToString())
    return path


def _write_built(path):
    def constant(name, values, kind=np.float32):
        return onnx.numpy_helper.from_array(np.asarray(values, kind), name)

    body = helper.make_graph(
        [helper.make_node("Relu", ["b"], ["c"]), helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in
         (("i", 7, []), ("go", 9, []), ("b", 1, [1, 4, 6, 6]))],
        [helper.make_tensor_value_info("on", 9, []), helper.make_tensor_value_info("c", 1, [1, 4, 6, 6])],
    )  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="conv", pads=[0, 0, 0, 0], strides=[1, 1]),
        helper.make_node("Clip", ["a", "low", "high"], ["k"], name="clip"),
        helper.make_node("Loop", ["trips", "", "k"], ["l"], name="loop", body=body),
        helper.make_node("Reshape", ["l", "shape"], ["r"], name="reshape"),
        helper.make_node("LSTM", ["r", "lw", "lr"], ["", "h"], name="lstm", hidden_size=5),
        helper.make_node("Softmax", ["h"], ["y"], name="softmax", axis=-1),
    ]
    weights = [
        *(constant("w", np.ones((4, 3, 3, 3))), constant("low", 0.0), constant("high", np.inf)),
        *(constant("trips", 3, np.int64), constant("shape", [1, 4, 36], np.int64)),
        *(constant("lw", np.ones((1, 20, 36))), constant("lr", np.ones((1, 20, 5)))),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", 1, [1, 4, 1, 5])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path.write_bytes(model.SerializeToString())
    return path


def _write_columns(path):
    rows = [[place, 1.0 + place, 2.0 + place] for place in range(40)]
    path.write_text("index,a,b\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return path


def _write_networks(path):
    random_layers = np.random.default_rng(0).integers(0, 9, (40, 7)).tolist()
    lines = ["index," + ",".join(f"layer{layer}" for layer in range(7))]
    path.write_text("\n".join([*lines, *(",".join(map(str, [n, *row])) for n, row in enumerate(random_layers))]) + "\n")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write a file of every kind."""
    folder = tmp_path_factory.mktemp("valid")
    for name, path in write_files(folder).items():
        (folder / name).write_bytes(Path(path).read_bytes())
    save_nodes(folder / "nni_latency.networks", {FAST: True, SLOW: False}, 3)
    table = make_table(FBNetSpace(**TINY))
    table.save(folder / "table.json")
    for name in FORMATS:
        export_table(table, name, unit="ms", out=folder / f"table.{name}")
    keys = ("Conv-input:32x32x3-output:32x32x16", "Logits-input:1x1x1536-output:10")
    (folder / "operators.ofa").write_text(json.dumps({key: {"mean": 1.0, "std": 0.1, "count": 5} for key in keys}))
    (folder / "sample.json").write_text(json.dumps({f"layer{layer}": "k3_e1" for layer in range(7)}))
    (folder / "names.json").write_text(json.dumps(keys))
    np.save(folder / "grid.npy", np.arange(1, 64, dtype=float).reshape(7, 9))
    for name, write in _OTHERS.items():
        write(folder / name)
    write_measured(folder / "nnlqp")
    return folder


_OTHERS = {
    "store.sqlite": _write_database,
    "exported.onnx": _write_exported,
    "built.onnx": _write_built,
    "columns.csv": _write_columns,
    "networks.csv": _write_networks,
}

_OUT = ("--out", "out", "--overwrite")
_TINY_SPACE = ["--space-args", "input_size=32,num_classes=10,width=0.25,depth=0.25"]
_DATABASE = ("--database", "new.sqlite")


def _onnx_commands(folder):
    predictor = folder / "nni_latency.graph_predictor"
    return [
        ["predict", "FILE", "-e", predictor, "--format", "json"],
        ["query", "FILE", "-e", predictor, "--measure", "never", *_DATABASE, "--format", "json"],
        ["predict", "FILE", "--latency-estimator", folder / "nni_latency.energy", "--format", "json"],
        ["profile", "FILE", "--format", "json"],
    ]


def _imports(name):
    # The command makes the space anew every time, which takes most of a second.
    return [
        ["table", "import", "FILE", "--space", "none", "--unit", "ms", *_OUT],
        ["table", "import", "FILE", "--space", "none", "--unit", "ms", "--format", name, *_OUT],
        ["library", lambda path: import_table(path, _plan(), unit="ms", file_format=name)],
    ]


@functools.cache
def _plan():
    return FBNetSpace(**TINY).measure_plan()


def _call(function, path):
    """Call a function that a command calls; return what the command would end with."""
    try:
        function(path)
    except LatencyError as error:
        return SimpleNamespace(exception=None, exit_code=2, stderr=f"Error: {error}\n")
    return SimpleNamespace(exception=None, exit_code=0)


def _show(*more):
    return lambda folder: [
        ["show", "FILE", "--format", "json"],
        ["show", "FILE"],
        ["show", "FILE", "--format", "csv"],
        *more,
    ]


_AS_ESTIMATOR = ["predict", "fbnet@0,0,0,0,0,0,0", *TINY_KWARGS, "-e", "FILE", "--format", "json"]
_ONNX_ESTIMATOR = ["predict", "exported.onnx", "--latency-estimator", "FILE", "--format", "json"]

#: By file: how it is mutated, and the commands that read it.
_KINDS = {
    **{
        f"nni_latency.{name}": ((change_json,), _show())
        for name in (
            *("validation", "benchmark_points", "search", "fusion", "kernel_prior", "operator_profile"),
            *("lookup_table", "transfer"),
        )
    },
    **{
        f"nni_latency.{name}": ((change_json,), _show(_ONNX_ESTIMATOR)) for name in ("acts", "energy", "kernels")
    },
    "table.json": (
        (change_json,),
        _show(
            _AS_ESTIMATOR,
            ["table", "merge", "FILE", "table.json", *_OUT],
            ["table", "scale", "FILE", "--factor", "2", *_OUT],
            ["diff", "FILE", "table.json", "--format", "json"],
            ["table", "export", "FILE", "--format", "csv", "--unit", "ms", *_OUT],
        ),
    ),
    "nni_latency.graph_predictor": (
        (change_safetensors,),
        _show(["predict", "exported.onnx", "-e", "FILE", "--format", "json"]),
    ),
    "nni_latency.networks": (
        (change_archive,),
        _show(["dataset", "merge", "FILE", "nni_latency.networks", "--conflict", "first", *_OUT]),
    ),
    **{f"table.{name}": ((change_text,), lambda _, name=name: _imports(name)) for name in FORMATS},
    "table.ofa": ((change_json,), lambda _: _imports("ofa")),
    "table.lists": ((change_json,), lambda _: _imports("lists")),
    "table.npy": ((damage,), lambda _: _imports("npy")),
    "grid.npy": ((change_numpy,), lambda _: _imports("npy")),
    "operators.ofa": (
        (change_json, change_text),
        lambda _: [["table", "import", "FILE", "--space", "none", "--unit", "ms", *_OUT]],
    ),
    "sample.json": (
        (change_json,),
        lambda _: [["predict", "fbnet@FILE", *TINY_KWARGS, "-e", "table.json"]],
    ),
    "names.json": (
        (change_json, change_text),
        lambda _: [["predict", "operators@FILE", "-e", "nni_latency.energy"]],
    ),
    "store.sqlite": (
        (change_sqlite,),
        lambda _: [
            ["db", "info", "--database", "FILE", "--format", "json"],
            ["db", "query", "--database", "FILE", "--format", "json"],
            ["db", "import", "FILE", *_DATABASE],
            ["db", "merge", "FILE", *_OUT],
            ["db", "export", "--database", "FILE", "--out", "out.csv", "--overwrite"],
            ["db", "prune", "--database", "FILE", "--keep-latest", "1", "--yes"],
        ],
    ),
    "exported.onnx": ((change_onnx,), _onnx_commands),
    "built.onnx": ((change_onnx, change_onnx, change_onnx), _onnx_commands),
    "columns.csv": (
        (change_text,),
        lambda _: [["learn", "transfer", *_TINY_SPACE, "--architectures", "networks.csv", "--from", "FILE", *_OUT]],
    ),
    "networks.csv": (
        (change_text,),
        lambda _: [["learn", "transfer", *_TINY_SPACE, "--architectures", "FILE", "--from", "columns.csv", *_OUT]],
    ),
}  # fmt: skip


def _no_number(text):
    raise ValueError(f"{text} is no JSON")


def _fault(invoke, command, path):
    """Run a command on a mutated file; return what is wrong with what it did, or None."""
    signal.setitimer(signal.ITIMER_PROF, _LONGEST)
    try:
        with warnings.catch_warnings():
            # Rows that make no sense are told, and the others are read.
            warnings.simplefilter("ignore", DatabaseWarning)
            if command[0] == "library":
                done = _call(command[1], path)
            else:
                done = invoke([str(part).replace("FILE", str(path)) for part in command])
    except _Hang:
        return f"takes more than {_LONGEST} s"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if not isinstance(done.exception, SystemExit | None):
        return f"{type(done.exception).__name__}: {done.exception}"
    if done.exit_code == 0:
        try:
            "--format", "json" in command and json.loads(done.stdout, parse_constant=_no_number)
        except ValueError as error:
            return f"prints no JSON: {error}"
        return None
    sentence = done.stderr.rpartition("\nError: ")[2].removeprefix("Error: ")
    # Files may be named by their place on the command line.
    if done.exit_code != 2 or "Traceback" in done.stderr or sentence.count("\n") != 1:
        return f"ends with {done.exit_code}: {done.stderr}"
    named = {part for part in command if isinstance(part, str) and Path(part).suffix} | {path.name, "Table 2 "}
    return None if any(name in sentence for name in named) else f"names no file: {sentence}"


def _stop(_number, _frame):
    raise _Hang


@pytest.fixture
def _alarm():
    before = signal.signal(signal.SIGPROF, _stop)
    yield
    signal.signal(signal.SIGPROF, before)


@pytest.mark.slow
@pytest.mark.usefixtures("_alarm")
@pytest.mark.parametrize("name", _KINDS)
def test_a_mutated_file_is_read_or_refused_in_one_sentence(invoke, folder, tmp_path, name):
    content, (changes, commands) = (folder / name).read_bytes(), _KINDS[name]
    for other in folder.iterdir():
        if other.is_file():
            (tmp_path / other.name).symlink_to(other)
    faults = []
    every = itertools.cycle(itertools.product((damage, *changes), commands(folder)))
    for number in range(_COUNT // len(_KINDS)):
        change, command = next(every)
        drawn = random.Random(f"{_SEED} {name} {number}")
        path = tmp_path / f"mutated{Path(name).suffix if name.endswith('onnx') else ''}"
        path.write_bytes(change(content, drawn))
        for old in ("new.sqlite", "out"):
            (tmp_path / old).unlink(missing_ok=True)
        fault = _fault(invoke, command, path)
        if fault is not None:
            faults.append(f"seed {_SEED}, {name}, mutation {number} by {change.__name__}: {command[0]} {fault}")
            if "KEEP" in os.environ:
                (Path(os.environ["KEEP"]) / f"{_SEED}-{number}-{name}").write_bytes(path.read_bytes())
    assert not faults, f"{len(faults)} faults: " + "\n".join(faults)
