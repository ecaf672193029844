"""Whole networks visited in turns, networks that bring their inputs, and operators that are met cold."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from troublemakers import raising

from nni_latency.errors import InvalidValueError
from nni_latency.measurement import CandidateError, LocalBench, ModuleWithInputs, Protocol, cold_columns, visit_networks
from nni_latency.measurement._cold import _read_size, flush_size
from nni_latency.measurement.runtimes import TorchEager
from nni_latency.operators import trace
from nni_latency.testing import FakeRuntime


def _columns(*modules):
    return [[lambda module=module: module for module in modules]]


def test_every_network_is_visited_in_every_round():
    runtime = FakeRuntime(lambda op: {"relu": 1.0, "sigmoid": 2.0}[op.kind])
    protocol = Protocol(n_run=2, rounds=3, half_width=0.0, processes=4)
    (process,) = visit_networks(_columns(nn.ReLU(), nn.Sigmoid()), [(0,), (1,)], (1, 4), runtime, protocol)
    assert [visits.whole for visits in process] == [(1.0,) * 6, (2.0,) * 6]
    assert [len(visits.references) for visits in process] == [3, 3]
    assert [visits.parts for visits in process] == [(), ()]


def test_visits_end_when_all_are_narrow():
    runtime = FakeRuntime(lambda op: 1.0)
    protocol = Protocol(n_run=5, rounds=100)
    ((visits,),) = visit_networks(_columns(nn.ReLU()), [(0,)], (1, 4), runtime, protocol, calls=True)
    assert len(visits.whole) == 15
    assert visits.parts == ((1.0,),) * 15


def test_network_that_fails_gives_the_reason():
    class Failing(FakeRuntime):
        def load(self, module):
            raising()

    with pytest.raises(CandidateError, match=r"^\w+: "):
        visit_networks(_columns(nn.ReLU()), [(0,)], (1, 4), Failing(lambda op: 1.0), Protocol())


class _Mixed(nn.Module):
    def forward(self, first, pair, *, number):
        return first + pair[0] * pair[1] + number


def test_carrier_computes_what_the_network_does():
    inputs = (torch.ones(2), [torch.full((2,), 2.0), torch.full((2,), 3.0)], {"number": torch.tensor(4)})
    carrier = ModuleWithInputs(_Mixed(), inputs)
    assert torch.equal(carrier("ignored"), torch.full((2,), 11.0))
    assert trace(carrier, torch.zeros(1)).n_calls == trace(_Mixed(), inputs).n_calls


def test_carrier_takes_the_precision_and_leaves_whole_numbers():
    runtime = TorchEager(precision="bf16")
    carrier = ModuleWithInputs(nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 2)), torch.tensor([0, 2]))
    with runtime.session():
        assert runtime.load(carrier)(None).dtype == torch.bfloat16
    assert carrier.inputs.tensors[0].dtype == torch.int64


def test_carrier_gives_values_to_inputs_without():
    carrier = ModuleWithInputs(
        _Mixed(), (torch.ones(2, device="meta"), [torch.ones(2)] * 2, {"number": torch.tensor(4)})
    )
    assert not carrier.inputs.tensors[0].is_meta
    whole = ModuleWithInputs(nn.Embedding(3, 2), torch.tensor([9, 9], device="meta"))
    assert whole(None).shape == (2, 2)


def test_carrier_holds_copies():
    network, inputs = nn.ReLU(inplace=True), torch.full((2,), -1.0)
    ModuleWithInputs(network, inputs)(None)
    assert inputs.tolist() == [-1.0, -1.0]


def test_carrier_needs_weights():
    with pytest.raises(InvalidValueError, match=r"BatchNorm1d cannot be measured: 'weight' has no values"):
        ModuleWithInputs(nn.BatchNorm1d(2, device="meta"), torch.ones(2, 2))


def test_operator_alone_runs_on_inputs_that_were_just_made():
    class Matrices(nn.Module):
        def forward(self, first, second):
            return first @ second

    columns = cold_columns(Matrices, [(2, 3), (3, 4)])
    with LocalBench(columns, (1,), TorchEager(), Protocol()) as bench:
        for layer in range(3):
            bench.admit(layer, 0)
        visit = bench.visit((0, 0, 0))
    flush, _, product = visit.parts[0]
    assert 0 < product < flush


def test_flush_is_larger_than_the_caches(tmp_path):
    assert 64 * 2**20 <= flush_size() <= 512 * 2**20
    (tmp_path / "size").write_text("32768K\n")
    assert _read_size(tmp_path / "size") == 32 * 2**20
    assert _read_size(tmp_path / "absent") == 0
