# SPDX-License-Identifier: Apache-2.0
"""The memory of parameters and of the tensors of a forward pass."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.profiler import ProfilerActivity, profile

from nni_latency.errors import InvalidValueError, MeasurementError, UnknownNameError
from nni_latency.measurement import activation_memory, cuda_activation_memory, parameter_memory
from nni_latency.operators import ChannelShuffle
from nni_latency.spaces import ClassificationHead, ConvBlock, FBNetBlock, Skip

#: A picture of 3 channels and 16 x 16 pixels, and what 8 channels of it take [byte].
_SHAPE, _INPUT, _HIDDEN = (1, 3, 16, 16), 4 * 3 * 256, 4 * 8 * 256
_BLOCKS = {
    "conv": (lambda: ConvBlock(3, 8, 3, 2), (2, 3, 15, 15)),
    "residual": (lambda: FBNetBlock(16, 16, 3, 1, 6), (2, 16, 14, 14)),
    "stride": (lambda: FBNetBlock(16, 24, 5, 2, 3), (1, 16, 14, 14)),
    "grouped": (lambda: FBNetBlock(16, 16, 3, 1, 1, groups=2), (3, 16, 7, 7)),
    "shuffle": (lambda: ChannelShuffle(4), (1, 16, 7, 7)),
    "skip": (Skip, (1, 16, 7, 7)),
    "head": (lambda: ClassificationHead(16, 64, 10), (2, 16, 7, 7)),
}


class Function(nn.Module):
    """A module whose forward pass is a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def _count(module, *inputs):
    """Count on meta tensors and on real ones, which agree."""
    on_meta = activation_memory(module, inputs)
    assert activation_memory(module, inputs, compute=True) == on_meta
    return on_meta


def _convolution(*layers):
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), *layers)


def test_parameter_memory_counts_parameters_and_buffers():
    assert parameter_memory(nn.Conv2d(3, 8, 3)) == 4 * (8 * 3 * 9 + 8)
    # Weight, bias, mean and variance, and one count of 8 byte.
    assert parameter_memory(nn.BatchNorm2d(8)) == 4 * 4 * 8 + 8


def test_parameter_memory_takes_dtypes_as_they_are():
    assert parameter_memory(nn.Linear(4, 4).half()) == parameter_memory(nn.Linear(4, 4)) / 2
    mixed = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False).double())
    assert parameter_memory(mixed) == 16 * (4 + 8)


def test_parameter_memory_counts_tied_weights_once():
    tied = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10, bias=False))
    assert parameter_memory(tied) == 2 * 160
    tied[1].weight = tied[0].weight
    assert parameter_memory(tied) == 160


def test_parameter_memory_counts_a_shared_storage_once():
    module = nn.Linear(4, 4, bias=False)
    module.register_buffer("row", module.weight.detach()[1])
    assert parameter_memory(module) == 64


def test_parameter_memory_needs_no_content():
    assert parameter_memory(nn.Linear(4, 4, device="meta")) == 80
    assert parameter_memory(nn.ReLU()) == 0


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_memory_refuses_parameters_without_a_shape():
    with pytest.raises(InvalidValueError, match=r"A parameter of LazyLinear has no shape yet: run the network once\."):
        parameter_memory(nn.LazyLinear(4))
    with pytest.raises(InvalidValueError, match=r"A parameter of LazyLinear has no shape yet: run the network once\."):
        activation_memory(nn.LazyLinear(4), torch.zeros(1, 4))


def test_parameter_memory_refuses_sparse_tensors():
    module = nn.ReLU()
    module.register_buffer("mask", torch.eye(2).to_sparse())
    with pytest.raises(InvalidValueError, match=r"dense tensors alone\. Got one of layout torch\.sparse_coo"):
        parameter_memory(module)


def test_activation_memory_of_a_convolution_is_input_and_output():
    assert _count(_convolution(), torch.zeros(_SHAPE)) == _INPUT + _HIDDEN


def test_activation_memory_keeps_what_an_operator_reads_until_it_has_written():
    assert _count(_convolution(nn.ReLU()), torch.zeros(_SHAPE)) == _INPUT + 2 * _HIDDEN


