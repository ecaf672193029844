# SPDX-License-Identifier: Apache-2.0
"""``nni-latency farm``, and the commands that measure on one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from documented import check_printed, shown
from farms import wait_until
from measured_graphs import write_measured
from nni_latency_farm.testing import FarmOfProcesses
from tiny import TINY, TINY_OPTIONS

from nni_latency.measurement import MemoryStore
from nni_latency.measurement.meters import ConstantMeter
from nni_latency.platforms import affinity
from nni_latency.spaces import FBNetSpace
from nni_latency.tables import LookupTable, build_table
from nni_latency.testing import FakeDevice

QUICK = ("--protocol", "rounds=3", "--budget", "60s", "--protocol", "half_width=0")


pytestmark = pytest.mark.usefixtures("forgotten_sockets")


@pytest.fixture(scope="module")
def farm(tmp_path_factory):
    """Two platforms of one device each: the device ``pi`` is there in two kinds."""
    with FarmOfProcesses(tmp_path_factory.mktemp("farm")) as made:
        made.join("one", partial(FakeDevice, "pi"), meters={"rapl": ConstantMeter(7)})
        made.join("two", partial(FakeDevice, "pi", threads=2))
        made.join("three", partial(FakeDevice, "mac", threads=2))
        made.join_fits("fitter", affinity()[:1])
        with made.client() as client:
            made.wait_for(3, client)
            wait_until(lambda: client.fitters() == ["fitter"])
        yield made


@pytest.mark.slow
def test_status_lists_the_workers(run, farm):
    shown = run("farm", "status", farm.address).stdout
    assert f"Workers of {farm.address}" in shown
    assert re.search(r"one\W+pi\.fake\.fp32\.t1\W+ready\W+0\W+0", shown)
    assert "Workers that fit predictors: fitter" in shown
    content = json.loads(run("farm", "status", farm.address, "--format", "json").stdout)
    assert content["fitters"] == ["fitter"]
    assert {worker["name"]: worker["state"] for worker in content["workers"]} == dict.fromkeys(
        ("one", "two", "three"), "ready"
    )


@pytest.mark.slow
def test_status_fits_a_narrow_terminal(run, farm, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, run("farm", "status", farm.address).stdout.splitlines())) <= 80


@pytest.mark.slow
def test_a_table_is_built_and_validated_on_a_farm(run, farm):
    run(
        "build-lut",
        *TINY_OPTIONS,
        "--runtime",
        "fake",
        "--remote",
        f"farm:{farm.address}",
        "--out",
        "table.json",
        *QUICK,
    )
    table = LookupTable.load("table.json")
    plan = FBNetSpace(**TINY).measure_plan()
    here = build_table(plan, FakeDevice("pi"), table.protocol, "here.json", store=MemoryStore())
    assert table.platform.id == "pi.fake.fp32.t1"
    assert [layer.entries for layer in table.layers] == [layer.entries for layer in here.layers]
    shown = run("validate", "table.json", "--networks", 3, "--remote", f"farm:{farm.address}", *QUICK[:4])
    assert "predicted against measured" in shown.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("words", "meter"), [([], "constant:7"), (["--meter", "constant:5"], "constant:5")])
def test_energy_is_read_by_the_workers(run, farm, words, meter):
    asked = [*TINY_OPTIONS, "--runtime", "fake", "--metric", "energy", *words]
    run("build-lut", *asked, "--remote", f"farm:{farm.address}", "--out", "energy.json", *QUICK)
    table = LookupTable.load("energy.json")
    assert table.metric == "energy"
    assert table.conditions["before"]["meter"] == meter
    shown = run("validate", "energy.json", "--networks", 3, *words, "--remote", f"farm:{farm.address}", *QUICK[:4])
    assert "predicted against measured" in shown.stdout


#: The least that kernels are learned from.
_FEW = ("--sampling", "init_sample_num=10", "--sampling", "iteration=0")


@pytest.mark.slow
def test_kernels_are_learned_on_a_farm(run, farm):
    words = ("--kernel", "add_relu", *_FEW, "--out", "kernels.json")
    run("learn", "kernels", *words, "--remote", f"farm:{farm.address}#mac.fake.fp32.t2")
    assert json.loads(Path("kernels.json").read_text("utf-8"))["platform"]["device"] == "mac"


@pytest.mark.slow
def test_a_predictor_is_fitted_on_a_farm_as_it_is_here(run, farm, tmp_path):
    pytest.importorskip("onnx", reason="the package onnx is not installed")
    words = ["learn", "graph", "--dataset", write_measured(tmp_path / "set"), "--training", "epochs=2,members=2"]
    run(*words, "--out", "here.safetensors")
    run(*words, "--out", "there.safetensors", "--remote", f"farm:{farm.address}")
    assert Path("there.safetensors").read_bytes() == Path("here.safetensors").read_bytes()


@pytest.mark.slow
def test_the_environment_names_the_farm(run, farm, monkeypatch):
    monkeypatch.setenv("NNI_LATENCY_REMOTE", f"farm:{farm.address}")
    words = ("--kernel", "add_relu", *_FEW, "--out", "kernels.json")
    assert "pi.fake.fp32.t1" in run("learn", "kernels", "--runtime", "fake", *words).stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            [],
            "measures with the runtime 'torch' in fp32 on 1 thread. Available: mac.fake.fp32.t2, pi",
        ),
        (
            ["--runtime", "fake", "--threads", "2"],
            " has several platforms of this kind: mac.fake.fp32.t2, pi.fake.fp32.t2. Name one: --remote farm:tcp://",
        ),
        (["--runtime", "fake", "--device", "cuda"], "--device is set where the other machines start. Omit it here."),
        (["--runtime-option", "x=1"], "--runtime-option is set where the other machines start."),
    ],
)
def test_what_the_farm_does_not_have_is_said(fails, farm, options, said):
    assert said in fails("build-lut", *TINY_OPTIONS, "--remote", f"farm:{farm.address}", *options)


@pytest.mark.parametrize(
    ("place", "options", "said"),
    [
        (
            "#pi.fake.fp32.t1",
            ["--threads", "2"],
            "--threads 2 contradicts --remote, whose platform pi.fake.fp32.t1 has",
        ),
        ("#nas.fake.fp32.t1", [], "Unknown platform of the farm 'nas.fake.fp32.t1'"),
        ("#mac.fake.fp32.t2", ["--metric", "energy"], "The workers of mac.fake.fp32.t2 read no energy."),
        ("#mac.fake.fp32.t2", ["--meter", "nvml"], "The workers of mac.fake.fp32.t2 cannot read 'nvml'."),
        ("#mac.fake.fp32.t2", ["--meter", "constant:-1"], "The meter 'constant' takes a positive power in watts"),
        ("#a.b", [], "A platform must be the name of a device, or its id"),
    ],
)
def test_a_platform_that_is_named_wrongly_is_said(fails, farm, place, options, said):
    assert said in fails("build-lut", *TINY_OPTIONS, "--remote", f"farm:{farm.address}{place}", *options)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["status", "http://x"], "The address of a farm must be a host and a port"),
        (["status", "127.0.0.1:1"], "No farm answers at tcp://127.0.0.1:1: Connection refused."),
        (["join", "127.0.0.1:1"], "No farm answers at tcp://127.0.0.1:1: Connection refused."),
        (["status", "tls://127.0.0.1:1"], "needs a TLS certificate and its key."),
        (["status", "8.8.8.8"], "A farm on 8.8.8.8 can be reached from other machines"),
        (["start", "--host", "0.0.0.0"], "A farm on 0.0.0.0 can be reached from other machines"),
        (["start", "--tls-cert", "farm.crt"], "TLS needs a certificate and its private key"),
        (["start", "--token-file", "none"], "Cannot read the token file 'none': No such file or directory."),
        (["join", "127.0.0.1:1", "--runtime", "nowhere"], "Unknown runtime 'nowhere'"),
        (["join", "8.8.8.8"], "A farm on 8.8.8.8 can be reached from other machines"),
        (["join", "127.0.0.1:1", "--threads", "1000"], "A worker with 1000 threads needs as many processors, and this"),
        (["join", "127.0.0.1:1", "--meter", "rapl:nope"], "Unknown domain of RAPL 'nope'"),
        (["join", "127.0.0.1:1", "--meter", "constant:x"], "The meter 'constant' takes a positive power in watts"),
        (["fit", "127.0.0.1:1"], "No farm answers at tcp://127.0.0.1:1: Connection refused."),
        (["fit", "8.8.8.8"], "A farm on 8.8.8.8 can be reached from other machines"),
    ],
)
def test_mistakes_are_one_sentence(fails, words, said):
    assert said in fails("farm", *words)


@pytest.mark.slow
def test_a_farm_runs_from_start_to_ctrl_c(tmp_path):
    """Start, join with a real runtime, measure, stop with Ctrl-C."""
    program = [sys.executable, "-m", "nni_latency"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}

    def begin(*words):
        said = tmp_path / f"{words[1]}.txt"
        with said.open("w") as file:
            return subprocess.Popen([*program, *words], stdout=file, stderr=file, env=environment), said

    scheduler, said = begin("farm", "start", "--port", "0")
    wait_until(lambda: "listens at" in said.read_text())
    address = re.search(r"listens at (\S+)", said.read_text())[1]
    for text in shown("farm", "start"):
        check_printed(f"... {text} ...", said.read_text())
    worker, told = begin("farm", "join", address, "--name", "worker")
    try:
        wait_until(lambda: "measures for" in told.read_text())
        words = [
            "build-lut",
            *TINY_OPTIONS,
            "--remote",
            f"farm:{address}",
            "--out",
            str(tmp_path / "t.json"),
            "--budget",
            "10min",
        ]
        done = subprocess.run(
            [*program, *words, "--protocol", "rounds=3"], capture_output=True, text=True, env=environment
        )
        assert done.returncode == 0, done.stderr
        assert LookupTable.load(tmp_path / "t.json").coverage == 1
        for process in (worker, scheduler):
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 0
    finally:
        for process in (worker, scheduler):
            process.kill()
    assert "Left the farm." in told.read_text()
    assert "worker joined with" in said.read_text()
    assert "Stopped." in said.read_text()
    assert "Traceback" not in told.read_text() + said.read_text()
