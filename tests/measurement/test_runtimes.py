"""Every runtime keeps the contract."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nni_latency.errors import MeasurementError, UnknownNameError
from nni_latency.measurement import time_chain
from nni_latency.measurement.runtimes import TorchEager
from nni_latency.measurement.runtimes._torch_eager import CudaClock
from nni_latency.platforms import Platform
from nni_latency.testing import FakeRuntime, check_runtime

_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


@pytest.mark.parametrize(
    "make",
    [
        lambda: TorchEager("cpu"),
        lambda: TorchEager("cpu", threads=2, precision="bf16"),
        pytest.param(lambda: TorchEager("cuda"), marks=[pytest.mark.gpu, _gpu]),
        pytest.param(lambda: TorchEager("cuda", precision="fp16"), marks=[pytest.mark.gpu, _gpu]),
        lambda: FakeRuntime(lambda _op: 1e-3),
    ],
    ids=["torch-cpu", "torch-cpu-bf16", "torch-cuda", "torch-cuda-fp16", "fake"],
)
def test_runtime_keeps_the_contract(make):
    check_runtime(make())


def test_torch_eager_says_where_it_runs():
    platform = TorchEager("cpu", threads=2, precision="bf16").platform
    assert platform.id.endswith(".torch.bf16.t2")
    assert isinstance(platform, Platform)


def test_torch_eager_sets_threads_in_a_session_alone():
    before = torch.get_num_threads()
    with TorchEager("cpu", threads=before + 1).session():
        assert torch.get_num_threads() == before + 1
        assert torch.is_inference_mode_enabled()
    assert torch.get_num_threads() == before


def test_torch_eager_puts_threads_back_after_an_error():
    before = torch.get_num_threads()
    with pytest.raises(KeyError, match=r"stop"), TorchEager("cpu", threads=before + 1).session():
        raise KeyError("stop")
    assert torch.get_num_threads() == before


def test_torch_eager_loads_for_inference():
    loaded = TorchEager("cpu", precision="bf16").load(nn.Conv2d(1, 1, 1).train())
    assert not loaded.training
    assert {(parameter.dtype, parameter.requires_grad) for parameter in loaded.parameters()} == {
        (torch.bfloat16, False)
    }


def test_torch_eager_makes_the_same_inputs_every_time():
    runtime = TorchEager("cpu")
    assert torch.equal(runtime.inputs((2, 3)), runtime.inputs((2, 3)))


def test_torch_eager_refuses_a_device_that_is_not_there(monkeypatch):
    monkeypatch.setattr("nni_latency.platforms._devices.list_devices", lambda: ["cpu"])
    with pytest.raises(UnknownNameError, match=r"Unknown device 'cuda:9'\. There is: cpu\."):
        TorchEager("cuda:9")


def test_cuda_clock_reports_events_that_do_not_work():
    class Event:
        def synchronize(self):
            raise RuntimeError("device lost")

    with pytest.raises(MeasurementError, match=r"clock events do not work: device lost"):
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
