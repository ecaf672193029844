# SPDX-License-Identifier: Apache-2.0
"""Time, power and energy of operators: read, predicted on devices, and added up to networks."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError

from nni_latency.energy import (
    DeviceFacts,
    EnergyEstimate,
    EnergyScores,
    MeasuredOperator,
    OperatorSum,
    PortableEstimator,
    PortableModel,
    cross_validate,
    kernel_features,
    leave_one_device_out,
    read_networks,
    read_operators,
)
from nni_latency.errors import FileFormatError, InvalidValueError
from nni_latency.loading import load_estimator
from nni_latency.operators import OpSpec, features_of, trace, work_of

PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "gpu-operators"

HEADER = "operator,input_shape,latency_s,energy_mj\n"
ROWS = (
    '"Conv2d(3, 64, kernel_size=(7, 7), stride=(2, 2), padding=(3, 3), bias=False)","(2, 3, 56, 56)",0.001,50\n'
    '"Conv2d(3, 64, kernel_size=(7, 7), stride=(2, 2), padding=(3, 3), bias=False)","(2, 3, 56, 56)",0.003,90\n'
    '"BatchNorm2d(64, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)","(2, 64, 28, 28)",0.001,5\n'
    'ReLU(inplace=True),"(2, 64, 28, 28)",0.001,5\n'
    '"AdaptiveAvgPool2d(output_size=(1, 1))","(2, 64, 28, 28)",0.001,5\n'
    '"AvgPool2d(kernel_size=2, stride=2, padding=0)","(2, 64, 28, 28)",0.001,5\n'
    '"Linear(in_features=64, out_features=10, bias=True)","(2, 64)",0.001,5\n'
    '"StochasticDepth(p=0.5, mode=row)","(2, 64, 28, 28)",0.001,5\n'
    '"MaxPool2d(kernel_size=3, stride=2, padding=1, dilation=1, ceil_mode=False)","(2, 64, 28, 28)",0.001,5\n'
    '"LayerNorm((64,), eps=1e-06, elementwise_affine=True)","(2, 7, 64)",0.001,5\n'
    '"GELU(approximate=\'none\')","(2, 64)",0.001,5\n'
)


def _file(tmp_path, text):
    path = tmp_path / "operators.csv"
    path.write_text(text)
    return path


def test_read_operators_names_them_as_a_trace_does(tmp_path):
    import torch
    from torch import nn

    found = read_operators(_file(tmp_path, HEADER + ROWS))
    network = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.AvgPool2d(2)
    )
    traced = [item.op for item in trace(network, torch.zeros(2, 3, 56, 56)).operators]
    assert [item.op for item in found][:3] == traced[:3]
    assert traced[3] in {item.op for item in found}
    pooled = nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.GELU())
    assert trace(pooled, torch.zeros(2, 64, 28, 28)).operators[0].op in {item.op for item in found}
    assert (found[0].seconds, found[0].joules, found[0].watts) == (0.002, 0.07, 35.0)
    assert {item.op.kind for item in found} >= {"linear", "stochastic_depth", "gelu", "adaptive_avg_pool2d"}


@pytest.mark.parametrize(("text", "message"), [
    ("operator,input_shape\n", r"no column latency_s, energy_mj"),
    (HEADER + 'ReLU(),"(1, 2)",nan,5\n', r"line 2: time and energy must be positive"),
    (HEADER + 'ReLU(),"(1, 2)",,5\n', r"line 2: time and energy must be positive"),
    (HEADER + 'ReLU(,"(1, 2)",1,5\n', r"line 2: 'ReLU\(' on .* is no operator of torch"),
    (HEADER + 'ReLU(),"(1, x)",1,5\n', r"is no operator of torch"),
    (HEADER + '__import__("os").getcwd(),"(1, 2)",1,5\n', r"is no operator of torch"),
    (HEADER + '"MultiheadAttention(5, 2)","(1, 5)",1,5\n', r"is no operator of torch: AssertionError: "),
])  # fmt: skip
def test_file_that_can_not_be_understood_says_where(tmp_path, text, message):
    with pytest.raises(FileFormatError, match=message):
        read_operators(_file(tmp_path, text))


@pytest.mark.parametrize("read", [read_operators, read_networks])
def test_a_line_that_is_cut_off_is_told(tmp_path, read):
    text = 'input_shape,latency_s,energy_mj,operator\n"(1, 2)",0.1,5\n'
    with pytest.raises(FileFormatError, match=r"line 2: it has fewer fields than the first line\.$"):
        read(_file(tmp_path, text))


def test_absent_file_and_odd_shapes_are_told(tmp_path):
    with pytest.raises(FileFormatError, match=r"cannot be read"):
        read_operators(tmp_path / "absent.csv")
    with pytest.raises(FileFormatError, match=r"line 2: 'big' is no shape"):
        read_networks(_file(tmp_path, HEADER + "resnet,big,1,5\n"))


FACTS = {
    "slow": DeviceFacts(1e12, 1e11, 100.0, 20.0, 1e-5),
    "fast": DeviceFacts(8e12, 5e11, 250.0, 60.0, 5e-6),
    "other": DeviceFacts(3e12, 4e11, 150.0, 30.0, 8e-6),
}


def _measure(op, device):
    """Return what an operator costs on an invented device: launch or roofline, and a power between rest and most."""
    work = work_of(op)[0]
    busy = max(work.flops / device.flops, 4 * (work.inputs + work.outputs) / device.bandwidth)
    seconds = max(device.launch, busy)
    return MeasuredOperator(op, seconds, device.rest * seconds + (device.power - device.rest) * busy)


def _ops(count=60, seed=0):
    random = np.random.default_rng(seed)
    ops = []
    for _ in range(count):
        channels, size = int(2 ** random.integers(4, 9)), int(random.integers(4, 40))
        shape = (8, channels, size, size)
        ops.append(OpSpec.of("relu", [shape]))
        ops.append(OpSpec.of("conv2d", [shape], bias=False, groups=1, kernel_size=3, out_channels=channels, stride=1))
    return list(dict.fromkeys(ops))


def test_facts_of_a_device_are_found_from_its_operators():
    found = DeviceFacts.of([_measure(op, FACTS["fast"]) for op in _ops(200)])
    true = FACTS["fast"]
    assert found.launch == pytest.approx(true.launch)
    assert found.power == pytest.approx(true.power, rel=0.05)
    assert found.flops == pytest.approx(true.flops, rel=0.05)
    with pytest.raises(InvalidValueError, match=r"at least three measured operators\. Got 1"):
        DeviceFacts.of([_measure(_ops()[0], true)])
    with pytest.raises(InvalidValueError, match=r"'power' of DeviceFacts must be a positive number\. Got nan"):
        DeviceFacts(1, 1, math.nan, 1, 1)


def test_operators_that_were_not_seen_are_predicted_better_than_by_a_constant_power():
    # Launches take so long that many operators leave the device half idle.
    device = dataclasses.replace(FACTS["fast"], launch=1e-4)
    scores = cross_validate([_measure(op, device) for op in _ops()], device=device)
    assert scores.energy[0] < 0.1 < scores.constant[0]


@pytest.mark.slow
def test_device_that_was_not_seen_is_predicted_by_its_facts():
    ops = _ops()
    measured = {name: [_measure(op, device) for op in ops] for name, device in FACTS.items()}
    scores = leave_one_device_out(measured, FACTS)
    assert set(scores) == set(FACTS)
    assert scores["other"].time[0] < 0.2
    with pytest.raises(InvalidValueError, match=r"at least two\. Got 1"):
        leave_one_device_out({"slow": measured["slow"]}, FACTS)


def test_portable_model_is_saved_and_read(tmp_path):
    ops = _ops(20)
    model = PortableModel(n_trees=5)
    with pytest.raises(NotFittedError):
        model.predict_time_power(ops, FACTS["slow"])
    with pytest.raises(NotFittedError):
        model.save(tmp_path / "model.json")
    model.fit({"slow": [_measure(op, FACTS["slow"]) for op in ops]}, FACTS)
    read = PortableModel.load(model.save(tmp_path / "model.json"))
    for before, after in zip(
        model.predict_time_power(ops, FACTS["fast"]), read.predict_time_power(ops, FACTS["fast"]), strict=True
    ):
        assert np.array_equal(before, after)
    (tmp_path / "model.json").write_text((tmp_path / "model.json").read_text()[:500])
    with pytest.raises(FileFormatError):
        PortableModel.load(tmp_path / "model.json")
    with pytest.raises(InvalidValueError, match=r"facts of the device 'unknown' are missing"):
        model.fit({"unknown": [_measure(op, FACTS["slow"]) for op in ops]}, FACTS)


def test_constant_power_is_the_median_of_a_device_and_a_share_of_the_most_of_another():
    ops = _ops(40)
    measured = {name: [_measure(op, FACTS[name]) for op in ops] for name in ("slow", "fast")}
    model = PortableModel(n_trees=3).fit(measured, FACTS)
    assert model.constant_power("slow") == pytest.approx(np.median([item.watts for item in measured["slow"]]))
    shares = [item.watts / FACTS[name].power for name, items in measured.items() for item in items]
    assert model.constant_power(FACTS["other"]) == pytest.approx(np.median(shares) * FACTS["other"].power, rel=0.02)
    with pytest.raises(InvalidValueError, match=r"has not learned from 'other'\. It knows: slow, fast"):
        model.constant_power("other")
    with pytest.raises(NotFittedError):
        PortableModel().constant_power("slow")


def test_energy_stands_beside_what_the_time_alone_says():
    import torch
    from torch import nn

    ops = _ops(40)
    model = PortableModel(n_trees=20).fit({"slow": [_measure(op, FACTS["slow"]) for op in ops]}, FACTS)
    estimator = PortableEstimator(model, "slow")
    network, inputs = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.ReLU()), torch.zeros(8, 64, 10, 10)
    found = estimator.estimate(network, inputs)
    seconds = PortableEstimator(model, "slow", metric="latency").estimate(network, inputs)
    assert isinstance(found, EnergyEstimate)
    assert not isinstance(seconds, EnergyEstimate)
    assert estimator.constant_power == model.constant_power("slow")
    assert found.at_constant_power == pytest.approx(seconds.value * estimator.constant_power)
    assert EnergyEstimate.sum([found, found]).at_constant_power == pytest.approx(2 * found.at_constant_power)
    assert EnergyEstimate.mean([found, found]).at_constant_power == pytest.approx(found.at_constant_power)


def test_operators_that_were_held_out_are_kept_with_the_model(tmp_path):
    measured = {name: [_measure(op, FACTS[name]) for op in _ops(8)] for name in ("slow", "fast")}
    model = PortableModel(n_trees=3)
    scores = cross_validate(measured["slow"], model=model, name="slow")
    left_out = leave_one_device_out(measured, FACTS, model)["fast"]
    assert len(scores.held_out) == len(measured["slow"])
    assert EnergyScores.of(scores.held_out) == scores
    assert {(item.device, item.whole_device) for item in scores.held_out} == {("slow", False)}
    assert {(item.device, item.whole_device) for item in left_out.held_out} == {("fast", True)}
    # The power that a device usually draws is told by others alone.
    assert len({item.constant_power for item in left_out.held_out}) == 1
    model.fit(measured, FACTS)
    model.held_out_ = (*scores.held_out, *left_out.held_out)
    read = PortableModel.load(model.save(tmp_path / "model.json"))
    assert read.held_out_ == model.held_out_
    assert (read.share_, read.powers_) == (model.share_, model.powers_)
    with pytest.raises(InvalidValueError, match=r"at least one operator that was held out"):
        EnergyScores.of([])


def test_portable_estimator_adds_up_what_the_model_says(tmp_path):
    import torch
    from torch import nn

    ops = _ops(40)
    model = PortableModel(n_trees=20).fit({"slow": [_measure(op, FACTS["slow"]) for op in ops]}, FACTS)
    model.bounds_ = {"energy": 0.25}
    model = PortableModel.load(model.save(tmp_path / "model.json"))
    network = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(6400, 2))
    inputs = torch.zeros(8, 64, 10, 10)
    traced = [item.op for item in trace(network, inputs).operators]
    for metric, device in (("energy", "slow"), ("latency", FACTS["other"])):
        estimator = PortableEstimator(model, device, metric=metric)
        found = estimator.estimate(network, inputs)
        seconds, watts = model.predict_time_power(traced, estimator.device)
        assert found.value == pytest.approx(float((seconds * (watts if metric == "energy" else 1)).sum()))
        assert found.high == pytest.approx(found.value * (1.25 if metric == "energy" else 1.0))
        assert found.missing == ("nothing like it was measured: linear(bias=1,out_features=2)@8x6400:float32",)
        assert estimator.estimate_op(traced[0]).missing == ()
    with pytest.raises(InvalidValueError, match=r"has not learned from 'fast'\. It knows: slow"):
        PortableEstimator(model, "fast")
    with pytest.raises(InvalidValueError, match=r"must be energy or latency\. Got 'power'"):
        PortableEstimator(model, "slow", metric="power")
    with pytest.raises(NotFittedError):
        PortableEstimator(PortableModel(), "slow")


def test_portable_model_is_loaded_by_its_file_and_device(tmp_path):
    ops = _ops(20)
    measured = {name: [_measure(op, FACTS[name]) for op in ops] for name in ("slow", "other")}
    path = PortableModel(n_trees=3).fit(measured, FACTS).save(tmp_path / "model.json")
    assert load_estimator(f"energy:{path},slow").platform.device == "slow"
    assert load_estimator(f"energy:{path},other,metric=latency").metric == "latency"
    facts = "flops=8e12,bandwidth=5e11,power=250,rest=60,launch=5e-6"
    assert load_estimator(f"energy:{path},{facts}").device == FACTS["fast"]
    with pytest.raises(InvalidValueError, match=r"takes a file and one device, or its facts.*It knows: slow, other"):
        load_estimator(str(path))
    with pytest.raises(InvalidValueError, match="The facts of a device are flops, bandwidth, power, rest and launch"):
        load_estimator(f"energy:{path},flops=8e12")
    with pytest.raises(InvalidValueError, match="The 'rest' of DeviceFacts must be a positive number"):
        load_estimator(f"energy:{path},{facts.replace('60', '-60')}")


def test_nine_of_ten_operators_stay_within_the_bounds():
    ops = _ops(80)
    scores = cross_validate([_measure(op, FACTS["slow"]) for op in ops], model=PortableModel(n_trees=10))
    assert scores.time[0] <= scores.bounds[0]
    assert scores.energy[0] <= scores.bounds[1]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=5))
def test_features_are_finite_whatever_the_shape(shape):
    for kind in ("relu", "add", "mystery", "layer_norm"):
        assert np.isfinite(kernel_features([OpSpec.of(kind, [tuple(shape)])], FACTS["slow"])).all()


def test_network_that_keeps_the_gpu_busy_is_the_sum_of_its_work():
    ops = [op for op in _ops(40) if _measure(op, FACTS["slow"]).seconds > 5 * FACTS["slow"].launch]
    measured = [_measure(op, FACTS["slow"]) for op in _ops(40)]
    total = OperatorSum().fit(measured).total(ops)
    assert total.seconds == pytest.approx(total.plain_seconds, rel=1e-6)
    assert total.joules == pytest.approx(total.plain_joules, rel=0.02)
    assert (total.measured, total.predicted) == (1.0, {})


def test_network_of_small_operators_waits_for_their_launches():
    device = FACTS["fast"]
    small = [OpSpec.of("relu", [(1, size)]) for size in range(1, 40)]
    large = [OpSpec.of("relu", [(64, 64, size)]) for size in range(500, 4000, 100)]
    model = OperatorSum().fit([_measure(op, device) for op in [*small, *large]])
    mixed = model.total([*small * 20, *large])
    # Launches of small operators hide behind the work of large ones, and those of many do not.
    assert mixed.seconds < mixed.plain_seconds
    assert mixed.launches == pytest.approx(device.launch * (20 * len(small) + len(large)), rel=0.2)
    alone = model.total(small)
    assert alone.seconds == pytest.approx(alone.launches)
    assert alone.joules == pytest.approx(device.rest * alone.seconds, rel=0.2)


def test_normalisations_that_were_measured_in_training_are_predicted_for_inference():
    device = FACTS["slow"]
    shapes = [(32, channels, size, size) for channels in (64, 128, 256) for size in (14, 28, 56, 112)]
    relu = [_measure(OpSpec.of("relu", [shape]), device) for shape in shapes]
    norms = [MeasuredOperator(OpSpec.of("batch_norm", [item.op.input_shapes[0]]), 2 * item.seconds, 2 * item.joules)
             for item in relu]  # fmt: skip
    others = [_measure(op, device) for op in _ops(20) if op.kind == "conv2d"]
    ops = [item.op for item in norms[-6:]]
    corrected = OperatorSum().fit([*relu, *norms, *others]).total(ops)
    assert corrected.seconds == pytest.approx(0.5 * corrected.plain_seconds, rel=0.1)
    trained = OperatorSum(inference=False).fit([*relu, *norms, *others]).total(ops)
    assert trained.seconds == pytest.approx(trained.plain_seconds)


def test_operator_sum_that_can_not_add_up_says_so():
    with pytest.raises(NotFittedError):
        OperatorSum().total(_ops(1))
    with pytest.raises(InvalidValueError, match=r"at least one operator"):
        OperatorSum().fit([_measure(op, FACTS["slow"]) for op in _ops(5)]).total([])


@pytest.mark.slow
@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published measurements of GPUs are not at hand")
def test_published_operators_add_up_to_published_networks():
    import importlib.util

    path = Path(__file__).parents[2] / "examples" / "gpu_operator_energy.py"
    specification = importlib.util.spec_from_file_location("gpu_operator_energy", path)
    example = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(example)
    operators = read_operators(PUBLISHED / "a30_operators.csv")
    model, traced = OperatorSum().fit(operators), example.read_traced(example.TRACED)
    errors = []
    for network in read_networks(PUBLISHED / "a30_models.csv"):
        total = model.total(example.ops_of(network, traced))
        errors.append([total.seconds / network.seconds - 1, total.joules / network.joules - 1])
    time, energy = np.abs(errors).mean(axis=0)
    assert max(time, energy) < 0.05


@pytest.mark.parametrize(
    ("text", "out"),
    [
        ("MaxPool2d(kernel_size=3, stride=2, padding=0, dilation=1, ceil_mode=True)", 16 * 28 * 28),
        ("MaxPool2d(kernel_size=(3, 2), stride=(2, 2), padding=0)", 16 * 27 * 28),
        ("AvgPool2d(kernel_size=3, stride=1, padding=1)", 16 * 56 * 56),
        ("Conv2d(16, 8, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), dilation=(2, 2))", 8 * 54 * 54),
        ("Conv2d(16, 8, kernel_size=(3, 3), stride=(1, 1), padding=same)", 8 * 56 * 56),
        ("ConvTranspose2d(16, 8, kernel_size=(2, 2), stride=(2, 2))", 8 * 112 * 112),
    ],
)
def test_operators_of_a_file_have_the_output_that_torch_gives_them(tmp_path, text, out):
    path = tmp_path / "operators.csv"
    path.write_text(f'operator,input_shape,latency_s,energy_mj\n"{text}","(1, 16, 56, 56)",0.001,5\n')
    (found,) = read_operators(path)
    assert features_of(found.op).outputs == out


def test_module_that_does_not_take_its_arguments_is_named(tmp_path):
    path = tmp_path / "operators.csv"
    path.write_text('operator,input_shape,latency_s,energy_mj\n"Conv2d(3, 4)","(1, 3, 8, 8)",0.001,5\n')
    with pytest.raises(FileFormatError, match=r"line 2: 'Conv2d\(3, 4\)' on .* is no operator of torch"):
        read_operators(path)
