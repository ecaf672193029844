# SPDX-License-Identifier: Apache-2.0
"""Tables that are counted, and tables of throughput."""

from __future__ import annotations

import dataclasses
import random

import pytest
from building import PROTOCOL, build, choice_runtime
from torch import nn

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.estimators import TableEstimator
from nni_latency.measurement import activation_memory
from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform
from nni_latency.spaces import CANDIDATES, FBNetSpace
from nni_latency.tables import (
    Entry,
    LookupTable,
    MeasurePlan,
    PlanCandidate,
    PlanLayer,
    Residency,
    SpaceReference,
    TableLayer,
    as_throughput,
    build_table,
    count_table,
)
from nni_latency.testing import FakeClock, fake_plan
from nni_latency.units import COUNTED_METRICS

_PLATFORM = Platform("pi", "torch")


@pytest.fixture(scope="module")
def space():
    return FBNetSpace(num_classes=10, input_size=32, width=0.5, depth=0.25)


@pytest.fixture(scope="module")
def parameters(space):
    return count_table(space.measure_plan(), "parameter_memory", _PLATFORM)


@pytest.fixture(scope="module")
def activations(space):
    return count_table(space.measure_plan(), "activation_memory", _PLATFORM)


def _sample(space, seed):
    generator = random.Random(seed)
    return {label: generator.choice(CANDIDATES) for label in space.simplify()}


def _tensors(network):
    return [*network.parameters(), *network.buffers()]


@pytest.mark.parametrize("seed", range(4))
def test_parameter_memory_is_that_of_the_frozen_network(space, parameters, seed):
    sample = _sample(space, seed)
    expected = sum(tensor.numel() * tensor.element_size() for tensor in _tensors(space.freeze(sample)))
    assert TableEstimator(parameters).estimate_sample(sample).value == expected


def test_parameter_memory_of_bf16_is_half_but_for_whole_numbers(space, parameters):
    half = count_table(space.measure_plan(), "parameter_memory", Platform("pi", "torch", "bf16"))
    sample = _sample(space, 0)
    whole = sum(
        tensor.numel() * tensor.element_size()
        for tensor in _tensors(space.freeze(sample))
        if not tensor.is_floating_point()
    )
    full, halved = (TableEstimator(table).estimate_sample(sample).value for table in (parameters, half))
    assert 2 * (halved - whole) == full - whole
    assert 0 < whole < 0.01 * full


@pytest.mark.parametrize("seed", range(4))
def test_activation_memory_is_that_of_the_frozen_network(space, activations, seed):
    """Up to what the network keeps all the time: its input, and what goes into its blocks."""
    sample = _sample(space, seed)
    whole = activation_memory(space.freeze(sample).eval(), space.example_inputs())
    kept = 4 * (space.example_inputs().numel() + space.stem(space.example_inputs()).numel())
    assert whole - kept <= TableEstimator(activations).estimate_sample(sample).value <= whole


def test_activation_memory_of_a_batch_is_as_many_times_as_large(space, activations):
    batch = count_table(space.measure_plan(batch_size=8), "activation_memory", _PLATFORM)
    for one, eight in zip(activations.layers, batch.layers, strict=True):
        assert {name: 8 * entry.value for name, entry in one.entries.items()} == {
            name: entry.value for name, entry in eight.entries.items()
        }


def test_counted_entries_are_exact(parameters):
    entries = [entry for layer in parameters.layers for entry in layer.entries.values()]
    assert all(entry.low == entry.value == entry.high for entry in entries)
    assert parameters.coverage == 1.0
    assert parameters.unsettled == ()


def test_layer_without_parameters_takes_none(parameters):
    skips = [layer.entries["skip"].value for layer in parameters.searched]
    assert 0.0 in skips


def test_counted_table_tells_what_it_is_of(space, parameters):
    plan = space.measure_plan()
    assert (parameters.space, parameters.metric, parameters.input_shape) == (
        plan.space,
        "parameter_memory",
        plan.input_shape,
    )
    assert [layer.default for layer in parameters.layers] == [layer.default for layer in plan.layers]
    assert parameters["stem"]["conv"].op == plan.layers[0].candidates["conv"].op


@pytest.mark.parametrize("metric", COUNTED_METRICS)
def test_counted_table_saves_and_loads(tmp_path, parameters, activations, metric):
    table = {"parameter_memory": parameters, "activation_memory": activations}[metric]
    assert LookupTable.load(table.save(tmp_path / "t.json")) == table


def test_counting_takes_the_precisions_of_torch(space):
    platform = dataclasses.replace(_PLATFORM, precision="int8")
    with pytest.raises(InvalidValueError, match=r"Memory is counted in fp32, bf16, fp16\. The platform is .*\.int8\."):
        count_table(space.measure_plan(), "parameter_memory", platform)


def test_counting_takes_the_metrics_that_can_be_counted(space):
    with pytest.raises(InvalidValueError, match=r"Counted are parameter_memory and activation_memory\. Got 'latency'"):
        count_table(space.measure_plan(), "latency", _PLATFORM)


def _broken():
    raise RuntimeError("no such kernel")


