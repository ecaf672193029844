# SPDX-License-Identifier: Apache-2.0
"""Operators of models: timed in them and alone, the kinds that count, energy, resuming, and the file."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from nni_latency.errors import FileFormatError, InvalidValueError, MeasurementError
from nni_latency.graphs import families
from nni_latency.measurement import LocalBench, MemoryStore, Protocol
from nni_latency.measurement.meters import ConstantMeter
from nni_latency.measurement.runtimes import TorchEager
from nni_latency.profiling import (
    WAYS,
    CampaignFile,
    OperatorProfile,
    OperatorProfiler,
    alone_subject,
    family_model,
    own_model,
    profile_operators,
    published_names,
    select_kinds,
    shortfalls,
)
from nni_latency.testing import FakeClock, FakeMeter, FakeRuntime

#: What operators take [s] on the invented device.
_TIMES = {"conv2d": 0.012, "linear": 0.004, "relu": 0.001, "batch_norm": 0.002}


@pytest.fixture(autouse=True)
def _few_copies(monkeypatch):
    """Copy operators a few times only: on an invented device there are no caches."""
    monkeypatch.setattr("nni_latency.profiling._visits._MOST", 5)


_PROTOCOL = Protocol(n_warmup=1, n_run=2, time_budget=1e6, half_width=0.0, processes=1, max_measure_execution_time=1e6)


def _models(*names):
    made = {
        "convolutions": nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU()),
        "linear": nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(), nn.Linear(8, 8)),
        "normal": nn.Sequential(nn.BatchNorm2d(3), nn.ReLU()),
    }
    return [own_model(name, made[name].eval(), torch.zeros(1, 3, 8, 8)) for name in names or made]


def _runtime(latencies=None, **options):
    return FakeRuntime(latencies or (lambda op: _TIMES[op.kind]), **options)


def _profile(models, runtime, **how):
    asked = {"protocol": _PROTOCOL, "store": MemoryStore(), "timer": lambda: runtime.clock.now, **how}
    return profile_operators(models, runtime, **asked)


def test_operators_inside_add_up_to_their_models():
    profile = _profile(_models(), _runtime(mark=0.0001))
    times = {model.name: model.value for model in profile.models}
    assert times == pytest.approx({"convolutions": 0.026, "linear": 0.009, "normal": 0.003})
    for model in profile.models:
        assert sum(part.seconds for part in model.parts.values()) == pytest.approx(model.value)
        # Every operator is followed by a mark.
        assert profile.ratio(model, "context", "latency") > 1.01
    assert profile.shares("latency")["convolutions"]["conv2d dense"] == pytest.approx(0.024 / 0.026)


def test_kinds_are_added_until_every_model_is_attributed():
    profile = _profile(_models(), _runtime(), target=0.9)
    assert set(profile.significant) == {"conv2d dense", "linear", "batch_norm", "relu"}
    assert all(share >= 0.9 for share in profile.attributed("latency").values())
    fewer = _profile(_models("convolutions", "linear"), _runtime(), target=0.6)
    assert set(fewer.significant) == {"conv2d dense", "linear"}


def test_operators_that_count_are_measured_alone_both_ways():
    profile = _profile(_models("linear"), _runtime(), target=0.8)
    assert profile.significant == ("linear",)
    for item in profile.operators:
        assert set(item.alone) == (set(WAYS) if item.kind == "linear" else set())
        assert all(cost.value == pytest.approx(_TIMES[item.kind]) for cost in item.alone.values())
    (model,) = profile.models
    # On this device an operator takes alone what it does in a network.
    assert [profile.ratio(model, way, "latency") for way in (*WAYS, "context")] == pytest.approx([1.0, 1.0, 1.0])
    assert profile.metrics == ("latency",)
    assert profile.ratio(model, "memory", "energy") is None
    assert profile.meter is None


def test_energy_is_divided_by_time_inside_and_power_alone():
    clock = FakeClock()
    watts = {"conv2d": 30.0, "relu": 10.0}

    # The power of a window is that of what ran in it.
    running_power = [0.0]
    runtime = _runtime(clock=clock)
    original = runtime.prepare

    def prepare(subject, inputs):
        stage = original(subject, inputs)

        def run(value):
            running_power[0] = watts.get(subject.specification.get("operator", "").partition("(")[0], 25.0)
            return stage(value)

        run.call_times = stage.call_times
        return run

    runtime.prepare = prepare
    runtime.time_calls = lambda stage, value: stage.call_times(value)
    meter = FakeMeter(clock, lambda: running_power[0])
    profile = _profile(_models("convolutions"), runtime, target=1.0, meters=(meter,))
    (model,) = profile.models
    assert (model.watts, profile.meter, profile.assumption) == (pytest.approx(25.0), "simulated", None)
    assert model.joules == pytest.approx(25.0 * 0.026)
    powers = {item.kind: item.watts for item in profile.operators}
    assert powers == pytest.approx({"conv2d dense": 30.0, "relu": 10.0})
    joules = profile.joules(model)
    assert sum(joules.values()) == pytest.approx(model.joules)
    convolutions = sum(value for key, value in joules.items() if key.startswith("conv2d"))
    assert convolutions / model.joules == pytest.approx(0.024 * 30 / (0.024 * 30 + 0.002 * 10))
    summed = 0.024 * 30 + 0.002 * 10
    assert profile.ratio(model, "context", "energy") == pytest.approx(summed / model.joules)
    assert profile.ratio(model, "memory", "energy") == pytest.approx(summed / model.joules)


class _Odd(nn.Module):
    """A leaf whose two calls make it an operator that no key can build again."""

    def forward(self, inputs):
        return torch.sin(inputs) + torch.cos(inputs)


def test_leaf_that_cannot_be_built_is_taken_from_its_network():
    model = own_model("odd", nn.Sequential(nn.ReLU(), _Odd()), torch.zeros(2, 3))
    item = next(item for key, item in model.operators.items() if key.startswith("_odd"))
    for way in WAYS:
        loop = alone_subject(item, model, way).build()
        given = torch.zeros(1)
        assert loop(given) is given
        operator, (inputs,) = loop._current_turns()[0]
        assert tuple(inputs.shape) == (2, 3)
        assert torch.equal(operator(inputs), torch.sin(inputs) + torch.cos(inputs))
    assert len(alone_subject(item, model, "memory").build().operators) > 1


def test_loops_take_copies_in_turns():
    model = own_model("one", nn.Sequential(nn.Linear(64, 64)), torch.zeros(1, 64))
    (item,) = model.operators.values()
    subject = alone_subject(item, model, "memory")
    loop, met = subject.build(), []
    for number, operator in enumerate(loop.operators):
        operator.register_forward_hook(lambda *_, number=number: met.append(number))
    for _ in range(3):
        loop(torch.zeros(1))
    runs, copies = subject.specification["runs"], subject.specification["copies"]
    assert met == [run % copies for run in range(3 * runs)]
    weights = {operator.weight.data_ptr() for operator in loop.operators}
    assert len(weights) == copies


def test_operators_in_place_keep_their_input():
    model = own_model("one", nn.Sequential(nn.Hardswish(inplace=True)), torch.zeros(1, 64))
    (item,) = model.operators.values()
    loop = alone_subject(item, model, "reused").build()
    loop(torch.zeros(1))
    assert torch.equal(loop.input0_0, torch.zeros(1, 64))


def test_loops_run_on_a_bench_of_torch():
    model = own_model("one", nn.Sequential(nn.Conv2d(3, 4, 3)), torch.zeros(1, 3, 8, 8))
    (item,) = model.operators.values()
    with LocalBench(TorchEager(), Protocol(n_run=1)) as bench:
        for way in WAYS:
            subject = alone_subject(item, model, way)
            bench.admit(subject)
            assert bench.visit((subject.key,)).whole[0] > 0


def test_what_cannot_be_built_is_named_and_its_energy_not_attributed():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.relu = nn.ReLU()

        def forward(self, inputs):
            return self.relu(inputs).permute(0, 2, 1).contiguous()

    runtime = FakeRuntime(lambda op: 0.009 if op.kind == "copy" else 0.001)
    model = own_model("functional", Functional(), torch.zeros(1, 4, 5))
    meter = FakeMeter(runtime.clock, 10.0)
    profile = _profile([model], runtime, target=0.5, meters=(meter,))
    assert profile.attributed("latency")["functional"] == pytest.approx(1.0)
    assert profile.attributed("energy")["functional"] == pytest.approx(0.1)
    assert any("cannot be built from its key" in reason for reason in profile.failures.values())
    # The other kind was added in vain, and the shortfall is told.
    assert profile.significant == ("copy", "relu")
    assert shortfalls(profile.shares("energy"), 0.5, profile.significant) == {"functional": pytest.approx(0.1)}


def test_the_same_call_measures_nothing_again_and_more_models_only_what_is_new():
    store, clock = MemoryStore(), FakeClock()
    first = _profile(_models("convolutions"), _runtime(clock=clock), store=store)
    before = store.version()
    again = _profile(_models("convolutions"), _runtime(clock=clock), store=store)
    assert store.version() == before
    assert again.models == first.models
    more = _profile(_models("linear", "convolutions"), _runtime(clock=clock), store=store)
    assert more.models[1].value == pytest.approx(first.models[0].value)
    (campaign,) = store.campaigns()
    visits = [record.subjects[0] for record in campaign.records]
    models = {model.name: model.key for model in _models()}
    assert visits.count(models["convolutions"]) == visits.count(models["linear"])
    assert store.version() > before


def test_energy_by_an_assumed_power_is_attributed_as_time_is():
    """Operators that cannot be measured alone draw the assumed power, too, so no further kind is needed."""
    runtime = _runtime()
    meter = ConstantMeter(15, clock=lambda: runtime.clock.now)
    profile = _profile(_models("convolutions", "linear"), runtime, target=0.6, meters=(meter,))
    assert profile.assumption == "a constant power of 15 W"
    for model, shares in profile.shares("energy").items():
        assert shares == pytest.approx(profile.shares("latency")[model])
    plain = _profile(_models("convolutions", "linear"), _runtime(), target=0.6)
    assert profile.significant == plain.significant
    unmeasured = replace(profile, operators=tuple(replace(item, alone={}) for item in profile.operators))
    assert unmeasured.attributed("energy") == pytest.approx(profile.attributed("latency"))
    assert unmeasured.measured_alone()[0] == 0


@pytest.mark.parametrize(("seconds", "runs"), [(0.8, 1), (0.004, 4), (0.0005, 16)])
def test_an_operator_runs_as_often_in_a_loop_as_it_has_to(seconds, runs):
    store = MemoryStore()
    profile = _profile(_models("convolutions"), _runtime(lambda op: seconds), store=store, target=1.0)
    (campaign,) = store.campaigns()
    alone = {key.split("/")[0] for record in campaign.records if "/" in (key := record.subjects[0])}
    assert alone == {f"memory {runs}", f"reused {runs}"}
    # What an operator takes alone is over the number of its runs.
    found = [cost.value for item in profile.operators for cost in item.alone.values()]
    assert found == pytest.approx([seconds] * len(found))


def test_a_budget_that_is_spent_is_told(monkeypatch):
    monkeypatch.setattr("nni_latency.datasets._batches._BATCH", 1)
    short = Protocol(n_warmup=0, n_run=1, time_budget=40.0, half_width=0.0, processes=1)
    profile = _profile(
        _models("convolutions", "linear"), _runtime(lambda op: 100 * _TIMES[op.kind]), protocol=short, target=1.0
    )
    done, wanted = profile.measured_alone()
    assert 0 < done < wanted
    said = " ".join(profile.remarks)
    assert "The budget was spent before" in said
    assert "operators alone. Give a larger one." in said


def test_rounds_are_the_most_visits():
    store = MemoryStore()
    _profile(_models("linear"), _runtime(), protocol=replace(_PROTOCOL, rounds=2), store=store)
    (campaign,) = store.campaigns()
    visits = Counter(record.subjects for record in campaign.records)
    assert set(visits.values()) == {2}


def test_what_fails_is_named_and_the_others_go_on():
    class Moody(nn.Module):
        def forward(self, inputs):
            if not inputs.is_meta:
                raise ValueError("not today")
            return torch.relu(inputs)

    class Refusing(FakeRuntime):
        def prepare(self, subject, inputs):
            if subject.specification.get("name") == "moody":
                raise ValueError("not today")
            return super().prepare(subject, inputs)

    moody = own_model("moody", Moody(), torch.zeros(1, 4))
    profile = _profile([moody, *_models("linear")], Refusing(lambda op: _TIMES[op.kind]))
    assert profile.failures == {"moody": "ValueError: not today"}
    assert [model.name for model in profile.models] == ["linear"]
    with pytest.raises(MeasurementError, match="None of the networks can be run: ValueError: not today"):
        _profile([moody], Refusing(lambda op: _TIMES[op.kind]))


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        ([], {}, "needs at least one model. Got none"),
        (["linear", "linear"], {}, "Name 'linear' once"),
        (["linear"], {"target": 0.0}, r"must be a share in \(0, 1\]. Got 0.0"),
    ],
)
def test_what_makes_no_profile_is_refused(names, options, message):
    with pytest.raises(InvalidValueError, match=message):
        OperatorProfiler(_models(*names) if names else [], _runtime(), **options)


def test_runtime_that_compiles_networks_is_refused():
    runtime = _runtime()
    runtime.sees_calls = False
    with pytest.raises(MeasurementError, match="cannot time the operators of a network one by one"):
        OperatorProfiler(_models("linear"), runtime)
    with pytest.raises(MeasurementError, match="No model was measured yet"):
        OperatorProfiler(_models("linear"), _runtime()).profile()


def test_profile_is_what_was_saved(tmp_path):
    runtime = _runtime()
    meter = FakeMeter(runtime.clock, 12.0)
    profile = _profile(_models(), runtime, meters=(meter,), batch_size=1)
    path = profile.save(tmp_path / "profile.json")
    loaded = OperatorProfile.load(path)
    assert loaded.models == profile.models
    assert loaded.operators == profile.operators
    assert loaded.rows() == profile.rows()
    assert (loaded.meter, loaded.significant, loaded.campaign) == ("simulated", profile.significant, profile.campaign)
    content = json.loads(path.read_text())
    content["models"][0]["parts"]["none"] = {"count": 1, "seconds": 1.0}
    path.write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match=r"A profile must hold all operators of its models\. It lacks none\."):
        OperatorProfile.load(path)


def test_families_are_found_by_their_networks_names():
    names = published_names()
    assert names["resnet18"] == names["resnet"] == "resnet"
    assert set(names.values()) == set(families())
    assert {"vgg16", "densenet121", "squeezenet11", "vitti16"} < set(names)
    # What describes a network is no name of it.
    assert max(map(len, names)) < 20
    model = family_model("MobileNet_V2", 2)
    assert (model.name, model.trace.inputs) == ("MobileNet_V2", ((2, 3, 224, 224),))
    assert model.weights > 3e6
    assert family_model("no-such-net") is None
    text = family_model("bert", 3)
    assert text.inputs.args[0].dtype is torch.int64


_rows = st.dictionaries(st.sampled_from("abcdef"), st.floats(0.01, 1.0), min_size=1, max_size=6)


@given(st.lists(_rows, min_size=1, max_size=4), st.floats(0.05, 1.0))
def test_selected_kinds_reach_the_target_and_none_is_idle(rows, target):
    shares = [{kind: value / sum(row.values()) for kind, value in row.items()} for row in rows]
    chosen = select_kinds(shares, target)
    totals = [sum(row.get(kind, 0.0) for kind in chosen) for row in shares]
    assert min(totals) >= target - 1e-6
    assert len(set(chosen)) == len(chosen)
    before = [sum(row.get(kind, 0.0) for kind in chosen[:-1]) for row in shares]
    assert min(before) < target
    assert select_kinds(shares, target, chosen) == chosen


def test_campaign_file_is_read_and_marked(tmp_path):
    path = tmp_path / "models.txt"
    path.write_text("# mine\nresnet18\n[x] vit  # large\n\n[ ] net.py:Net 3,32,32 mask=16:int64\n")
    campaign = CampaignFile(path)
    assert [(item.model, item.inputs) for item in campaign.models] == [
        ("resnet18", ()),
        ("vit", ()),
        ("net.py:Net", ("3,32,32", "mask=16:int64")),
    ]
    campaign.mark({"resnet18": None, "net.py:Net": "it was\nslow"})
    assert path.read_text() == (
        "# mine\n[x] resnet18\n[ ] vit  # large\n\n[!] net.py:Net 3,32,32 mask=16:int64  # it was slow\n"
    )
    before = path.stat().st_mtime_ns
    campaign.mark({"resnet18": None, "net.py:Net": "it was\nslow"})
    assert path.stat().st_mtime_ns == before
    assert CampaignFile(path).models == campaign.models
    CampaignFile(path).mark({"resnet18": None, "net.py:Net": None, "vit": None})
    assert path.read_text() == "# mine\n[x] resnet18\n[x] vit  # large\n\n[x] net.py:Net 3,32,32 mask=16:int64\n"


def test_campaign_file_that_is_too_large_is_left_as_it_is(tmp_path):
    path = tmp_path / "models.txt"
    path.write_text("resnet18\n" + "# more\n" * 150_000)
    with pytest.raises(FileFormatError, match=r"models\.txt' is larger than 1 MiB\."):
        CampaignFile(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# nothing\n", "names no model. Write one a line"),
        ("vit\n[x] vit\n", "line 2, names 'vit' again"),
        (b"\xff\xfe\x00", "it is not text"),
        (None, "No such file"),
    ],
)
def test_campaign_file_that_says_nothing_is_refused(tmp_path, text, message):
    path = tmp_path / "models.txt"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(FileFormatError, match=message):
        CampaignFile(path)


def test_rows_say_what_every_kind_takes():
    profile = _profile(_models("linear"), _runtime())
    rows = profile.rows()
    assert np.isclose(sum(row["latency_share"] for row in rows), 1.0)
    assert rows[0]["kind"] == "linear"
    assert (rows[0]["runs"], rows[0]["operators"], rows[0]["energy"]) == (2, 2, None)
