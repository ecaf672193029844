# SPDX-License-Identifier: Apache-2.0
"""What a platform is, and that records of different ones never mix."""

from __future__ import annotations

import dataclasses

import pytest

from nni_latency.errors import InvalidValueError, MismatchError, UnknownNameError
from nni_latency.platforms import (
    FACTS,
    Platform,
    check_same_platform,
    collect_facts,
    device_slug,
    ids_named,
    list_devices,
    measure_speeds,
    resolve_device,
)


def test_id_holds_device_runtime_precision_and_threads():
    assert Platform("epyc-7763", "torch", "bf16", 4).id == "epyc-7763.torch.bf16.t4"


@pytest.mark.parametrize("device", ["", "EPYC", "a b", "-x", "x.y", "é"])
def test_platform_refuses_a_device_that_would_spoil_the_id(device):
    with pytest.raises(InvalidValueError, match=r"'device' of a Platform must be lower-case letters"):
        Platform(device)


def test_platform_refuses_an_unknown_precision():
    with pytest.raises(InvalidValueError, match=r"one of fp32, bf16, fp16, int8\. Got 'int3'"):
        Platform("x", precision="int3")


def test_platform_refuses_no_threads():
    with pytest.raises(InvalidValueError, match=r"'threads' of a Platform must be an int from 1 to 999999. Got 0"):
        Platform("x", threads=0)


def test_platform_keeps_its_facts_from_changes():
    given = {"torch": "2.0.0"}
    platform = Platform("x", facts=given)
    given["torch"] = "3.0.0"
    assert platform.facts["torch"] == "2.0.0"
    with pytest.raises(TypeError, match=r"does not support item assignment"):
        platform.facts["torch"] = "3.0.0"  # type: ignore[index]


def test_platform_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"cannot assign to field 'device'"):
        Platform("x").device = "y"  # type: ignore[misc]


def test_differences_is_empty_for_the_same_platform():
    facts = {"device_name": "A", "torch": "2.0.0"}
    assert Platform("x", facts=facts).differences(Platform("x", facts=dict(facts))) == []


@pytest.mark.parametrize("change", [{"device": "y"}, {"runtime": "onnx"}, {"precision": "fp16"}, {"threads": 2}])
def test_differences_names_both_ids(change):
    one = Platform("x")
    other = dataclasses.replace(one, **change)
    assert one.differences(other) == [f"id: {one.id} against {other.id}"]


@pytest.mark.parametrize("fact", [fact.name for fact in FACTS if fact.identity])
def test_differences_compares_every_fact_of_identity(fact):
    found = Platform("x", facts={fact: "this"}).differences(Platform("x", facts={fact: "that"}))
    assert found == [f"{fact}: this against that"]


@pytest.mark.parametrize("fact", [fact.name for fact in FACTS if not fact.identity])
def test_differences_passes_over_facts_that_may_change(fact):
    assert Platform("x", facts={fact: "this"}).differences(Platform("x", facts={fact: "that"})) == []


def test_differences_does_not_hold_unknown_facts_against_anyone():
    assert Platform("x", facts={"torch": "2.0.0"}).differences(Platform("x")) == []


def test_check_same_platform_says_what_would_have_mixed():
    with pytest.raises(MismatchError, match=r"Merging would mix two platforms \(id: x\..* against y\."):
        check_same_platform(Platform("x"), Platform("y"), "Merging")


def test_check_same_platform_accepts_the_same():
    assert check_same_platform(Platform("x"), Platform("x"), "Merging") is None


