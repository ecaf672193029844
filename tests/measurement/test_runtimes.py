# SPDX-License-Identifier: Apache-2.0
"""Every runtime keeps the contract."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading

import cloudpickle
import pytest
import torch
from prepared import prepare
from torch import nn

from nni_latency.errors import MeasurementError, UnknownNameError
from nni_latency.measurement import CandidateError, time_chain
from nni_latency.measurement.runtimes import (
    CudaClock,
    Runtime,
    TorchCompile,
    TorchEager,
    TorchScript,
    choose_processors,
    pinned,
)
from nni_latency.plugins import load_registry
from nni_latency.testing import FakeRuntime, check_runtime

_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
_compiler = pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="no C++ compiler here")
_affinity = pytest.mark.skipif(not choose_processors(1), reason="the system does not let a process choose processors")
# Inductor advises to compute with less precision.
_tf32 = pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")


@pytest.mark.parametrize(
    "make",
    [
        lambda: TorchEager("cpu"),
        lambda: TorchEager("cpu", channels_last=True),
        lambda: TorchEager("cpu", threads=2, precision="bf16"),
        lambda: TorchScript("cpu"),
        lambda: TorchScript("cpu", channels_last=True),
        lambda: TorchScript("cpu", threads=2, precision="bf16"),
        pytest.param(lambda: TorchCompile("cpu"), marks=[pytest.mark.slow, _compiler]),
        pytest.param(lambda: TorchCompile("cpu", channels_last=True), marks=[pytest.mark.slow, _compiler]),
        pytest.param(lambda: TorchCompile("cpu", threads=2, precision="bf16"), marks=[pytest.mark.slow, _compiler]),
        pytest.param(lambda: TorchEager("cuda"), marks=[pytest.mark.gpu, _gpu]),
        pytest.param(lambda: TorchEager("cuda", precision="fp16"), marks=[pytest.mark.gpu, _gpu]),
        pytest.param(lambda: TorchEager("cuda", channels_last=True), marks=[pytest.mark.gpu, _gpu]),
        pytest.param(lambda: TorchScript("cuda", precision="fp16"), marks=[pytest.mark.gpu, _gpu]),
        pytest.param(lambda: TorchCompile("cuda", precision="fp16"), marks=[pytest.mark.gpu, _gpu, _tf32]),
        lambda: FakeRuntime(lambda _op: 1e-3),
    ],
    ids=[
        "torch-cpu",
        "torch-nhwc-cpu",
        "torch-cpu-bf16",
        "torchscript-cpu",
        "torchscript-nhwc-cpu",
        "torchscript-cpu-bf16",
        "torch-compile-cpu",
        "torch-compile-nhwc-cpu",
        "torch-compile-cpu-bf16",
        "torch-cuda",
        "torch-cuda-fp16",
        "torch-nhwc-cuda",
        "torchscript-cuda-fp16",
        "torch-compile-cuda-fp16",
        "fake",
    ],
)
def test_runtime_keeps_the_contract(make):
    check_runtime(make())


@pytest.mark.parametrize(
    ("name", "inside"),
    [
        ("torch", True),
        ("torch-nhwc", True),
        ("torchscript", False),
        ("torchscript-nhwc", False),
        ("torch-compile", False),
        ("torch-compile-nhwc", False),
    ],
)
def test_registered_runtime_bears_its_name(name, inside):
    runtime = load_registry().find("runtime", name).make("cpu", threads=2, precision="bf16")
    assert (runtime.name, runtime.supports_layer_timing, runtime.channels_last) == (name, inside, name.endswith("nhwc"))
    assert runtime.platform.id.endswith(f".{name}.bf16.t2")


@pytest.mark.parametrize("adapter", [TorchEager, TorchScript, TorchCompile])
def test_runtime_of_torch_reaches_another_process(adapter):
    runtime = adapter(threads=2, precision="bf16", channels_last=True)
    assert runtime.platform
    sent = cloudpickle.loads(cloudpickle.dumps(runtime))
    assert (sent.name, sent.platform, dict(sent.platform.facts)) == (
        runtime.name,
        runtime.platform,
        dict(runtime.platform.facts),
    )


def test_torch_eager_sets_threads_in_a_session_alone():
    before = torch.get_num_threads()
    with TorchEager("cpu", threads=before + 1).session():
        assert torch.get_num_threads() == before + 1
        assert torch.is_inference_mode_enabled()
    assert torch.get_num_threads() == before


def test_torch_eager_loads_for_inference():
    loaded, _ = prepare(TorchEager("cpu", precision="bf16"), nn.Conv2d(1, 1, 1).train(), (1, 1, 2, 2))
    assert not loaded.training
    assert {(parameter.dtype, parameter.requires_grad) for parameter in loaded.parameters()} == {
        (torch.bfloat16, False)
    }


def test_torch_eager_makes_the_same_inputs_every_time():
    runtime = TorchEager("cpu")
    assert torch.equal(runtime.inputs((2, 3)), runtime.inputs((2, 3)))


def test_torch_eager_refuses_a_device_that_is_not_there(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(UnknownNameError, match=r"Unknown device 'cuda:9'\. Available: cpu\."):
        TorchEager("cuda:9")


@pytest.mark.parametrize(
    ("shape", "layout"), [((2, 3, 4, 4), torch.channels_last), ((2, 3, 4, 4, 4), torch.channels_last_3d)]
)
def test_channels_last_arranges_inputs_and_keeps_their_numbers(shape, layout):
    plain, arranged = (TorchEager(channels_last=last).inputs(shape) for last in (False, True))
    assert not plain.is_contiguous(memory_format=layout)
    assert arranged.is_contiguous(memory_format=layout)
    assert torch.equal(plain, arranged)


def test_channels_last_arranges_weights_of_four_and_five_dimensions():
    module = nn.ModuleList([nn.Conv1d(2, 3, 3), nn.Conv2d(2, 3, 3), nn.Conv3d(2, 3, 3), nn.Linear(2, 3)])
    stage, _ = prepare(TorchEager(channels_last=True), module, (1, 1))
    line, plane, volume, linear = stage
    assert line.weight.is_contiguous()
    assert linear.weight.is_contiguous()
    assert plane.weight.is_contiguous(memory_format=torch.channels_last)
    assert volume.weight.is_contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.parametrize(("wanted", "chosen"), [(1, (7,)), (2, (5, 7)), (3, (0, 5, 7)), (4, (0, 5, 7))])
def test_choose_processors_takes_the_last_that_may_be_used(monkeypatch, wanted, chosen):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {7, 0, 5}, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None, raising=False)
    assert choose_processors(wanted) == chosen


def test_choose_processors_finds_none_where_the_system_refuses(monkeypatch):
    def refuse(*_):
        raise PermissionError("not allowed")

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", refuse, raising=False)
    assert choose_processors(1) == ()


def test_choose_processors_finds_none_where_the_system_has_no_such_call(monkeypatch):
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    assert choose_processors(1) == ()


@_affinity
@pytest.mark.parametrize("threads", [1, 2, 1000])
def test_session_stays_on_as_many_processors_as_threads(threads):
    before = os.sched_getaffinity(0)
    runtime = TorchEager(threads=threads)
    with runtime.session():
        assert os.sched_getaffinity(0) == set(sorted(before)[-threads:])
    assert os.sched_getaffinity(0) == before
    assert runtime.platform.facts["cpu_affinity"] == ",".join(map(str, sorted(before)[-threads:]))


@_affinity
def test_session_puts_threads_and_processors_back_after_an_error():
    before = torch.get_num_threads(), os.sched_getaffinity(0)
    with pytest.raises(KeyError, match=r"stop"), TorchEager(threads=before[0] + 1).session():
        raise KeyError("stop")
    assert (torch.get_num_threads(), os.sched_getaffinity(0)) == before


@_affinity
def test_platform_counts_the_processors_outside_a_session():
    runtime = TorchEager()
    with runtime.session():
        count = runtime.platform.facts["cpu_count"]
    assert count == len(os.sched_getaffinity(0))


@_affinity
def test_pinned_gives_back_the_threads_that_started_inside():
    before = os.sched_getaffinity(0)
    started, seen, done = threading.Event(), [], threading.Event()

    def work():
        seen.append(os.sched_getaffinity(0))
        started.set()
        done.wait(10)
        seen.append(os.sched_getaffinity(0))

    worker = threading.Thread(target=work)
    with pinned(choose_processors(1)):
        worker.start()
        started.wait(10)
    done.set()
    worker.join()
    assert seen == [set(choose_processors(1)), before]


def test_pinned_does_nothing_without_processors(monkeypatch):
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    with pinned(()):
        pass


def test_reference_is_the_same_every_time_and_leaves_random_numbers_alone():
    before = torch.get_rng_state()
    (first, _), (second, _) = TorchEager().reference(), TorchEager().reference()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one, other) for one, other in zip(first.parameters(), second.parameters(), strict=True))


def test_reference_keeps_the_size_of_activations():
    stage, inputs = TorchEager().reference()
    with torch.inference_mode():
        outputs = stage(inputs)
    assert 0.1 < outputs.std() < 10


def test_interface_of_runtimes_loads_without_torch():
    code = "import sys; from nni_latency.measurement.runtimes import Runtime; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert Runtime.supports_layer_timing


def test_cuda_clock_reports_events_that_do_not_work():
    class Event:
        def synchronize(self):
            pass

        def elapsed_time(self, after):
            raise RuntimeError("not recorded")

    with pytest.raises(MeasurementError, match=r"clock events do not work: not recorded"):
        CudaClock().intervals([Event(), Event()])


def test_cuda_clock_blames_what_ran_for_its_failure():
    class Event:
        def synchronize(self):
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nFor debugging, pass ...")

    with pytest.raises(CandidateError, match=r"^CUDA error: an illegal memory access was encountered$"):
        CudaClock().intervals([Event(), Event()])


def test_cuda_clock_waits_for_the_last_event_and_returns_seconds():
    waited = []

    class Event:
        def __init__(self, milliseconds):
            self.milliseconds = milliseconds

        def synchronize(self):
            waited.append(self.milliseconds)

        def elapsed_time(self, after):
            assert waited, "read before the device was done"
            return after.milliseconds - self.milliseconds

    assert CudaClock().intervals([Event(0), Event(2), Event(5)]) == [0.002, 0.003]
    assert waited == [5]


@pytest.mark.gpu
@_gpu
def test_cuda_clock_sees_the_end_of_the_work():
    """A product a thousand times as large takes longer on the GPU, although the call returns at once."""
    runtime = TorchEager("cuda")
    with runtime.session():
        small, large = (torch.ones(side, side, device="cuda") for side in (64, 8192))
        stages = [lambda _: small @ small, lambda _: large @ large]
        time_chain(stages, None, runtime.clock)
        times = time_chain(stages, None, runtime.clock)
    assert times[1] > 2 * times[0]