def test_activation_memory_is_less_in_place():
    assert _count(_convolution(nn.ReLU(inplace=True)), torch.zeros(_SHAPE)) == _INPUT + _HIDDEN


def test_activation_memory_does_not_grow_with_depth():
    deep = _convolution(*(nn.ReLU() for _ in range(9)))
    assert _count(deep, torch.zeros(_SHAPE)) == _INPUT + 2 * _HIDDEN


def test_activation_memory_is_halved_in_bf16():
    network = _convolution(nn.BatchNorm2d(8), nn.ReLU())
    whole = _count(network, torch.zeros(_SHAPE))
    assert _count(network.bfloat16(), torch.zeros(_SHAPE).bfloat16()) == whole / 2


@pytest.mark.slow
@given(batch=st.integers(1, 300), name=st.sampled_from(sorted(_BLOCKS)))
def test_activation_memory_grows_linearly_with_the_batch(batch, name):
    make, (_, *shape) = _BLOCKS[name]
    one = activation_memory(make(), torch.empty(1, *shape))
    assert activation_memory(make(), torch.empty(batch, *shape)) == batch * one


@pytest.mark.parametrize("name", _BLOCKS)
def test_activation_memory_is_the_same_with_and_without_computing(name):
    make, shape = _BLOCKS[name]
    _count(make(), torch.zeros(shape))


def test_activation_memory_of_an_inverted_residual():
    """Expanded channels before and after normalisation are the most; ReLU works in place."""
    elements = 14 * 14
    block = FBNetBlock(16, 24, 3, 2, 6)
    assert _count(block, torch.zeros(1, 16, 14, 14)) == 4 * elements * (16 + 2 * 96)


@pytest.mark.parametrize(
    ("function", "units"),
    [
        (lambda x: x, 1),
        (lambda x: x.view(10, 10).t()[:3], 1),
        (lambda x: x.add_(1).relu_(), 1),
        (lambda x: x + 1, 2),
        (lambda x: x.cos().cos().cos(), 3),
        # The branch keeps `left` while the other one needs two tensors.
        (lambda x: (lambda left: left + x.sin().sin())(x.cos()), 4),
        (lambda x: torch.cat([x, x]), 3),
        (lambda x: torch.cat([x, x])[:100].cos(), 4),
        (lambda x: (x + 1, x + 2), 3),
        (lambda x: [(x + 1).view(10, 10), {"other": x + 2}], 3),
        (lambda x: (x + 1).split(25), 2),
        (lambda x: torch._foreach_add([x, x], 1), 3),
        (lambda x: torch.add(x, 1, out=torch.empty(0)), 2),
        (lambda x: x + torch.ones(100), 3),
        (lambda x: x + torch.tensor([1.0] * 100, device=x.device), 3),
        (lambda x: torch.matmul(x.view(10, 10), x.view(10, 10)), 2),
    ],
)
def test_activation_memory_counts_storages_that_live(function, units):
    assert _count(Function(function), torch.zeros(100)) == 400 * units


def test_activation_memory_ends_with_the_last_reference():
    def hold(x):
        first = x.cos()
        second = first.cos()
        third = second.cos()
        return third + first

    def drop(x):
        first = x.cos()
        second = first.cos()
        del first
        third = second.cos()
        del second
        return third.cos()

    assert _count(Function(hold), torch.zeros(100)) == 400 * 5
    assert _count(Function(drop), torch.zeros(100)) == 400 * 3


def test_activation_memory_keeps_a_storage_while_a_view_lives():
    def view(x):
        part = x.cos()[:1]
        return x.cos().cos() + part

    assert _count(Function(view), torch.zeros(100)) == 400 * 4


def test_activation_memory_counts_what_a_module_keeps():
    class Cache(nn.Module):
        def forward(self, x):
            self.kept = x.cos()
            return self.kept.cos().cos()

    module = Cache()
    assert _count(module, torch.zeros(100)) == 400 * 4
    assert not hasattr(module, "kept")


def test_activation_memory_sees_into_composite_operators():
    """A matrix product of batches of unlike shapes copies the smaller one for every batch."""
    left, right = torch.zeros(3, 1, 4, 4), torch.zeros(1, 5, 4, 4)
    assert _count(Function(torch.matmul), left, right) == 64 * (3 + 5 + 15 + 15 + 15)


