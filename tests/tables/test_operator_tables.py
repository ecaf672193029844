# SPDX-License-Identifier: Apache-2.0
"""Tables of operators: measured in context, exact where the machine is."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nni_latency.documents import load
from nni_latency.errors import FileFormatError, InvalidValueError, MeasurementError
from nni_latency.estimators import (
    Estimate,
    FallbackEstimator,
    LayerEnsemble,
    LayerEstimator,
    TableEstimator,
    break_down,
)
from nni_latency.measurement import CallMap, MemoryStore, Protocol, Record
from nni_latency.operators import OpSpec, trace
from nni_latency.platforms import Platform
from nni_latency.spaces import draw_samples, example_inputs_of, make_space, network_of, operator_plan
from nni_latency.tables import (
    Entry,
    LookupTable,
    MeasuredNetwork,
    OperatorSamples,
    Place,
    SpaceReference,
    build_table,
    operator_entries,
)
from nni_latency.testing import FakeRuntime

OWN = f"{Path(__file__).parent.parent / 'spaces' / 'own_space.py'}:OwnSpace"
PROTOCOL = Protocol(n_warmup=0, rounds=4, time_budget=1e9)


def seconds(op):
    """Return the time of an operator on the invented machine."""
    return 1e-5 + 1e-8 * sum(math.prod(shape) for shape in op.input_shapes) + 1e-6 * len(op.kind)


@pytest.fixture(scope="module")
def space():
    return make_space(OWN)


@pytest.fixture(scope="module")
def plan(space):
    return operator_plan(space, n_networks=5)


@pytest.fixture(scope="module")
def table(plan, tmp_path_factory):
    path = tmp_path_factory.mktemp("built") / "t.json"
    return build_table(plan, FakeRuntime(seconds), PROTOCOL, path, store="memory")


def test_entries_are_exact_where_the_machine_is(table, plan):
    assert set(table.by_op) == set(plan.ops)
    for entry in table.operators:
        assert entry.value == pytest.approx(seconds(entry.op), rel=1e-6)
        assert entry.low < entry.value < entry.high
        assert entry.n_places >= entry.n_networks >= 1
        # Its calls are timed in the first of four visits of a network.
        assert entry.n_samples == entry.n_places
    assert table.calibration == pytest.approx(1.0, rel=1e-6)
    assert table.residency is None
    assert len(table.networks) == 5
    assert table.reference == pytest.approx(table.networks[0].entries, rel=1e-6)
    assert table.rounds == 4


def test_marks_drift_and_a_slow_network_are_taken_out(plan, tmp_path):
    factors = np.random.RandomState(0).uniform(0.5, 2.0, 10_000)
    turns = iter(range(10_000))
    runtime = FakeRuntime(seconds, mark=2e-6)
    table = build_table(plan, runtime, PROTOCOL, tmp_path / "marked.json", store="memory")
    for entry in table.operators:
        assert entry.value == pytest.approx(seconds(entry.op), rel=0.02)
    # Every run is of another speed, which tells one operator from another no more.
    noisy = FakeRuntime(seconds, drift=lambda: 1 + 0.1 * factors[next(turns) % 10_000])
    table = build_table(plan, noisy, replace(PROTOCOL, rounds=12), tmp_path / "noisy.json", store="memory")
    ratios = [entry.value / seconds(entry.op) for entry in table.operators]
    assert max(ratios) / min(ratios) < 1.1


def test_operators_that_are_fused_in_some_places_add_up_to_the_networks():
    relu, tanh = (OpSpec.of(name, [(1, 8)]).op_key for name in ("relu", "tanh"))
    places = [Place(tanh, f"network {number}", 1e-5, 4) for number in range(10)]
    places += [Place(relu, f"network {number}", 8e-6 if number % 4 == 0 else 1e-9, 4) for number in range(10)]
    entries = operator_entries(places)
    measured = math.fsum(place.value for place in places)
    assert 10 * math.fsum(entry.value for entry in entries.values()) == pytest.approx(measured, rel=0.05)
    assert entries[relu].high < 20 * entries[relu].value


def test_what_all_failed_before_is_said_to_have_failed_then(plan, tmp_path):
    class Broken(FakeRuntime):
        def prepare(self, subject, inputs):
            raise RuntimeError("not installed yet")

    store, out = MemoryStore(), tmp_path / "t.json"
    with pytest.raises(MeasurementError, match=r"No network can be run: RuntimeError: not installed yet\.$"):
        build_table(plan, Broken(seconds), PROTOCOL, out, store=store)
    with pytest.raises(MeasurementError, match=r"This failed in an earlier run .* set the option 'fresh'"):
        build_table(plan, FakeRuntime(seconds), PROTOCOL, out, store=store)
    assert build_table(plan, FakeRuntime(seconds), PROTOCOL, out, store=store, fresh=True).failures == {}


def test_a_build_that_was_stopped_goes_on(plan, table, tmp_path):
    out = tmp_path / "stopped.json"
    seen = []

    def stop(progress):
        seen.append(progress.rounds)
        if len(seen) == 3:
            raise KeyboardInterrupt

    store = MemoryStore()
    with pytest.raises(KeyboardInterrupt):
        build_table(plan, FakeRuntime(seconds), PROTOCOL, out, store=store, on_progress=stop)
    assert not out.exists()
    started = []
    again = build_table(plan, FakeRuntime(seconds), PROTOCOL, out, store=store, on_start=started.append)
    assert started == [3]
    assert [entry.value for entry in again.operators] == pytest.approx([entry.value for entry in table.operators])
    assert again.rounds == table.rounds


def _broken():
    raise RuntimeError("no such layer")


def test_networks_that_fail_are_recorded_and_the_rest_is_measured(plan, tmp_path):
    networks = list(plan.networks)
    networks[2] = replace(networks[2], build=_broken)
    # It runs another way than it was traced.
    networks[3] = replace(networks[3], build=networks[0].build)
    broken = replace(plan, networks=tuple(networks))
    table = build_table(broken, FakeRuntime(seconds), PROTOCOL, tmp_path / "t.json", store="memory")
    assert len(table.networks) == 3 + (networks[3].trace.n_calls == networks[0].trace.n_calls)
    assert table.failures[json.dumps(networks[2].sample)] == "RuntimeError: no such layer"
    for entry in table.operators:
        assert entry.value > 0


def test_a_space_that_can_not_run_at_all_is_an_error(plan, tmp_path):
    broken = replace(plan, networks=tuple(replace(network, build=_broken) for network in plan.networks))
    with pytest.raises(MeasurementError, match=r"No network can be run: .*no such layer"):
        build_table(broken, FakeRuntime(seconds), PROTOCOL, tmp_path / "t.json", store="memory")


def test_a_runtime_without_calls_is_refused(plan, tmp_path, monkeypatch):
    monkeypatch.setattr(FakeRuntime, "sees_calls", False)
    with pytest.raises(MeasurementError, match=r"'fake' cannot time the operators .*such as torch"):
        build_table(plan, FakeRuntime(seconds), PROTOCOL, tmp_path / "t.json", store="memory")


def test_a_table_is_not_replaced_unless_asked(plan, tmp_path):
    (tmp_path / "t.json").write_text("mine")
    with pytest.raises(InvalidValueError, match="overwrite=True"):
        build_table(plan, FakeRuntime(seconds), PROTOCOL, tmp_path / "t.json", store="memory")
    assert (tmp_path / "t.json").read_text() == "mine"


def test_a_table_survives_its_file(table, tmp_path):
    path = table.save(tmp_path / "saved.json")
    assert LookupTable.load(path) == table
    assert load(path) == table
    lookup = LookupTable.from_latencies({"a": ["x"]}, {"a": {"x": 1e-3}})
    assert load(lookup.save(tmp_path / "lookup.json")).layers == lookup.layers


def test_a_table_of_infinite_attributes_survives_its_file(table, tmp_path):
    masked = OpSpec.of("masked_fill", [(1, 8), (1, 8)], value=-math.inf)
    known = replace(table, operators=(*table.operators, Entry(1e-3, 1e-3, 1e-3, op=masked)))
    assert LookupTable.load(known.save(tmp_path / "saved.json")) == known
    estimator = TableEstimator(known)
    assert estimator.estimate_op(masked).value == pytest.approx(1e-3)
    assert 0 < estimator.estimate_op(OpSpec.of("masked_fill", [(1, 9), (1, 9)], value=-math.inf)).value < math.inf


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "nni_latency.transfer"}, "its format must be 'nni_latency.lookup_table'"),
        ({"version": 2}, "has version 2, this nni_latency reads up to 1"),
        ({"operators": []}, "at least one, or operators"),
        ({"calibration": -1.0}, "calibration"),
        ({"something": 1}, "something"),
        ({"unit": "ms"}, "unit"),
    ],
)
def test_an_altered_file_is_refused(table, tmp_path, change, message):
    path = table.save(tmp_path / "altered.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(FileFormatError, match=message):
        LookupTable.load(path)


def test_a_value_outside_its_interval_and_a_double_are_refused(table, tmp_path):
    path = table.save(tmp_path / "altered.json")
    content = json.loads(path.read_text())
    content["operators"].append(content["operators"][0])
    path.write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match="every operator once"):
        LookupTable.load(path)
    content["operators"].pop()
    content["operators"][0]["low"] = 1.0
    path.write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match="must enclose its value"):
        LookupTable.load(path)


def test_a_file_cut_off_is_refused(table, tmp_path):
    path = table.save(tmp_path / "cut.json")
    path.write_text(path.read_text()[:500])
    for read in (LookupTable.load, load):
        with pytest.raises(FileFormatError, match="is not whole JSON"):
            read(path)


def test_numbers_that_can_not_be_are_refused():
    op = OpSpec.of("relu", [(1, 4)])
    header = {"space": SpaceReference("mine"), "platform": Platform("a", "torch"), "input_shape": (1, 4)}
    with pytest.raises(InvalidValueError, match="must be positive"):
        LookupTable(**header, operators=(Entry(0.0, 0.0, 1.0, op=op),))
    with pytest.raises(InvalidValueError, match="enclose its value"):
        MeasuredNetwork(1.0, 2.0, 3.0, sample={}, entries=1.0)
    with pytest.raises(InvalidValueError, match="at least one, or operators"):
        LookupTable(**header)


def test_times_of_calls_add_up_by_operator(space):
    network = network_of(space, draw_samples(space, 1)[0])()
    traced = trace(network, example_inputs_of(space))
    calls = np.random.RandomState(0).uniform(1, 2, (3, traced.n_calls))
    times = CallMap.of(traced).times(calls)
    assert times.shape == (3, len(traced.operators))
    assert times.sum(1) == pytest.approx(calls.sum(1))


def _visit(plan, number, index, factor, reference=1.0):
    """Return a visit of a network while the machine, and its reference operator, are slower by these factors."""
    traced = plan.networks[index].trace
    times = np.zeros(traced.n_calls)
    for item in traced.operators:
        times[item.last_call] = seconds(item.op) * factor
    return Record(1e-3 * reference, [times.tolist()], {"latency": [float(times.sum())]}, (str(index),), number)


def _samples(plan, records):
    calls = {str(index): item.subject_calls for index, item in enumerate(plan.networks)}
    return OperatorSamples(calls, PROTOCOL, records)


def _true(plan, index):
    return sum(seconds(item.op) for item in plan.networks[index].trace.operators)


def test_a_spell_that_slows_networks_and_not_the_reference_operator_is_taken_out(plan):
    records, slow = [], 2.5
    for number in range(24):
        factor = slow if 8 <= number < 16 else 1.0
        # Every other network is measured in the spell alone.
        members = [index for index in range(len(plan.networks)) if index == 0 or (index % 2 == 0) == (factor == slow)]
        records += [_visit(plan, number, index, factor) for index in members]
    samples = _samples(plan, records)
    for index in range(len(plan.networks)):
        assert samples.whole(str(index)).value == pytest.approx(_true(plan, index), rel=0.06)
    slowness = samples.fit.slowness
    assert slowness[len(slowness) // 2] > 2
    assert slowness[0] == pytest.approx(1.0, rel=0.06)


def test_a_speed_that_changes_within_a_round_is_taken_out(plan):
    """A shared machine becomes slower by 70 % for a few visits; most networks are visited once or twice."""
    random, records = np.random.RandomState(0), []
    for number in range(12):
        members = [0, 1 + number % 4, 1 + (number + 1) % 4] if number < 6 else [0]
        slow = random.uniform(size=len(members)) < 0.5
        turns = zip(members, slow.tolist(), strict=True)
        records += [_visit(plan, number, index, 1.7**turn, 1.5**turn) for index, turn in turns]
    samples = _samples(plan, records)
    entries = operator_entries([place for network in samples.measured for place in samples.places(network)])
    ratios = [entry.value / seconds(entry.op) for entry in entries.values()]
    assert max(ratios) / min(ratios) < 1.1
    for index in range(len(plan.networks)):
        whole = samples.whole(str(index)).value
        assert whole == pytest.approx(samples.fit.predict(samples.fit.sums[str(index)]), rel=0.1)


@pytest.mark.parametrize("share", [0.0, 0.8])
def test_times_of_networks_correct_operators_whose_times_differ_between_places(space, share):
    """In some places, most of the time of an operator counts as that of the next one."""
    plan, random, records = operator_plan(space, n_networks=24), np.random.RandomState(0), []
    for index, network in enumerate(plan.networks):
        times = np.zeros(network.subject_calls.n_calls)
        calls = [item.last_call for item in network.trace.operators]
        times[calls] = true = [seconds(item.op) for item in network.trace.operators]
        moved = share * random.randint(0, 2, len(calls) - 1) * true[:-1]
        times[calls[:-1]] -= moved
        times[calls[1:]] += moved
        records += [Record(1e-3, [times.tolist()], {"latency": [sum(true)]}, (str(index),), turn) for turn in range(2)]
    samples, errors = _samples(plan, records), []
    for places in (samples.places, samples.corrected_places):
        entries = operator_entries([place for network in samples.measured for place in places(network)])
        ratios = [
            math.fsum(entries[key].value for key in samples.networks[network].operators) / samples.whole(network).value
            for network in samples.measured
        ]
        errors.append(float(np.std(np.log(ratios))))
    assert errors[1] < (0.5 * errors[0] if share else 1e-6)


def test_visits_count_in_the_order_of_their_times(plan):
    random = np.random.RandomState(0)
    speeds = np.repeat(random.uniform(1.0, 2.0, 8), len(plan.networks)).reshape(8, -1)
    records = [
        replace(_visit(plan, number, index, factor, factor), at=10.0 * number + index)
        for number, row in enumerate(speeds.tolist())
        for index, factor in enumerate(row)
    ]
    samples = _samples(plan, records)
    other = Record(1e-3, [], {"latency": [1.0]}, ("of another campaign",), 3, at=30.5)
    mixed = _samples(plan, [other, *(records[place] for place in random.permutation(len(records)))])
    assert mixed.drift == samples.drift == pytest.approx((1e-3 * speeds[:, 0]).tolist())
    assert mixed.fit.sums == samples.fit.sums
    assert mixed.references == samples.references


class _Dear(LayerEstimator):
    """An hour for every operator."""

    metric = "latency"

    def __init__(self, platform):
        self.platform = platform

    def estimate_op(self, op):
        return Estimate(3600.0, 3600.0, 3600.0)


@pytest.mark.parametrize("runtime", ["torch", "onnxruntime"])
def test_operators_that_no_output_depends_on_count_where_they_run(runtime, tmp_path):
    def latency(op):
        # A compiler removes it.
        return 1e-12 if runtime == "onnxruntime" and "kernel_size=5" in op.op_key else seconds(op)

    space = make_space(OWN.replace("OwnSpace", "SkippingSpace"))
    machine = FakeRuntime(latency, platform=Platform("fake-device", runtime))
    table = build_table(operator_plan(space), machine, PROTOCOL, tmp_path / "t.json", store="memory")
    ignored = [key for key in table.by_op if "kernel_size=5" in key]
    assert len(ignored) == (runtime == "torch")
    estimator = TableEstimator(table)
    made = [
        estimator,
        FallbackEstimator(table, _Dear(table.platform)),
        LayerEnsemble(members=[estimator, TableEstimator(table)]),
    ]
    for sample in draw_samples(space, 8):
        network = network_of(space, sample)()
        traced = trace(network, example_inputs_of(space))
        true = sum(latency(item.op) for item in traced.operators)
        for item in made:
            assert item.estimate(network, example_inputs_of(space)).value == pytest.approx(true, rel=1e-3)
            assert break_down(item, network, example_inputs_of(space)).total.value == pytest.approx(true, rel=1e-3)
