# SPDX-License-Identifier: Apache-2.0
"""Networks that worker processes export once: the next process loads what the one before it made."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from numpy_runtime import NumpyRuntime
from torch import nn

from nni_latency.measurement import Limits, LocalBench, LocalBenches, Protocol, Subject
from nni_latency.measurement._exports import Export
from nni_latency.measurement._subject import pack_subject
from nni_latency.measurement.runtimes import Prepared
from nni_latency.operators import export_onnx

_PROTOCOL = Protocol(n_warmup=0, timeout=60)


def _counting(log, width):
    """Return what makes a network, and notes that it did."""

    def build():
        with Path(log).open("a") as file:
            file.write(f"{width}\n")
        return nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU())

    return build


def _visit(benches, subjects):
    """Load subjects in a new process and time each; return the times of their calls, run by run."""
    with benches.open(_PROTOCOL, calls=True) as bench:
        for subject in subjects:
            bench.admit(subject)
        return [bench.visit((subject.key,)).parts for subject in subjects]


@pytest.fixture
def log(tmp_path):
    """Where builds are noted."""
    path = tmp_path / "builds"
    path.touch()
    return path


def test_a_network_is_exported_by_one_process_and_loaded_by_the_next(log):
    benches = LocalBenches(NumpyRuntime())
    subjects = [Subject(f"net {width}", _counting(log, width), (1, 3, 8, 8)) for width in (4, 5)]
    first, second = (_visit(benches, subjects) for _ in range(2))
    assert log.read_text().split() == ["4", "5"]
    # Nodes still belong to the calls of torch that they come from.
    assert [len(parts[0]) for parts in first] == [len(parts[0]) for parts in second] == [2, 2]


def test_subjects_of_one_key_that_differ_are_not_confused(log):
    benches = LocalBenches(NumpyRuntime())
    for width in (4, 5, 4):
        _visit(benches, [Subject("net", _counting(log, width), (1, 3, 8, 8))])
    assert log.read_text().split() == ["4", "5"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: bytes(4),
        lambda content: content[: len(content) // 2],
        lambda content: content[:-9] + bytes(9),
    ],
    ids=["empty", "zeros", "cut off", "overwritten"],
)
def test_a_damaged_file_is_exported_anew(log, damage):
    benches, subject = LocalBenches(NumpyRuntime()), Subject("net", _counting(log, 4), (1, 3, 8, 8))
    _visit(benches, [subject])
    (path,) = benches._folder.iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert len(_visit(benches, [subject])) == 1
    assert path.stat().st_size == len(whole)
    _visit(benches, [subject])
    assert log.read_text().split() == ["4", "4"]


def test_a_subject_is_hashed_once(tmp_path, log, monkeypatch):
    packed, hashed = pack_subject(Subject("net", _counting(log, 4), (1, 3, 8, 8))), []
    real = hashlib.sha256

    def sha256(content=b"", **options):
        hashed.append(content)
        return real(content, **options)

    monkeypatch.setattr(hashlib, "sha256", sha256)
    (tmp_path / "kept").mkdir()
    with LocalBench(NumpyRuntime(), _PROTOCOL, exports=tmp_path / "kept") as bench:
        bench.admit_packed(packed)
    assert len(list((tmp_path / "kept").iterdir())) == 1
    assert hashed.count(packed) == 1


def test_processes_with_limits_share_nothing(log):
    benches = LocalBenches(NumpyRuntime(), limits=Limits(open_files=200))
    for _ in range(2):
        _visit(benches, [Subject("net", _counting(log, 4), (1, 3, 8, 8))])
    assert log.read_text().split() == ["4", "4"]


def test_the_folder_goes_with_the_benches(log):
    benches = LocalBenches(NumpyRuntime())
    _visit(benches, [Subject("net", _counting(log, 4), (1, 3, 8, 8))])
    folder = benches._folder
    assert len(list(folder.iterdir())) == 1
    del benches
    assert not folder.exists()


@pytest.mark.parametrize("n_labels", [1, 300])
def test_a_network_comes_back_as_it_was(tmp_path, n_labels):
    network = export_onnx(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), [torch.zeros(1, 3, 8, 8)])
    object.__setattr__(network, "n_labels", n_labels)
    packed = pack_subject(Subject("net", nn.Identity))
    export = Export.of(tmp_path, packed)
    assert export.find() is None
    export.keep(Prepared(network, None, was_exported=True))
    found = export.find()
    assert (found.model, found.n_labels, found.is_joined) == (network.model, n_labels, network.is_joined)


def test_what_was_a_file_already_is_not_copied(tmp_path):
    network = export_onnx(nn.Conv2d(3, 4, 3), [torch.zeros(1, 3, 8, 8)])
    Export.of(tmp_path, b"packed").keep(Prepared(network, None))
    assert not list(tmp_path.iterdir())


def test_beyond_the_room_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("nni_latency.measurement._exports._MOST", 100)
    network = export_onnx(nn.Conv2d(3, 4, 3), [torch.zeros(1, 3, 8, 8)])
    Export.of(tmp_path, b"packed").keep(Prepared(network, None, was_exported=True))
    assert not list(tmp_path.iterdir())