def test_activation_memory_does_not_count_parameters_and_buffers():
    class Shift(nn.Linear):
        def __init__(self):
            super().__init__(100, 100)
            self.register_buffer("shift", torch.zeros(100))

        def forward(self, x):
            self.shift.add_(1)
            return self.weight.t()[:1].add_(self.shift), super().forward(x)

    assert _count(Shift(), torch.zeros(1, 100)) == 800


def test_activation_memory_counts_tensors_that_are_neither():
    constant = torch.zeros(100)
    assert activation_memory(Function(lambda x: x + constant), torch.zeros(100), compute=True) == 1200


def test_activation_memory_counts_what_takes_the_place_of_a_buffer():
    class Average(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("average", torch.zeros(100))

        def forward(self, x):
            self.average = self.average * 0.5
            return self.average + x

    assert _count(Average(), torch.zeros(100)) == 1200


def test_activation_memory_counts_inputs_that_share_a_storage_once():
    whole = torch.zeros(10, 10)
    assert _count(Function(torch.add), whole, whole) == 400 * 2
    assert _count(Function(torch.add), whole[0], whole[:, 1]) == 400 + 40


def test_activation_memory_runs_in_evaluation_mode_on_a_copy():
    module = nn.Sequential(nn.BatchNorm1d(10), nn.Dropout()).train()
    state = copy.deepcopy(module.state_dict())
    inputs = torch.ones(10, 10)
    assert _count(module, inputs) == 800
    assert _count(nn.ReLU(inplace=True), -inputs) == 400
    assert module.training
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())


def test_activation_memory_leaves_the_inputs_as_they_are():
    inputs = -torch.ones(10)
    activation_memory(nn.ReLU(inplace=True), inputs, compute=True)
    assert torch.equal(inputs, -torch.ones(10))


def test_activation_memory_takes_inputs_and_modules_without_content():
    assert activation_memory(nn.Linear(100, 10, device="meta"), torch.empty(1, 100, device="meta")) == 440


def test_activation_memory_takes_inputs_that_need_gradients():
    inputs = torch.zeros(100, requires_grad=True)
    assert _count(Function(lambda x: (x * 2).cos()), inputs * 1) == 400 * 3


def test_activation_memory_follows_numbers_only_when_it_computes():
    branch = Function(lambda x: x.cos().cos() if x.sum().item() > 0 else x.cos())
    # The sum is one number, which has gone when the branch is taken.
    assert activation_memory(branch, torch.ones(100), compute=True) == 1200
    assert activation_memory(branch, torch.zeros(100), compute=True) == 800
    with pytest.raises(InvalidValueError, match=r"do not fit Function: .*meta"):
        activation_memory(branch, torch.ones(100))


@pytest.mark.parametrize("compute", [False, True])
@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Linear(4, 2), (1, 5)),
        (nn.BatchNorm2d(4), (1, 4, 2)),
        (ChannelShuffle(2), (4,)),
        (nn.Bilinear(1, 1, 1), (1,)),
    ],
)
def test_activation_memory_explains_inputs_that_do_not_fit(module, shape, compute):
    with pytest.raises(InvalidValueError, match=rf"The inputs of shape \(.*\) do not fit {type(module).__name__}: "):
        activation_memory(module, torch.zeros(shape), compute=compute)


@pytest.mark.parametrize("count", [activation_memory, cuda_activation_memory])
@pytest.mark.parametrize("inputs", [(), 3, (torch.zeros(1), 3)])
def test_activation_memory_refuses_what_is_no_tensor(count, inputs):
    with pytest.raises(
        InvalidValueError, match=r"The 'inputs' must be a tensor or a tuple of tensors\. Got (tuple|int)"
    ):
        count(nn.ReLU(), inputs)


def test_activation_memory_refuses_sparse_tensors():
    with pytest.raises(InvalidValueError, match=r"dense tensors alone\. Got one of layout torch\.sparse_coo"):
        activation_memory(Function(lambda x: x.to_sparse()), torch.eye(2), compute=True)