def test_candidate_that_can_not_be_made_is_named():
    op = OpSpec.of("relu", [(1, 4)])
    layer = PlanLayer("a", {"fine": PlanCandidate(op, nn.ReLU), "broken": PlanCandidate(op, _broken)})
    plan = MeasurePlan(SpaceReference("toy"), (1, 4), (layer,))
    with pytest.raises(MeasurementError, match=r"Cannot make a:broken: RuntimeError: no such kernel"):
        count_table(plan, "parameter_memory", _PLATFORM)


@pytest.mark.parametrize("metric", COUNTED_METRICS)
def test_candidate_that_can_not_be_run_is_named(metric):
    op = OpSpec.of("relu", [(1, 4)])
    layer = PlanLayer("a", {"wide": PlanCandidate(op, lambda: nn.Linear(9, 4))})
    plan = MeasurePlan(SpaceReference("toy"), (1, 4), (layer,))
    with pytest.raises(MeasurementError, match=r"a:wide"):
        count_table(plan, metric, _PLATFORM)


def test_counting_needs_the_operators_of_no_layer_before():
    """Each layer is fed by the first candidate of the one before, whatever shapes its own operators claim."""
    convolutions = [PlanCandidate(OpSpec.of("relu", [(1, 4)]), lambda: nn.Conv2d(3, 8, 3, padding=1))]
    layers = (
        PlanLayer("a", {"x": convolutions[0]}),
        PlanLayer("b", {"x": PlanCandidate(OpSpec.of("relu", [(1, 4)]), lambda: nn.Conv2d(8, 2, 1))}),
    )
    plan = MeasurePlan(SpaceReference("toy"), (1, 3, 4, 4), layers)
    table = count_table(plan, "activation_memory", _PLATFORM)
    # Input and output of 16 pixels each, four bytes a number.
    assert [table[name]["x"].value for name in "ab"] == [(3 + 8) * 64, (8 + 2) * 64]


# Throughput


_LATENCY = LookupTable(
    space=SpaceReference("fake"),
    platform=_PLATFORM,
    layers=(
        TableLayer("a", ("x", "y"), {"x": Entry(0.5, 0.25, 1.0, 9, 1), "y": Entry(2.0, 0.0, 4.0)}),
        TableLayer("b", ("x",), {"x": Entry(1.0, 1.0, 1.0)}),
    ),
    input_shape=(4, 3, 8, 8),
    calibration=1.125,
    residency=Residency(0.25, 2.0),
)


def test_throughput_is_the_batch_size_over_the_latency():
    entry = as_throughput(_LATENCY)["a"]["x"]
    assert (entry.value, entry.low, entry.high, entry.n_samples) == (8.0, 4.0, 16.0, 9)


def test_throughput_of_an_interval_that_reaches_down_to_nothing_has_an_end():
    entry = as_throughput(_LATENCY)["a"]["y"]
    assert (entry.low, entry.value) == (1.0, 2.0)
    assert entry.value < entry.high < float("inf")


@pytest.mark.parametrize("sample", [{"a": "x", "b": "x"}, {"a": "y", "b": "x"}])
def test_throughput_of_a_network_is_the_batch_size_over_its_latency(sample):
    latency, throughput = (
        TableEstimator(table).estimate_sample(sample) for table in (_LATENCY, as_throughput(_LATENCY))
    )
    assert throughput.value == pytest.approx(4 / latency.value, rel=1e-9)


def test_throughput_keeps_everything_else():
    table = as_throughput(_LATENCY)
    assert (table.metric, table.calibration, table.space, table.input_shape) == (
        "throughput",
        1.125,
        _LATENCY.space,
        _LATENCY.input_shape,
    )
    assert table.residency == Residency(0.25, 0.5)


def test_throughput_of_a_loaded_table_is_the_same(tmp_path):
    table = as_throughput(_LATENCY)
    assert LookupTable.load(table.save(tmp_path / "t.json")) == table


@pytest.mark.parametrize("metric", ["throughput", "energy", "parameter_memory"])
def test_throughput_is_made_of_latencies_alone(metric):
    with pytest.raises(InvalidValueError, match=rf"Only latencies become throughput\. The table is one of {metric}"):
        as_throughput(dataclasses.replace(_LATENCY, metric=metric))


def test_built_throughput_is_that_of_the_built_latencies(tmp_path):
    latency, throughput = (build(tmp_path / f"{name}.json", metric=name) for name in ("latency", "throughput"))
    same = dataclasses.replace(throughput, duration=latency.duration)
    assert same == as_throughput(latency)
    assert LookupTable.load(tmp_path / "throughput.json") == throughput


def test_throughput_did_not_settle_where_the_latencies_did_not(tmp_path):
    """However fast other candidates are: in throughput they are not the negligible ones, but the largest numbers."""
    plan, latencies = fake_plan({"a": {"fast": 1e-6, "slow": 1.0}, "b": {"x": 1.0}})
    clock, generator = FakeClock(), random.Random(0)
    runtime = choice_runtime(plan, latencies, {"a:slow": lambda: clock.advance(generator.random())}, clock=clock)
    protocol = dataclasses.replace(PROTOCOL, rounds=20)
    table = build_table(plan, runtime, protocol, tmp_path / "t.json")
    assert ("a", "slow") in table.unsettled
    assert as_throughput(table).unsettled == table.unsettled


def test_only_what_can_be_measured_is_built(tmp_path):
    with pytest.raises(InvalidValueError, match=r"The metric 'energy' needs a meter of energy"):
        build(tmp_path / "t.json", metric="energy")
