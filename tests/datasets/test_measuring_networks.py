# SPDX-License-Identifier: Apache-2.0
"""From families and files to latencies, on a runtime whose times are known."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from nni_latency.database import DatabaseStore
from nni_latency.datasets import (
    NetworkFile,
    family_files,
    given_files,
    load_networks,
    measure_networks,
    measured_files,
)
from nni_latency.errors import InvalidValueError
from nni_latency.graphs import find_families, members_in_turn
from nni_latency.learning import known_networks
from nni_latency.measurement import MemoryStore, Protocol
from nni_latency.operators import trace
from nni_latency.testing import FakeRuntime

pytest.importorskip("onnx", reason="the package onnx is not installed")

_PROTOCOL = Protocol(n_warmup=1, n_run=2, max_measure_execution_time=1e9, time_budget=1e9, half_width=0.0)
_SMALL = "nasbench201"


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    """Write two members of a family of small networks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NNI_LATENCY_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield list(family_files(members_in_turn(find_families([_SMALL]), 2, 0)))


def _measure(networks, store=None, **changes):
    runtime = FakeRuntime(lambda _op: 1e-3, by="graph")
    how = {"protocol": _PROTOCOL, "anchors": [_SMALL], "timer": lambda: runtime.clock.now, **changes}
    return measure_networks(networks, runtime, store=store or MemoryStore(), **how)


def test_members_are_measured_with_their_calls(members):
    found = _measure(members)
    family = find_families([_SMALL])[0]
    for seed, item in enumerate(members):
        traced = trace(family.network(seed), family.example_inputs(), by="graph")
        assert found.latencies[item.key].value == pytest.approx(1e-3 * len(traced.operators))
        assert len(found.parts[item.key]) == traced.n_calls
        assert sum(found.parts[item.key]) == pytest.approx(found.latencies[item.key].value)
    assert (found.batch_size, found.failures, found.sees_nodes) == (1, {}, False)


def test_what_else_is_known_of_the_device_is_kept(members):
    found = _measure(members[:1], facts={"peak_flops": 1e11})
    assert found.platform.facts["peak_flops"] == 1e11


@pytest.mark.slow
def test_same_call_measures_nothing_again(members):
    store = MemoryStore()
    first = _measure(members, store)
    before = store.version()
    assert _measure(members, store) == replace(first, conditions=first.conditions)
    assert store.version() == before


@pytest.mark.slow
def test_what_is_measured_is_known_by_the_key_of_its_graph(members, tmp_path):
    with contextlib.closing(DatabaseStore(str(tmp_path / "known.sqlite"))) as store:
        found = _measure(members, store)
        for item in members:
            known = store.known(item.graph_key, found.platform)
            assert known.value == pytest.approx(found.latencies[item.key].value)
        learned = {item.name: item for item in known_networks(store)}
    assert set(learned) == {item.graph_key for item in members}
    assert all(learned[item.graph_key].graph == item.graph for item in members)


@pytest.mark.slow
def test_file_that_a_runtime_cannot_take_is_a_failure(members):
    file = NetworkFile("mine", members[0].path)
    found = _measure([members[1], file])
    assert list(found.latencies) == [members[1].key]
    assert "OnnxNetwork" in found.failures[file.key]


def test_networks_are_of_one_batch_size(members):
    with pytest.raises(InvalidValueError, match=r"of one batch size are measured at a time\. Got \[1, 8\]"):
        _measure([members[0], replace(members[1], batch_size=8)])
    with pytest.raises(InvalidValueError, match="Got none"):
        _measure([])


def test_files_and_folders_are_found(members):
    folder = members[0].path.parent
    assert [item.name for item in given_files([folder])] == ["nasbench201-00000", "nasbench201-00001"]
    assert [item.seed for item in given_files([members[0].path], batch_size=4)] == [None]
    with pytest.raises(InvalidValueError, match="have the same name"):
        given_files([folder, members[0].path])


def test_files_of_a_subfolder_are_a_family(members, tmp_path):
    for place, member in zip((tmp_path, tmp_path / "own net"), members, strict=True):
        place.mkdir(exist_ok=True)
        (place / member.path.name).write_bytes(member.path.read_bytes())
    assert [item.family for item in given_files([tmp_path])] == ["file", "own-net"]
    assert [item.family for item in given_files([tmp_path / "own net" / members[1].path.name])] == ["file"]


def test_files_of_a_data_set_are_measured_again(tmp_path, monkeypatch):
    monkeypatch.setenv("NNI_LATENCY_CACHE", str(tmp_path))
    networks = load_networks()
    entries = [next(item for item in networks if item.batch_size == size) for size in (1, 8)]
    found = list(measured_files(networks, entries))
    assert [(item.batched_name, item.family, item.seed) for item in found] == [
        (item.name, item.family, item.seed) for item in entries
    ]
    assert [item.graph_key for item in found] == [item.graph_key for item in entries]
    written = [item.path.stat().st_mtime_ns for item in found]
    assert [item.path.stat().st_mtime_ns for item in measured_files(networks, entries)] == written


def test_absent_files_are_refused(tmp_path):
    with pytest.raises(InvalidValueError, match="There is no ONNX file in what was given"):
        given_files([tmp_path])
    with pytest.raises(InvalidValueError, match=r"Cannot read '.*none\.onnx': No such file"):
        _ = given_files([tmp_path / "none.onnx"])[0].key


def test_a_key_is_that_of_the_content(members, tmp_path):
    copy = tmp_path / members[0].path.name
    copy.write_bytes(members[0].path.read_bytes())
    assert NetworkFile(members[0].name, copy).key == members[0].key
    copy.write_bytes(members[1].path.read_bytes())
    assert NetworkFile(members[0].name, copy).key != members[0].key


def test_first_size_that_a_file_fixes_and_that_is_no_batch_stays(tmp_path):
    weights = numpy_helper.from_array(np.ones((8, 10), np.float32), "weights")
    node = helper.make_node("MatMul", ["weights", "input"], ["output"])
    sizes = ((name, TensorProto.FLOAT, shape) for name, shape in (("input", [10, 4]), ("output", [8, 4])))
    given, returned = (helper.make_tensor_value_info(*item) for item in sizes)
    path = tmp_path / "fixed.onnx"
    onnx.save(helper.make_model(helper.make_graph([node], "fixed", [given], [returned], [weights])), path)
    (found,) = given_files([path])
    assert found.subject(FakeRuntime(lambda _: 1e-3)).inputs.args[0].shape == (10, 4)
    assert found.weights == 80
    with pytest.raises(InvalidValueError, match="is not a batch that can be set to 2"):
        _ = given_files([path], batch_size=2)[0].graph
