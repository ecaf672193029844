# SPDX-License-Identifier: Apache-2.0
"""Benchmark binaries: what each prints, tables and measurements by binaries of the tests' own, and what goes wrong."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import stat
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from nni_latency.cli import PlatformOptions, make_runtime
from nni_latency.cli._measuring import DeviceOptions
from nni_latency.cli._search_measure import runtime_of
from nni_latency.devices import (
    DeviceError,
    PythonConnection,
    ShellFacts,
    Start,
    ToolBenches,
    ToolDevice,
    ToolRuntime,
    UnreadableError,
    Written,
    _waiting,
    parse_cores,
    read_tool,
    tensorrt_node,
    tool_of,
)
from nni_latency.errors import FileFormatError, InvalidValueError, LatencyError, MeasurementError
from nni_latency.loading import load_meter, load_runtime
from nni_latency.loading import make_runtime as make
from nni_latency.measurement import CandidateError, Protocol, Subject, cold_chain, measure_network
from nni_latency.operators import capture_operators
from nni_latency.tables import MeasurePlan, PlanCandidate, PlanLayer, SpaceReference, build_table
from nni_latency.testing import check_bench, check_runtime

_SHAPE = (1, 4, 8, 8)

_QUICK = Protocol(n_run=3, rounds=3, processes=1, half_width=0.0, time_budget=600.0, timeout=60.0)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    """Let tests that run at the same time be different devices."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def _conv(channels=4, size=3):
    return nn.Sequential(nn.Conv2d(4, channels, size, padding=size // 2), nn.ReLU(), nn.Conv2d(channels, 4, 1))


def _subject(key, channels=4, size=3, kind="candidate"):
    return Subject(key, partial(_conv, channels, size), _SHAPE, kind)


def _refused():
    raise ValueError("it cannot be built")


def _plan(sizes=(4, 64)):
    """Plan two layers of two candidates each, of so many channels."""
    layers = [
        PlanLayer(
            f"layer{index}",
            {
                f"c{channels}": PlanCandidate(
                    capture_operators(_conv(channels), torch.zeros(_SHAPE))[0][1], partial(_conv, channels)
                )
                for channels in sizes
            },
        )
        for index in range(2)
    ]
    return MeasurePlan(SpaceReference("convolutions", {}), _SHAPE, tuple(layers))


def _start(**changes):
    usual = {
        "binary": "/opt/tool",
        "model": "/t/net/model.onnx",
        "folder": "/t/out",
        "shapes": [(1, 3, 224, 200)],
        "threads": 2,
        "precision": "fp32",
        "runs": 3,
        "warmups": 1,
    }
    return Start(**{**usual, **changes})


def _plugin(name, *packages):
    """Import a plugin, which need not be installed; skip where it lacks a package."""
    for package in packages:
        pytest.importorskip(package)
    folder = str(Path(__file__).parents[2] / "plugins" / name)
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


def _program(path, text, python=True):
    """Write a program of this machine."""
    head = f"#!{sys.executable} -SE\n" if python is True else f"#!{python}\n"
    path.write_text(head + textwrap.dedent(text))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


# What the tools print.

#: As the documentation of LiteRT has it, and as an older and a newer version print it.
_BENCHMARK_MODEL = {
    "old": (
        "count=1 curr=3512391\n\ncount=50 first=2990275 curr=2913402 min=2727568 max=3189954 avg=2.95034e+06 "
        "std=109798\n\nInference timings in us: Init: 17187, First inference: 3512391, Warmup (avg): 3.51239e+06, "
        "Inference (avg): 2.95034e+06\n",
        2.95034,
    ),
    "new": (
        "INFO: count=1 curr=1357602 p5=1357602 median=1357602 p95=1357602\n\nINFO: count=50 first=1249964 curr=1240143 "
        "min=1238588 max=1252566 avg=1.24027e+06 std=2565 p5=1238753 median=1239807 p95=1247415\n\nINFO: Inference "
        "timings in us: Init: 5579, First inference: 1357602, Warmup (avg): 1.3576e+06, Inference (avg): 1.24027e+06\n",
        1.239807,
    ),
}


@pytest.mark.parametrize("age", _BENCHMARK_MODEL)
def test_benchmark_model_is_read(age):
    printed, seconds = _BENCHMARK_MODEL[age]
    assert tool_of("benchmark_model").samples(Written(printed), _start()) == pytest.approx([seconds])


def test_benchmark_model_is_started_without_least_times():
    words = tool_of("benchmark_model").command(_start(model="/t/net/model.tflite", precision="fp16"))
    assert words[:5] == [
        "/opt/tool",
        "--graph=/t/net/model.tflite",
        "--num_threads=2",
        "--num_runs=3",
        "--warmup_runs=1",
    ]
    assert {"--min_secs=0", "--warmup_min_secs=0", "--xnnpack_force_fp16=true"} <= set(words)


def test_benchncnn_is_read():
    # After its source: name, then milliseconds with two decimals, on standard error.
    printed = "loop_count = 3\nnum_threads = 2\npowersave = 0\ngpu_device = -1\ncooling_down = 0\n"
    printed += "   /t/net/model.param  min =   12.34  max =   13.50  avg =   12.75\n"
    tool = tool_of("benchncnn")
    assert tool.samples(Written("", printed), _start()) == pytest.approx([0.01275])
    words = tool.command(_start(model="/t/net/model.param"))
    assert words == ["/opt/tool", "3", "2", "0", "-1", "0", "param=/t/net/model.param", "shape=[200,224,3]"]


def test_onnxruntime_perf_test_is_read():
    # After its source: a line for each run, and statistics behind them.
    rows = [f"net,{seconds},10240000,99,{run}" for run, seconds in enumerate((0.5, 0.021, 0.022, 0.023))]
    result = "\n".join([*rows, "", "Min Latency is 0.021 sec", ""]).encode()
    tool, start = tool_of("onnxruntime_perf_test"), _start()
    assert tool.samples(Written("", files={"result": result}), start) == pytest.approx([0.021, 0.022, 0.023])
    old = b"\n".join(b"net,%d,1,2,%d" % (21_000_000, run) for run in range(4))
    assert tool.samples(Written("", files={"result": old}), start) == pytest.approx([0.021] * 3)
    words = tool.command(_start(with_layers=True, is_first=True))
    assert words[-2:] == ["/t/net/model.onnx", "/t/out/result"]
    assert words[words.index("-r") + 1] == "4"
    assert words[words.index("-x") + 1] == "2"
    assert words[words.index("-p") + 1] == "/t/out/profile"
    assert list(tool.outputs(start)) == ["result"]


def test_trtexec_is_read():
    # As printed in public logs of trtexec 8 and 10.
    times = [
        {"startInMs": 1.0, "inMs": 0.0, "computeMs": 0.25, "outMs": 0.0, "latencyMs": 0.3, "endToEndMs": 0.4},
        {"startInMs": 2.0, "inMs": 0.0, "computeMs": 0.27, "outMs": 0.0, "latencyMs": 0.3, "endToEndMs": 0.4},
    ]
    profile = [
        {"count": 41400},
        {"name": "Reformatting CopyNode for Input Tensor 0 to /conv1/Conv", "timeMs": 36.6, "averageMs": 0.05},
        {"name": "/conv1/Conv + /act1/Relu", "timeMs": 1160.78, "averageMs": 0.0280382, "medianMs": 0.027872},
        {"name": "{ForeignNode[/a/Mul.../b/Add]}", "timeMs": 2.0, "averageMs": 0.002, "percentage": 100},
    ]
    files = {"times.json": json.dumps(times).encode(), "profile.json": json.dumps(profile).encode()}
    tool, written = tool_of("trtexec"), Written("", files=files)
    assert tool.samples(written, _start()) == pytest.approx([0.25e-3, 0.27e-3])
    (run,) = tool.layers(written, _start())
    assert [node.changes_layout for node in run.nodes] == [True, False, False]
    assert run.nodes[1].names[1:] == ["/conv1/Conv", "/act1/Relu"]
    assert run.nodes[2].names[1:] == ["/a/Mul", "/b/Add"]
    assert run.nodes[1].seconds == pytest.approx(0.0280382e-3)
    printed = "&&&& RUNNING TensorRT.trtexec [TensorRT v100300] # trtexec --help"
    assert tool.version(printed) == "10.3.0"
    assert tool.version("&&&& RUNNING TensorRT.trtexec [TensorRT v8503] #") == "8.5.3"


def test_layers_of_tensorrt_have_the_names_of_their_operators():
    """Names as TensorRT 8 gave them to GoogLeNet on a Jetson, in a public profile of trtexec."""
    nodes = [
        tensorrt_node(name, 1e-3)
        for name in (
            "conv1/7x7_s2 + conv1/relu_7x7 input reformatter 0",
            "pool2/3x3_s2 output reformatter 0",
            "inception_3a/1x1 + inception_3a/relu_1x1 || inception_3a/3x3_reduce + inception_3a/relu_3x3_reduce",
        )
    ]
    assert [node.changes_layout for node in nodes] == [True, True, False]
    assert nodes[0].names[1:] == ["conv1/7x7_s2", "conv1/relu_7x7"]
    assert nodes[1].names[1:] == ["pool2/3x3_s2"]
    assert nodes[2].names[1:] == [
        "inception_3a/1x1",
        "inception_3a/relu_1x1",
        "inception_3a/3x3_reduce",
        "inception_3a/relu_3x3_reduce",
    ]


def test_trtexec_builds_its_engine_once():
    tool = tool_of("trtexec")
    first = tool.command(_start(is_first=True, precision="fp16"))
    again = tool.command(_start(with_layers=True))
    assert {"--onnx=/t/net/model.onnx", "--saveEngine=/t/net/model.engine", "--fp16"} <= set(first)
    assert "--loadEngine=/t/net/model.engine" in again
    assert not any(word.startswith("--onnx") for word in again)
    assert "--exportProfile=/t/out/profile.json" in again


#: Recorded from benchmark_app of OpenVINO 2026.4.1.
_APP = {
    "benchmark_report.json": {
        "execution_results": {
            "total execution time (ms)": "1.02",
            "total number of iterations": "10",
            "latency (ms)": "0.08",
            "avg latency": "0.09",
        }
    },
    "benchmark_detailed_counters_report.json": {
        "report_type": "detailed",
        "detailed_performance": [
            {
                "nodes": [
                    {
                        "name": "input0",
                        "node_type": "Parameter",
                        "status": "Status.NOT_RUN",
                        "real_time": "0.000",
                    },
                    {
                        "name": "input0_abcd_acdb_/0/call0/Conv/WithoutBiases",
                        "node_type": "Reorder",
                        "status": "Status.EXECUTED",
                        "real_time": "0.004",
                    },
                    {
                        "name": "/0/call0/Conv/WithoutBiases",
                        "node_type": "Convolution",
                        "status": "Status.EXECUTED",
                        "real_time": "0.015",
                    },
                ]
            }
        ],
    },
}
_APP_GRAPH = (
    '<net><layers><layer id="3" name="/0/call0/Conv/WithoutBiases" type="Convolution"><data '
    'originalLayersNames="/0/call0/Conv/WithoutBiases,/0/call0/Conv,/1/call1/Relu" /></layer></layers></net>'
)


def test_own_nodes_of_openvino_have_the_names_of_their_readers():
    """Recurrent layers have names of OpenVINO's own, and nodes under a microsecond are reported as not run."""
    nodes = [
        ("input0", "Parameter", "NOT_RUN", "0.000", "unknown_f32"),
        ("LSTMSequence_480", "LSTMSequence", "EXECUTED", "0.030", "ref_any_f32"),
        ("/2/call2/MatMul", "FullyConnected", "EXECUTED", "0.004", "brgemm_avx512_f32"),
        ("/3/call3/Softmax", "Softmax", "NOT_RUN", "0.000", "jit_avx512_f32"),
        ("fused", "Reshape", "NOT_RUN", "0.000", "undef"),
    ]
    keys = ("name", "node_type", "status", "real_time", "exec_type")
    counters = {"detailed_performance": [{"nodes": [dict(zip(keys, node, strict=True)) for node in nodes]}]}
    layers = "".join(
        f'<layer id="{number}" name="{name}" type="{kind}"><data originalLayersNames="{name}" /></layer>'
        for number, (name, kind, *_) in enumerate(nodes[:4])
    )
    edges = "".join(f'<edge from-layer="{number}" to-layer="{number + 1}" />' for number in range(3))
    graph = f"<net><layers>{layers}</layers><edges>{edges}</edges></net>"
    files = {"benchmark_detailed_counters_report.json": json.dumps(counters).encode(), "graph.xml": graph.encode()}
    written = Written("[ INFO ]    Median:        42.00 us\n", files=files)
    (run,) = tool_of("benchmark_app").layers(written, _start())
    assert [node.seconds for node in run.nodes] == pytest.approx([31e-6, 5e-6, 0.5e-6])
    recurrent, product, last = (node.names for node in run.nodes)
    assert recurrent[0] == "LSTMSequence_480"
    assert recurrent[-1] == product[-1] == "/2/call2/MatMul"
    assert set(last) == {"/3/call3/Softmax"}


def test_benchmark_app_is_read():
    files = {name: json.dumps(content).encode() for name, content in _APP.items()}
    written = Written("[ INFO ]    Median:        82.95 us\n", files={**files, "graph.xml": _APP_GRAPH.encode()})
    tool = tool_of("benchmark_app")
    assert tool.samples(written, _start()) == pytest.approx([82.95e-6])
    (run,) = tool.layers(written, _start())
    # Times are cut to whole microseconds.
    assert [node.seconds for node in run.nodes] == pytest.approx([5e-6, 16e-6])
    assert [node.changes_layout for node in run.nodes] == [True, False]
    assert run.nodes[1].names[-1] == "/1/call1/Relu"
    # Where the median is printed with too few decimals.
    old = Written("[ INFO ]    Median:        0.08 ms\n", files=files)
    assert tool.samples(old, _start()) == pytest.approx([102e-6])
    assert tool.version("[ INFO ] Build ................................. 2026.4.1-22982-e213a147257") == "2026.4.1"


@pytest.mark.parametrize("name", ["benchmark_model", "benchncnn", "onnxruntime_perf_test", "trtexec", "benchmark_app"])
def test_what_cannot_be_read_is_named(name):
    tool = tool_of(name)
    with pytest.raises(UnreadableError, match=r"its output has no '|it has not written the file "):
        tool.samples(Written("Segmentation fault"), _start())
    rubbish = Written("", files=dict.fromkeys(tool.outputs(_start(with_layers=True)), b"rubbish"))
    with pytest.raises(UnreadableError):
        tool.samples(rubbish, _start())
    if tool.gives_layers and tool.plugin is None:
        with pytest.raises(UnreadableError):
            tool.layers(rubbish, _start())


# A binary of the test's own that prints as benchncnn does: a network takes longer the more it has.

_NCNN = """
    import os, re, sys, time
    words = dict(word.split("=", 1) for word in sys.argv[6:])
    if words["param"] == "none.param":
        sys.exit(1)
    sizes = [int(size) for size in re.findall(r" 6=(\\d+)", open(words["param"]).read())]
    if 63 * 4 in sizes:
        sys.exit("ncnn has no layer for this")
    if 60 * 4 in sizes:
        print("a remark", flush=True)
        os.write(2, b"conv.cpp:3: Assertion `size > 0' failed.\\n")
        os.abort()
    if 62 * 4 in sizes:
        time.sleep(1e6)
    if 61 * 4 in sizes:
        print("and nothing else")
        sys.exit()
    ms = 1 + 0.01 * sum(sizes)
    print(f"{words['param']:>20}  min = {ms:7.2f}  max = {ms:7.2f}  avg = {ms:7.2f}", file=sys.stderr)
"""


@pytest.fixture(scope="module")
def ncnn(tmp_path_factory):
    _plugin("nni_latency_ncnn", "ncnn", "pnnx")
    binary = _program(tmp_path_factory.mktemp("device") / "benchncnn", _NCNN)
    made = make("benchncnn", f"python:{sys.executable}", binary=str(binary), precision="fp16")
    yield made
    made.close()


def test_binary_without_layers_keeps_the_contract(ncnn):
    assert not ncnn.supports_layer_timing
    check_runtime(ncnn)


def test_platform_is_that_of_the_device(ncnn):
    assert ncnn.platform.runtime == "ncnn"
    assert ncnn.platform.precision == "fp16"
    assert ncnn.platform.facts["runtime.tool"] == "benchncnn"
    assert ncnn.platform.facts["machine"] == os.uname().machine
    assert ncnn.conditions().load is not None
    assert isinstance(ncnn.benches(), ToolBenches)
    with pytest.raises(MeasurementError, match="constant:15 reads this machine"):
        ncnn.benches([load_meter("constant:15")])
    with pytest.raises(MeasurementError, match="benchncnn runs networks alone"):
        ncnn.speeds()


@pytest.mark.slow
def test_table_is_solved_from_whole_networks(ncnn, tmp_path):
    table = build_table(_plan(), ncnn, _QUICK, tmp_path / "t.json", store="memory")
    assert table.coverage == 1
    values = [[entry.value for entry in layer.entries.values()] for layer in table.layers]
    # 60 filters more, of 4 x 3 x 3 and of 4 numbers, at a hundredth of a millisecond.
    assert np.diff(values, axis=1).ravel() == pytest.approx([0.01e-3 * 60 * 40] * 2, rel=0.05)


def test_network_is_measured_and_sent_once(ncnn):
    found = measure_network(_conv(40).eval(), _SHAPE, ncnn, _QUICK)
    assert found.samples == pytest.approx([1e-3 + 0.01e-3 * 40 * 40] * len(found.samples))
    before = ncnn.device.sent
    with ncnn.benches().open(_QUICK) as bench:
        bench.admit(_subject("a", 40, kind="network"))
        sent = ncnn.device.sent
        bench.visit(["a"])
        bench.visit(["a"])
    assert 0 < before <= sent
    assert ncnn.device.sent == sent


@pytest.mark.parametrize(
    ("channels", "reason"),
    [
        (60, r"benchncnn crashed \(SIGABRT\): conv\.cpp:3: Assertion `size > 0' failed"),
        (61, r"benchncnn ended, but its output has no 'avg = NUMBER'; the last line is 'and nothing else'"),
        (62, r"benchncnn did not end within 1 s"),
        (63, r"benchncnn failed with code 1: ncnn has no layer for this"),
    ],
)
def test_network_that_fails_says_why(channels, reason, ncnn):
    # Only the one that hangs is waited for.
    protocol = Protocol(n_run=2, processes=1, timeout=1.0 if "end within" in reason else 60.0)
    with ncnn.benches().open(protocol) as bench, pytest.raises(CandidateError, match=reason):
        bench.admit(_subject("bad", channels, kind="network"))


def test_one_process_measures_at_a_time(tmp_path, monkeypatch):
    if shutil.which("flock") is None:
        pytest.skip("this machine has no flock")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    path = tmp_path / "t.toml"
    path.write_text(_TOML.partition("[samples]")[0] + '[samples]\npattern = "(.*) us"\nunit = "us"\n')
    binary, waits = str(_program(tmp_path / "tool", 'print("1 us")')), []
    first, second = (
        ToolRuntime(ToolDevice(PythonConnection(sys.executable), read_tool(path), binary, on_wait=on_wait))
        for on_wait in (waits.append, lambda sentence: (waits.append(sentence), opened.close()))
    )
    opened = first.benches().open(_QUICK)
    with contextlib.ExitStack() as stack:
        stack.enter_context(opened)
        opened.close = stack.close
        with second.benches().open(_QUICK) as bench:
            bench.admit(_subject("a", kind="network"))
    assert waits == [f"Waiting for python:{sys.executable}: another process measures there"]
    first.close()
    second.close()


class _Plain(PythonConnection):
    """A device without the programs that are used where they are."""

    def run(self, command, *, data=b"", timeout=60.0):
        """Find no program but what a shell has."""
        script = command[2].replace("command -v $p", "false") if command[:2] == ["sh", "-c"] else ""
        return super().run([*command[:2], script, *command[3:]] if script else command, data=data, timeout=timeout)


def test_device_with_a_shell_alone_is_enough(tmp_path):
    _plugin("nni_latency_ncnn", "ncnn", "pnnx")
    binary = str(_program(tmp_path / "benchncnn", _NCNN))
    connection = _Plain(sys.executable)
    runtime = ToolRuntime(ToolDevice(connection, tool_of("benchncnn"), binary, precision="fp16"))
    assert not any(runtime.device.known.has(name) for name in ("timeout", "taskset", "gzip"))
    with runtime.benches().open(_QUICK) as bench:
        bench.admit(_subject("a", kind="network"))
        assert min(bench.visit(["a"]).whole) > 0
    with (
        runtime.benches().open(replace(_QUICK, timeout=2.0)) as bench,
        pytest.raises(CandidateError, match="benchncnn did not end within 2 s"),
    ):
        bench.admit(_subject("bad", 62, kind="network"))
    runtime.close()
    with pytest.raises(DeviceError, match="has no taskset to choose cores"):
        ToolDevice(connection, tool_of("benchncnn"), binary, precision="fp16", cores=[0])


def test_disk_that_is_full_ends_it(tmp_path):
    _plugin("nni_latency_ncnn", "ncnn", "pnnx")

    class Full(PythonConnection):
        def send(self, content, path, *, timeout=3600.0):
            raise DeviceError(f"{self.description} cannot write {path!r}: No space left on device.")

    binary = str(_program(tmp_path / "benchncnn", _NCNN))
    runtime = ToolRuntime(ToolDevice(Full(sys.executable), tool_of("benchncnn"), binary, precision="fp16"))
    with runtime.benches().open(_QUICK) as bench, pytest.raises(DeviceError, match="No space left on device"):
        bench.admit(_subject("a", kind="network"))
    runtime.close()


def test_nothing_is_left_on_the_device(tmp_path, monkeypatch):
    _plugin("nni_latency_ncnn", "ncnn", "pnnx")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    binary = _program(tmp_path / "benchncnn", _NCNN)
    runtime = make("benchncnn", "cpu", binary=str(binary), precision="fp16")
    measure_network(_conv().eval(), _SHAPE, runtime, _QUICK)
    assert list((tmp_path / "tmp").glob("nni_latency.*"))
    runtime.close()
    assert not list((tmp_path / "tmp").glob("nni_latency.*"))


def test_nothing_is_left_by_a_process_that_is_killed(tmp_path):
    binary = _program(tmp_path / "trtexec", "")
    script = f"""
    import os, signal, sys
    from nni_latency.devices import PythonConnection, ToolDevice, tool_of
    device = ToolDevice(PythonConnection(sys.executable), tool_of("trtexec"), {str(binary)!r})
    print(os.path.isdir(device.folder), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("True\n", -9), done.stderr
    limit = time.monotonic() + 60
    while list(tmp_path.glob("nni_latency.*")) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not list(tmp_path.glob("nni_latency.*"))


class _Rebooting(PythonConnection):
    """A device that is lost, and comes back without its temporary folders."""

    lost, unreached = False, 0

    def run(self, command, *, data=b"", timeout=60.0):
        """Fail once in a start of the tool, or in all that is run."""
        if self.unreached:
            self.unreached -= 1
            raise DeviceError(f"{self.description} did not answer.")
        if self.lost and any("param=" in word and "none" not in word for word in command):
            self.lost = False
            folder = Path(command[3]).parent
            super().run(["rm", "-rf", str(folder)])
            raise DeviceError(f"{self.description} did not answer.")
        return super().run(command, data=data, timeout=timeout)


def test_device_that_was_lost_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(_waiting, "_FIRST_PAUSE", 0.05)
    _plugin("nni_latency_ncnn", "ncnn", "pnnx")
    waits = []
    connection = _Rebooting(sys.executable)
    binary = str(_program(tmp_path / "benchncnn", _NCNN))
    device = ToolDevice(connection, tool_of("benchncnn"), binary, precision="fp16", on_wait=waits.append)
    runtime = ToolRuntime(device)
    with runtime.benches().open(_QUICK) as bench:
        bench.admit(_subject("a", kind="network"))
        connection.lost = True
        assert min(bench.visit(["a"]).whole) > 0
        # Through several attempts, and the reason is given once.
        connection.unreached = 9
        assert min(bench.visit(["a"]).whole) > 0
        device.patience, connection.lost = 0.0, True
        with pytest.raises(DeviceError, match=r"^The device did not come back within 0 s \(.* did not answer\)"):
            bench.visit(["a"])
    assert waits == [f"Waiting for the device: python:{sys.executable} did not answer"] * 2
    runtime.close()


# A tool of a user.

_OWN = """
    import json, sys
    options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
    if "-m" not in options:
        print("usage: mine, version 3.2.1")
        sys.exit()
    import re
    data = open(options["-m"], "rb").read()
    names = list(dict.fromkeys(name.decode() for name in re.findall(rb"[\\w/]*call\\d+/(?:Conv|Relu)", data)))
    nodes = [{"layer": name, "us": 10.0 * (1 + name.endswith("Conv"))} for name in names]
    whole = [sum(node["us"] for node in nodes) / 1000 + 0.001 for _ in range(int(options["-n"]))]
    with open(options["-o"], "w") as file:
        json.dump({"threads": options["-t"], "runs": whole, "nodes": nodes}, file)
"""

_TOML = """
name = "mine"
format = "onnx"
command = ["{binary}", "-m", "{model}", "-n", "{runs}", "-t", "{threads}", "-o", "{output}"]
precisions = ["fp32", "fp16"]

[samples]
source = "file"
json = "runs"
unit = "ms"

[layers]
source = "file"
json = "nodes"
name = "layer"
time = "us"
unit = "us"
"""


@pytest.fixture
def own(tmp_path):
    binary = _program(tmp_path / "mine", _OWN)
    (tmp_path / "mine.toml").write_text(_TOML)
    made = make("tool", "cpu", file=str(tmp_path / "mine.toml"), binary=str(binary))
    yield made
    made.close()


def test_users_tool_keeps_the_contracts(own):
    check_runtime(own)
    broken = Subject("broken", _refused, _SHAPE, "candidate")
    check_bench(own.benches().open(_QUICK), [_subject("a"), _subject("b", 8)], broken)


def test_users_tool_times_layers(own, tmp_path):
    assert own.supports_layer_timing
    assert (own.name, own.platform.facts["runtime.tool"]) == ("mine", "tool")
    with own.benches().open(_QUICK) as bench:
        for subject in (_subject("a"), _subject("b", 8)):
            bench.admit(subject)
        visit = bench.visit(["a", "b"])
    # Two convolutions and an activation each; what lies outside belongs to the first.
    assert visit.parts == [pytest.approx([51e-6, 50e-6])]
    table = build_table(_plan(), own, _QUICK, tmp_path / "t.json", store="memory")
    assert table.coverage == 1
    assert all(40e-6 < entry.value < 60e-6 for layer in table.layers for entry in layer.entries.values())
    again = DeviceOptions("cpu", (("file", "f.toml"),)).of(table.platform)
    assert (again.runtime, again.runtime_options) == ("tool", (("file", "f.toml"),))


def test_operator_behind_a_flush_is_refused(own):
    chain = cold_chain("relu", nn.ReLU, [_SHAPE])
    with own.benches().open(_QUICK) as bench, pytest.raises(CandidateError, match="tool runs whole networks"):
        for subject in chain:
            bench.admit(subject)
        bench.visit([subject.key for subject in chain])


_PRINTS = """
    import json, sys
    if "--help" in sys.argv:
        sys.exit()
    open(sys.argv[-1], "w").write(json.dumps(sys.argv))
    print("it took 2.5 us and 3 us")
"""


def test_nothing_of_a_file_passes_a_shell(tmp_path):
    evil = 'a\'b "c" $(touch pwned) `touch pwned`; touch pwned | tee pwned > pwned & * ~ \\ \n {model} {binary}'
    folder = tmp_path / "it's; touch pwned $(touch pwned)"
    folder.mkdir()
    binary, record = _program(folder / "tool & touch pwned", _PRINTS), tmp_path / "argv.json"
    sent = folder / "library $(touch pwned).so"
    sent.write_text("x")
    described = {
        "name": "mine",
        "format": "onnx",
        "command": ["{binary}", evil, "{precision}", "{model}", "{threads}", str(record)],
        "files": [sent.name],
        "precisions": ["fp32"],
        "samples": {"pattern": r"([0-9.]+) us", "unit": "us"},
    }
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in described.items() if key != "samples")
    text += "[samples]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in described["samples"].items())
    (folder / "t.toml").write_text(text)
    runtime = make("tool", "cpu", file=str(folder / "t.toml"), binary=str(binary), threads=2)
    with runtime.benches().open(_QUICK) as bench:
        bench.admit(_subject("a", kind="network"))
        assert bench.visit(["a"]).whole == pytest.approx([2.5e-6, 3e-6])
        beside = Path(json.loads(record.read_text())[3]).parent / sent.name
        assert beside.read_text() == "x"
    found = json.loads(record.read_text())
    model = found[3]
    assert found[0] == str(binary)
    assert found[1] == evil.replace("{model}", model).replace("{binary}", str(binary))
    assert found[2:] == ["fp32", model, "2", str(record)]
    runtime.close()
    assert not list(tmp_path.rglob("pwned"))
    assert not Path("pwned").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("name = ", "nam = "), r"does not describe a tool: .*nam"),
        (('unit = "ms"', 'unit = "hours"'), r"samples.*unit"),
        (('json = "runs"', 'pattern = "([0-9"'), r"samples.*'pattern' is no regular expression"),
        (('json = "runs"', 'pattern = "[0-9]+"'), r"samples.*needs a group around the number"),
        (('json = "runs"\n', ""), r"samples.*give either 'pattern' or 'json'"),
        (("{runs}", "{rounds}"), r"placeholder \{rounds\}; those that there are: \{binary\}, \{model\}"),
        (('"{model}", ', ""), r"the command needs \{model\}"),
        (('"fp16"', '"fp17"'), r"'precisions' has 'fp17'"),
        (('"onnx"', '"ncnn"'), r"'layers' needs the format onnx"),
        (('"onnx"', '"caffe"'), r"format"),
        (("command = [", "command = {"), r"is no TOML: "),
        (('json = "nodes"', 'pattern = "(a)(b)"'), r"needs the groups \(\?P<name>"),
    ],
)
def test_file_that_describes_no_tool_is_refused(change, sentence, tmp_path):
    path = tmp_path / "t.toml"
    assert change[0] in _TOML
    path.write_text(_TOML.replace(*change))
    with pytest.raises(FileFormatError, match=f"(?s)t.toml .*{sentence}"):
        read_tool(path)


def test_files_that_do_not_exist_are_named(tmp_path):
    with pytest.raises(InvalidValueError, match=r"none\.toml' cannot be read: .*No such file"):
        read_tool(tmp_path / "none.toml")
    path = tmp_path / "t.toml"
    path.write_text(_TOML.replace("precisions", 'files = ["lib.so"]\nprecisions'))
    with pytest.raises(InvalidValueError, match=r"t\.toml sends the file '.*lib\.so', which does not exist"):
        read_tool(path)


@pytest.mark.parametrize(
    ("place", "printed", "reason"),
    [
        ({"json": "runs"}, "nothing", "its output is no JSON"),
        ({"json": "runs.*.ms"}, 'x {"runs": []}', r"its JSON has nothing on the path 'runs\.\*\.ms'"),
        ({"json": "runs"}, '{"runs": ["a"]}', "'a' at 'runs' is not a number"),
        ({"pattern": "took (.*) ms"}, "took long ms", "something else than a number"),
        ({"pattern": "took (.*) ms"}, "nothing", r"its output has no match of 'took \(\.\*\) ms'"),
    ],
)
def test_output_of_users_tool_that_cannot_be_read(place, printed, reason, tmp_path):
    path = tmp_path / "t.toml"
    head = _TOML.partition("[samples]")[0]
    path.write_text(head + '[samples]\nunit = "ms"\n' + "".join(f"{k} = {json.dumps(v)}\n" for k, v in place.items()))
    with pytest.raises(UnreadableError, match=reason):
        read_tool(path).samples(Written(printed), _start())


# What goes wrong with a binary, and options.


def test_path_is_asked_for():
    with pytest.raises(
        InvalidValueError, match=r"The path of trtexec on the device is missing\. Give the option 'binary' of "
    ):
        load_runtime("trtexec")
    with pytest.raises(InvalidValueError, match=r"'tool' needs the TOML file .* as in file=TOOL\.toml"):
        load_runtime("tool")
    with pytest.raises(InvalidValueError, match=r"benchncnn computes in fp16\. .*Take fp16"):
        make("benchncnn", "cpu", binary="/bin/true")
    with pytest.raises(InvalidValueError, match=r"Got the device 'cuda'"):
        make("trtexec", "cuda", binary="/bin/true")


def test_binary_that_cannot_be_run_is_refused(tmp_path):
    where = f"python:{sys.executable}"
    plain = tmp_path / "plain"
    plain.write_text("x")
    # The head of a program for another processor.
    other = _program(tmp_path / "other", "")
    machine = 183 if os.uname().machine == "x86_64" else 62
    other.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00" + bytes([machine, 0]) + bytes(44))
    for path, sentence in (
        (tmp_path / "none", rf"{where} has no file '.*none'\. Copy trtexec there"),
        (tmp_path, r"is a folder\. Give the path of trtexec in it"),
        (plain, r"is not executable\. Run 'chmod \+x' on it there"),
        ("no-such-program-anywhere", r"has no program 'no-such-program-anywhere' on its path"),
        (other, r"cannot run '.*other': it is built for (aarch64|x86_64), and the device is "),
        (_program(tmp_path / "lost", "", python="/no/such/interpreter"), r"cannot run '.*lost': "),
    ):
        with pytest.raises(DeviceError, match=sentence):
            make("trtexec", where, binary=str(path))


def test_cores_are_chosen(tmp_path):
    binary = _program(
        tmp_path / "tool",
        """
        import os, sys
        print("%s us" % (1 + 10 * len(os.sched_getaffinity(0))))
        """,
    )
    path = tmp_path / "t.toml"
    path.write_text(
        'name = "mine"\nformat = "onnx"\ncommand = ["{binary}", "{model}"]\n[samples]\n'
        'pattern = "(\\\\d+) us"\nunit = "us"\n'
    )
    core = ShellFacts(PythonConnection(sys.executable)).processors[-1]
    runtime = make("tool", "cpu", file=str(path), binary=str(binary), cores=core)
    with runtime.benches().open(_QUICK) as bench:
        bench.admit(_subject("a", kind="network"))
        assert bench.visit(["a"]).whole == pytest.approx([11e-6])
    assert runtime.platform.facts["runtime.cores"] == runtime.platform.facts["cpu_affinity"] == str(core)
    assert DeviceOptions("cpu", ()).of(runtime.platform).runtime_options == (("cores", str(core)),)
    with pytest.raises(InvalidValueError, match=r"has the processors .*Got the cores 4000"):
        make("tool", "cpu", file=str(path), binary=str(binary), cores=4000)
    with pytest.raises(InvalidValueError, match=r"The option 'cores' must be .* Got 'big'"):
        parse_cores("big")
    runtime.close()


def test_command_line_takes_the_options(tmp_path):
    binary = _program(tmp_path / "mine", _OWN)
    (tmp_path / "mine.toml").write_text(_TOML)
    options = (("file", str(tmp_path / "mine.toml")), ("binary", str(binary)))
    runtime = make_runtime(PlatformOptions("cpu", "tool", options, "fp16", 1))
    assert runtime.platform.id.endswith(".mine.fp16.t1")
    with pytest.raises(
        LatencyError, match=r"The runtime 'tool' has no option 'speed'\. Its options: file, binary, cores"
    ):
        make_runtime(PlatformOptions("cpu", "tool", (("speed", 1),), "fp32", 1))


class _Phone(PythonConnection):
    """A phone, by what its shell prints."""

    printed = b""

    def run(self, command, *, data=b"", timeout=60.0):
        """Answer the question what it is."""
        done = super().run(["cat"], data=self.printed)
        assert command[:2] == ["sh", "-c"]
        return done


def test_facts_of_a_phone():
    mark = "=== nni_latency "
    texts = {
        "uname-s": "Linux",
        "uname-r": "4.14.117",
        "uname-m": "aarch64",
        "has-taskset": "",
        "ro.product.model": "Pixel 3",
        "/proc/cpuinfo": "processor\t: 0\nCPU implementer\t: 0x51\nCPU part\t: 0x803\nCPU revision\t: 12\n\n"
        "Hardware\t: Qualcomm Technologies, Inc SDM845",
        "/proc/meminfo": "MemTotal:        3753252 kB",
        "/sys/devices/system/cpu/online": "0-7",
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "schedutil",
        "/sys/devices/system/cpu/cpu4/cpufreq/scaling_cur_freq": "2803200",
        "/sys/class/thermal/thermal_zone0/temp": "41000",
        "/proc/loadavg": "1.25 1.0 0.9 1/2000 999",
    }
    phone = _Phone(sys.executable)
    phone.printed = "".join(f"{mark}{name}\n{text}\n" for name, text in texts.items()).encode()
    found = ShellFacts(phone)
    facts, conditions = found.facts(), found.conditions()
    assert facts["device_name"] == "Pixel 3"
    assert (facts["machine"], facts["system"], facts["cpu_count"]) == ("aarch64", "Linux 4.14.117", 8)
    assert facts["cpu_signature"] == "0x51-0x803-12"
    assert facts["memory"] == 3753252 * 1024
    assert "python" not in facts
    assert found.has("taskset")
    assert not found.has("timeout")
    assert (conditions.load, conditions.cpu_governor, conditions.cpu_temperature) == (1.25, "schedutil", 41.0)
    assert conditions.cpu_frequency == 2803200e3
    phone.printed = b"what?"
    with pytest.raises(DeviceError, match="has no POSIX shell with uname"):
        ShellFacts(phone)


# Real runtimes behind the binaries' options.

_PERF_TEST = """
    import json, os, sys, time
    if sys.argv[1:] == ["-h"]:
        sys.exit()
    import numpy, onnxruntime
    words = sys.argv[1:]
    value = lambda name: words[words.index(name) + 1] if name in words else None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = int(value("-x")), int(value("-y"))
    if value("-p"):
        options.enable_profiling, options.profile_file_prefix = True, value("-p")
    if value("-u"):
        options.optimized_model_filepath = value("-u")
        for entry in value("-C").split(" "):
            options.add_session_config_entry(*entry.split("|"))
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(words[-2], options, providers=["CPUExecutionProvider"])
    feed = {item.name: numpy.random.rand(*item.shape).astype("float32") for item in session.get_inputs()}
    session.run(None, feed)
    with open(words[-1], "a") as file:
        for run in range(int(value("-r"))):
            begin = time.perf_counter()
            session.run(None, feed)
            file.write("net,%r,1,2,%d\\n" % (time.perf_counter() - begin, run))
    if value("-p"):
        session.end_profiling()
"""


@pytest.mark.slow
def test_onnxruntime_behind_the_options_of_its_binary(tmp_path):
    plugin = _plugin("nni_latency_onnxruntime", "onnxruntime")
    binary = _program(tmp_path / "onnxruntime_perf_test", _PERF_TEST, python=sys.executable)
    device = ToolDevice(PythonConnection(sys.executable), tool_of("onnxruntime_perf_test"), str(binary))
    runtime = ToolRuntime(device, lambda place: plugin.OnnxRuntime(place=place))
    assert runtime.divides
    assert runtime.platform.facts["runtime.provider"] == "CPUExecutionProvider"
    broken = Subject("broken", _refused, _SHAPE, "candidate")
    protocol = Protocol(n_run=20, processes=1, timeout=60.0)
    # The second takes so much longer that no other process hides it.
    subjects = [_subject("a", 64), _subject("b", 4096)]
    check_bench(runtime.benches().open(protocol), subjects, broken)
    with runtime.benches().open(protocol) as bench:
        for subject in subjects:
            bench.admit(subject)
        visits = [bench.visit(["a", "b"]) for _ in range(2)]
    assert all(len(visit.whole) == len(visit.parts) == 20 for visit in visits)
    parts = np.array([run for visit in visits for run in visit.parts])
    first, second = np.median(parts, axis=0)
    assert 2 * first < second
    # Minima, because one process may have been interrupted more often than the other.
    assert abs(parts.sum(axis=1).min() / min(seconds for visit in visits for seconds in visit.whole) - 1) < 0.5
    runtime.close()


@pytest.mark.slow
def test_real_benchmark_app(tmp_path):
    binary = Path(sys.executable).with_name("benchmark_app")
    if not binary.exists():
        pytest.skip("the package openvino, which brings benchmark_app, is not installed")
    runtime = make("benchmark_app", "cpu", binary=str(binary))
    assert runtime.platform.facts["runtime.version"].startswith("20")
    check_runtime(runtime)
    protocol = Protocol(n_run=20, rounds=2, processes=1, half_width=0.0, time_budget=600.0, timeout=60.0)
    # The larger candidates take so much longer that no other process hides it.
    table = build_table(_plan((4, 2048)), runtime, protocol, tmp_path / "t.json", store="memory")
    assert table.coverage == 1
    assert table.platform.runtime == "openvino"
    for layer in table.layers:
        small, large = (entry.value for entry in layer.entries.values())
        assert 0 < small < large < 0.1
    runtime.close()
    # A search measures what it found with the binary of its table.
    with pytest.raises(InvalidValueError, match="The path of benchmark_app on the device is missing"):
        runtime_of(table.platform, "cpu")
    again = runtime_of(table.platform, "cpu", (("binary", str(binary)),))
    assert not table.platform.differences(again.platform)
    again.close()


_LITE = """
    import os, sys
    options = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
    if "--graph" not in options:
        sys.exit(1)
    us = 100 + os.path.getsize(options["--graph"]) / 100
    print(f"INFO: count=3 first={us} curr={us} min={us} max={us} avg={us} std=0 p5={us} median={us} p95={us}")
    print(f"INFO: Inference timings in us: Init: 1, First inference: 1, Warmup (avg): 1, Inference (avg): {us}")
"""


@pytest.mark.slow
@pytest.mark.skipif("NNI_LATENCY_LITERT_PYTHON" not in os.environ, reason="no Python with litert-torch: make converter")
def test_table_of_benchmark_model_is_solved_from_whole_networks(tmp_path):
    _plugin("nni_latency_litert", "ai_edge_litert")
    runtime = make("benchmark_model", "cpu", binary=str(_program(tmp_path / "benchmark_model", _LITE)))
    assert runtime.platform.facts["runtime.converter"]
    assert not runtime.supports_layer_timing
    table = build_table(_plan(), runtime, _QUICK, tmp_path / "t.json", store="memory")
    assert table.coverage == 1
    values = [[entry.value for entry in layer.entries.values()] for layer in table.layers]
    # 60 filters more, of 4 x 3 x 3, 4 and 1 numbers of 4 bytes, at a hundredth of a microsecond.
    assert np.diff(values, axis=1).ravel() == pytest.approx([0.01e-6 * 60 * 41 * 4] * 2, rel=0.05)
    runtime.close()