def _allocated(module, inputs):
    """Return the most that torch's allocator on the processor gave out during a pass, by its own record."""
    with torch.inference_mode(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        module(inputs.clone())
    events = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.ReLU(), nn.Sigmoid(), nn.MaxPool2d(2)),
        nn.Sequential(nn.ReLU(inplace=True), ChannelShuffle(4), nn.Flatten(), nn.Linear(16 * 64, 16 * 64)),
        Function(lambda x: x + x.cos().sin() * torch.cat([x, x])[:4]),
    ],
    ids=["pool", "linear", "branches"],
)
def test_activation_memory_is_what_the_allocator_gives_out(module):
    """Operators whose kernels need no further memory."""
    inputs = torch.zeros(4, 16, 8, 8)
    assert _count(module, inputs) == _allocated(module, inputs)


@pytest.mark.parametrize("needs_gradients", [False, True])
def test_activation_memory_is_that_of_inference_although_parameters_need_gradients(needs_gradients):
    """With gradients a product of a transposed batch copies it first, because that is faster on the way back."""
    module = nn.Sequential(Function(lambda x: x.transpose(0, 1)), nn.Linear(8, 8, bias=False))
    inputs = torch.zeros(5, 4, 8)
    counted = _count(module.requires_grad_(needs_gradients), inputs)
    assert counted == _allocated(module.requires_grad_(False), inputs)


def _fake_cuda(monkeypatch, before, peak):
    """Let the processor stand for a GPU whose allocator says these numbers."""
    calls = []
    monkeypatch.setattr("nni_latency.measurement._memory.resolve_device", lambda name: "cpu")
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: calls.append("before") or before)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: calls.append("reset"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: calls.append("peak") or peak)
    return calls


def test_cuda_activation_memory_is_the_peak_of_the_second_pass(monkeypatch):
    calls = _fake_cuda(monkeypatch, 100, 350)
    inputs = -torch.ones(3)

    def forward(x):
        calls.append("pass")
        return x.relu_()

    assert cuda_activation_memory(Function(forward), inputs) == 250
    assert calls == ["pass", "before", "reset", "pass", "peak"]
    assert torch.equal(inputs, -torch.ones(3))


def test_cuda_activation_memory_explains_inputs_that_do_not_fit(monkeypatch):
    _fake_cuda(monkeypatch, 0, 0)
    with pytest.raises(InvalidValueError, match=r"The inputs of shape \(1, 5\) do not fit Linear: "):
        cuda_activation_memory(nn.Linear(4, 2), torch.zeros(1, 5))


def test_cuda_activation_memory_reports_a_full_gpu(monkeypatch):
    def fill(x):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    _fake_cuda(monkeypatch, 0, 0)
    with pytest.raises(MeasurementError, match=r"The GPU has too little memory for Function: CUDA out of memory\."):
        cuda_activation_memory(Function(fill), torch.zeros(1))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU here")
def test_cuda_activation_memory_needs_a_gpu():
    with pytest.raises(UnknownNameError, match=r"Unknown device 'cuda'\. Available: cpu\."):
        cuda_activation_memory(nn.ReLU(), torch.zeros(1))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize(
    ("module", "shape", "workspace"),
    [
        (nn.Sequential(nn.ReLU(), nn.Sigmoid()), (3, 5, 7), 0),
        (Function(lambda x: x + x.cos().sin()), (1, 1001), 0),
        (_convolution(nn.ReLU()), (64, 3, 128, 128), 2**25),
        (FBNetBlock(16, 16, 3, 1, 6), (64, 16, 112, 112), 2**26),
    ],
    ids=["elementwise", "branches", "convolution", "residual"],
)
def test_activation_memory_is_what_cuda_gives_out(module, shape, workspace):
    """Up to 512 byte of rounding a tensor, of which there are fewer than 8, and the workspaces of convolutions."""
    inputs = torch.zeros(shape)
    counted = activation_memory(module, inputs)
    assert counted == activation_memory(module.cuda(), inputs.cuda(), compute=True)
    assert counted <= cuda_activation_memory(module, inputs) <= counted + 8 * 512 + workspace