@pytest.mark.parametrize(
    ("facts", "slug"),
    [
        ({"device_name": "AMD EPYC 7763 64-Core Processor"}, "epyc-7763"),
        ({"device_name": "Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz"}, "i7-9750h"),
        ({"device_name": "NVIDIA GeForce RTX 3090"}, "rtx-3090"),
        ({"device_name": "Intel(R) Xeon(R) Processor", "cpu_signature": "6-143-4"}, "xeon-6-143-4"),
        ({"device_name": "Intel(R)"}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_device_slug_keeps_what_tells_devices_apart(facts, slug):
    assert device_slug(facts) == slug
    assert Platform(slug).device == slug


def test_collect_facts_keeps_the_order_and_the_list_of_facts():
    names = [fact.name for fact in FACTS]
    found = list(collect_facts("cpu"))
    assert found == [name for name in names if name in found]
    assert {"device_kind", "device_name", "machine", "torch", "python"} <= set(found)


def test_collect_facts_does_without_cpuinfo(tmp_path):
    facts = collect_facts("cpu", root=tmp_path)
    assert facts["device_kind"] == "cpu"
    assert "cpu_signature" not in facts
    assert "cpu_governor" not in facts


def test_collect_facts_reads_cpuinfo_and_the_governor(tmp_path):
    files = {
        "proc/cpuinfo": "cpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Some CPU 9000\nstepping\t: 4\n"
        "flags\t\t: fpu hypervisor\n\nprocessor\t: 1\nmodel name\t: Other",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance",
        "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "3500000",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    facts = collect_facts("cpu", root=tmp_path)
    assert facts["device_name"] == "Some CPU 9000"
    assert facts["cpu_signature"] == "6-143-4"
    assert facts["virtualised"] is True
    assert facts["cpu_governor"] == "performance"
    assert facts["cpu_frequency_max"] == 3_500_000_000


def test_facts_have_different_names_and_a_meaning():
    assert len({fact.name for fact in FACTS}) == len(FACTS)
    assert all(fact.meaning for fact in FACTS)


def test_current_platform_carries_its_facts():
    platform = Platform.current("cpu", threads=2)
    assert platform.threads == 2
    assert platform.facts["device_kind"] == "cpu"


def test_current_platform_is_the_same_every_time():
    assert Platform.current("cpu").differences(Platform.current("cpu")) == []


def test_current_platform_takes_runtime_precision_and_threads():
    assert Platform.current(runtime="openvino", precision="bf16", threads=4).id.endswith(".openvino.bf16.t4")


def test_current_platform_refuses_a_device_that_is_not_there():
    with pytest.raises(UnknownNameError, match=r"Unknown device 'cuda:77'"):
        Platform.current("cuda:77")


def test_list_devices_begins_with_the_cpu():
    assert list_devices()[0] == "cpu"


def test_resolve_device_takes_cuda_for_the_first_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert [resolve_device(name) for name in ("cpu", "cuda", "cuda:1")] == ["cpu", "cuda:0", "cuda:1"]


def test_resolve_device_says_what_a_gpu_takes_where_there_is_none(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(UnknownNameError, match=r"'cuda'. Available: cpu. A GPU takes .* a CUDA build of torch\.$"):
        resolve_device("cuda")


@pytest.mark.parametrize("name", ["cuda:7", "tpu", "", "CPU"])
def test_resolve_device_lists_what_there_is(name, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(UnknownNameError, match=rf"Unknown device {name!r}. Available: cpu, cuda:0."):
        resolve_device(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pi-4.torch.fp32.t1", ["pi-4.torch.fp32.t1"]),
        ("torch", ["pi-4.torch.fp32.t1", "pi-4.torch.bf16.t1"]),
        ("torch:bf16", ["pi-4.torch.bf16.t1"]),
        ("torchs", ["pi-400.torchscript.fp32.t1"]),
        ("pi-4", ["pi-4.torch.fp32.t1", "pi-4.torch.bf16.t1"]),
        ("bf16.t1", ["pi-4.torch.bf16.t1"]),
        ("board", []),
    ],
)
def test_whole_parts_of_an_id_name_a_platform_before_parts_of_words(name, expected):
    ids = ["pi-4.torch.fp32.t1", "pi-400.torchscript.fp32.t1", "pi-4.torch.bf16.t1"]
    assert ids_named(name, ids) == expected


def test_speeds_are_facts_of_any_computer():
    speeds = measure_speeds()
    assert set(speeds) <= {fact.name for fact in FACTS}
    assert 1e8 < speeds["peak_flops"] < 1e13
    assert 1e8 < speeds["memory_bandwidth"] < 1e12
    with pytest.raises(UnknownNameError, match="device 'nowhere'"):
        measure_speeds("nowhere")
