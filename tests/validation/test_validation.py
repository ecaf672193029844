# SPDX-License-Identifier: Apache-2.0
"""An estimator held to networks that were measured."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from whole_network import WholeNetwork

from nni_latency.errors import FileFormatError, MeasurementError, MismatchError
from nni_latency.estimators import Estimate, LayerEstimator, TableEstimator
from nni_latency.measurement import Fallback, MemoryStore, Protocol
from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform
from nni_latency.tables import Entry, LookupTable, MeasuredNetwork, build_table, measure_networks, subset_table
from nni_latency.testing import FakeRuntime, fake_plan
from nni_latency.validation import (
    draw_networks,
    predict_references,
    read_summary,
    read_validation,
    validate,
    validation_content,
)

_TIMES = {
    "stem": {"conv": 4e-3},
    "a": {"x": 1e-3, "y": 3e-3, "z": 9e-3},
    "b": {"x": 2e-3, "y": 6e-3, "z": 5e-3},
    "c": {"x": 1e-3, "y": 2e-3, "z": 8e-3},
}
_PLAN, _BY_OP_KEY = fake_plan(_TIMES, fixed=["stem"])
_PLATFORM = FakeRuntime({}).platform
_PROTOCOL = Protocol(n_warmup=0, rounds=9, time_budget=1e9)


def _measure(_folder, networks=None, latencies=None, **options):
    """Measure networks of the plan on an invented machine; `drift` makes all of it slower, `noise` each run."""
    runtime = FakeRuntime(_BY_OP_KEY if latencies is None else latencies, **options)
    return measure_networks(_PLAN, networks or draw_networks(_PLAN, 16), runtime, _PROTOCOL, store=MemoryStore())


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Build a table of the invented machine, which is exact."""
    out = tmp_path_factory.mktemp("tables") / "t.json"
    return build_table(_PLAN, FakeRuntime(_BY_OP_KEY), _PROTOCOL, out, store=MemoryStore())


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    return _measure(tmp_path_factory.mktemp("measured"))


class _Layers(LayerEstimator):
    """Knows every operator, and is no table."""

    metric = "latency"
    platform = _PLATFORM

    def __init__(self, factor=1.0):
        self.calibration = factor

    def estimate_op(self, op):
        return Estimate(*[_BY_OP_KEY[op.op_key]] * 3)


def _whole(factor=1.0):
    return WholeNetwork(lambda op: factor * _BY_OP_KEY[op.op_key], platform=_PLATFORM)


def _slower(table, factor):
    return dataclasses.replace(table, calibration=table.calibration * factor)


def _time(selection):
    return sum(_TIMES[layer][choice] for layer, choice in selection.items())


def test_exact_table_has_no_error(table, measured):
    found = validate(TableEstimator(table), _PLAN, measured)
    assert found.scores.n == len(measured.networks) >= 10
    assert found.scores.worst == pytest.approx(0.0, abs=1e-9)
    assert found.scores.within5 == 1.0
    # Networks of equal times are ranked by their last bits.
    assert found.scores.spearman > 0.99


def test_results_hold_what_was_predicted_and_measured(table, measured):
    found = validate(TableEstimator(table), _PLAN, measured)
    for result in found.results:
        assert result.selection == measured.networks[result.name].selection
        assert result.measured == pytest.approx(_time(result.selection))
        assert result.predicted.value == pytest.approx(_time(result.selection))
        assert result.low <= result.measured <= result.high
        assert result.n_samples == 9


@pytest.mark.parametrize("kind", ["table", "layers", "network"])
def test_prediction_of_twice_the_time_is_a_bias_of_one(table, measured, kind):
    made = {"table": TableEstimator(_slower(table, 2.0)), "layers": _Layers(2.0), "network": _whole(2.0)}[kind]
    found = validate(made, _PLAN, measured, normalise=False)
    assert (found.scores.bias, found.scores.mape) == pytest.approx((1.0, 1.0))
    assert [result.error for result in found.results] == pytest.approx([1.0] * len(measured.networks))


@pytest.mark.parametrize("kind", ["table", "layers", "network"])
def test_one_factor_on_all_predictions_is_the_speed_of_the_machine(table, measured, kind):
    made = {"table": TableEstimator(_slower(table, 2.0)), "layers": _Layers(2.0), "network": _whole(2.0)}[kind]
    found = validate(made, _PLAN, measured)
    assert found.speed == pytest.approx(2.0)
    assert found.scores.worst == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("estimator", [_Layers(), _whole()], ids=lambda estimator: type(estimator).__name__)
def test_every_estimator_can_be_validated(measured, estimator):
    found = validate(estimator, _PLAN, measured)
    assert found.scores.worst == pytest.approx(0.0, abs=1e-9)
    assert (found.speed, found.estimator) == (pytest.approx(1.0), repr(estimator))


def test_machine_that_is_slower_all_over_is_taken_out(table, tmp_path):
    slower = _measure(tmp_path, latencies={key: 1.3 * seconds for key, seconds in _BY_OP_KEY.items()})
    found = validate(TableEstimator(table), _PLAN, slower)
    assert found.speed == pytest.approx(1 / 1.3)
    assert found.scores.worst == pytest.approx(0.0, abs=1e-9)


def test_without_normalising_a_slower_machine_is_an_error(table, tmp_path):
    slower = _measure(tmp_path, latencies={key: 1.3 * seconds for key, seconds in _BY_OP_KEY.items()})
    found = validate(TableEstimator(table), _PLAN, slower, normalise=False)
    assert found.speed == 1.0
    assert found.scores.bias == pytest.approx(1 / 1.3 - 1)


def test_speed_takes_intervals_and_halves_along(table, tmp_path):
    steps = iter([1.0, 1.1, 1.2, 1.3, 1.05] * 10_000)
    slower = _measure(
        tmp_path,
        latencies={key: 1.3 * seconds for key, seconds in _BY_OP_KEY.items()},
        noise=lambda: 1e-3 * next(steps),
    )
    plain = validate(TableEstimator(table), _PLAN, slower, normalise=False)
    found = validate(TableEstimator(table), _PLAN, slower)
    for one, other in zip(found.results, plain.results, strict=True):
        assert (one.measured, *one.halves) == pytest.approx(
            tuple(found.speed * value for value in (other.measured, *other.halves))
        )
        # The interval holds how well the speed is known, too.
        assert one.low < found.speed * other.low < found.speed * other.high < one.high


def test_run_without_reference_networks_is_not_normalised(table, measured):
    found = validate(TableEstimator(_slower(table, 1.3)), _PLAN, dataclasses.replace(measured, references={}))
    assert found.speed == 1.0


def test_speed_is_that_of_most_reference_networks(table, measured):
    """One that was measured far too slow does not count."""
    name, times = next(iter(measured.references.items()))
    wrong = dataclasses.replace(times, summary=times.summary.scaled(3.0))
    found = validate(
        TableEstimator(table), _PLAN, dataclasses.replace(measured, references={**measured.references, name: wrong})
    )
    assert found.speed == pytest.approx(1.0)


def test_measured_reference_network_of_a_table_is_no_prediction():
    """The table is off by a tenth at a network that it was measured with; the machine is as fast as then."""
    entry = Entry(1e-3, 1e-3, 1e-3, op=OpSpec.of("relu", [(1, 4)]))
    network = MeasuredNetwork(value=1.1e-3, low=1e-3, high=1.2e-3, sample={"a": [0, 1]}, entries=1e-3)
    table = LookupTable(
        space=_PLAN.space, platform=_PLATFORM, input_shape=(1, 4), operators=(entry,), networks=(network,)
    )
    found = predict_references(TableEstimator(table), _PLAN, {"reference": {"a": (0, 1)}})
    assert found == {"reference": Estimate(1.1e-3, 1e-3, 1.2e-3)}


def test_reference_network_that_cannot_be_predicted_is_left_out(table, measured):
    odd = {**_PLAN.reference, "a": "z"}
    partial = TableEstimator(subset_table(table, layers=["b", "c"]), missing="error")
    assert list(predict_references(partial, _PLAN, {"odd": odd})) == []
    assert list(predict_references(TableEstimator(table), _PLAN, {"odd": odd})) == ["odd"]


def test_network_is_inside_an_interval_that_it_reaches(table, measured):
    near, far = (
        dataclasses.replace(table, network_error=error, calibration=table.calibration) for error in (0.2, 1e-4)
    )
    shifted = {
        name: dataclasses.replace(times, summary=times.summary.scaled(1.1)) for name, times in measured.networks.items()
    }
    slow = dataclasses.replace(measured, networks=shifted)
    assert validate(TableEstimator(near), _PLAN, slow).coverage == 1.0
    assert validate(TableEstimator(far), _PLAN, slow).coverage < 0.1
    assert validate(TableEstimator(far), _PLAN, measured).coverage == 1.0


def test_drift_within_the_run_is_no_error(table, tmp_path):
    """The machine gets slower by the minute; the reference operator sees it."""
    slope = (1.0 + 0.0005 * n for n in range(10**9))
    found = validate(TableEstimator(table), _PLAN, _measure(tmp_path, drift=lambda: next(slope)))
    assert found.drift[-1] > 1.05 * found.drift[0]
    assert found.scores.mape < 0.01


def test_repeatability_compares_the_halves_of_the_run(table, measured):
    networks = {
        name: dataclasses.replace(times, halves=(1.1 * times.summary.value, times.summary.value))
        for name, times in measured.networks.items()
    }
    found = validate(TableEstimator(table), _PLAN, dataclasses.replace(measured, networks=networks))
    assert found.repeatability.bias == pytest.approx(0.1)
    assert found.scores.worst == pytest.approx(0.0, abs=1e-9)


def test_measurement_without_noise_repeats_exactly(table, measured):
    assert validate(TableEstimator(table), _PLAN, measured).repeatability.worst == pytest.approx(0.0, abs=1e-9)


def test_worst_networks_come_first(measured):
    found = validate(WholeNetwork(0.012, platform=_PLATFORM), _PLAN, measured)
    errors = [abs(result.error) for result in found.worst]
    assert errors == sorted(errors, reverse=True)
    assert len(errors) == len(found.results)


def test_networks_that_could_not_be_run_are_listed(table, tmp_path):
    def seconds(op):
        if (op["layer"], op["choice"]) == ("b", "x"):
            raise RuntimeError("no kernel for it")
        return _BY_OP_KEY[op.op_key]

    networks = draw_networks(_PLAN, 16)
    without = [name for name, network in networks.items() if network["b"] != "x"]
    found = validate(TableEstimator(table), _PLAN, _measure(tmp_path, networks, seconds))
    assert [result.name for result in found.results] == without
    assert {name for name in found.failures if name in networks} == set(networks) - set(without)
    assert set(found.failures.values()) == {"RuntimeError: no kernel for it"}


def test_no_network_measured_is_refused(table, measured):
    nothing = dataclasses.replace(measured, networks={}, failures={"all x": "it crashed"})
    with pytest.raises(MeasurementError, match=r"No network could be measured: it crashed\."):
        validate(TableEstimator(table), _PLAN, nothing)


def test_estimator_of_another_platform_is_refused_with_both(table, measured):
    other = TableEstimator(dataclasses.replace(table, platform=Platform("pi")))
    with pytest.raises(MismatchError, match=r"Validating TableEstimator\(fake\(\), latency on pi\."):
        validate(other, _PLAN, measured)


def test_estimator_of_another_metric_is_refused(table, measured):
    energy = TableEstimator(dataclasses.replace(table, metric="energy"))
    with pytest.raises(MismatchError, match=r"Measured is the latency of networks, .* gives energy"):
        validate(energy, _PLAN, measured)


def test_content_is_json_that_any_program_reads(table, measured):
    validation = validate(TableEstimator(table), _PLAN, measured)
    content = validation_content(validation)
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert (content["format"], content["version"], content["unit"]) == ("nni_latency.validation", 1, "s")
    assert content["scores"]["mape"] == validation.scores.mape
    assert content["speed"] == validation.speed
    assert content["platform"]["id"] == _PLATFORM.id


def test_content_lists_every_network(table, measured):
    validation = validate(TableEstimator(_slower(table, 2.0)), _PLAN, measured)
    listed = validation_content(validation)["networks"]
    assert [item["name"] for item in listed] == list(measured.networks)
    for item, result in zip(listed, validation.results, strict=True):
        assert (item["predicted"], item["measured"]) == (result.predicted.value, result.measured)
        assert item["error"] == pytest.approx(item["predicted"] / item["measured"] - 1)
        assert item["selection"] == dict(result.selection)


def test_content_has_null_for_what_could_not_be_computed(table, tmp_path):
    two = dict(list(draw_networks(_PLAN, 2).items())[:2])
    validation = validate(TableEstimator(table), _PLAN, _measure(tmp_path, two))
    assert math.isnan(validation.scores.spearman)
    assert repr(validation).endswith("Spearman none (fewer than three values, or all equal))")
    content = validation_content(validation)
    assert content["scores"]["spearman"] is None
    assert "NaN" not in json.dumps(content)


def test_scores_are_read_from_the_saved_file(table, measured, tmp_path):
    validation = validate(TableEstimator(table), _PLAN, measured)
    path = tmp_path / "v.json"
    path.write_text(json.dumps(validation_content(validation)))
    assert read_summary(path).scores.mape == validation.scores.mape
    assert validation_content(read_validation(path)) == validation_content(validation)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "nni_latency.lookup_table"}, "is not the file of a validation: its format must be"),
        ({"version": 2}, "has version 2, this nni_latency reads up to 1"),
        ({"scores": {"n": 3}}, "is not valid: scores.mape is missing"),
    ],
)
def test_altered_file_of_a_validation_is_refused(table, measured, tmp_path, change, words):
    content = validation_content(validate(TableEstimator(table), _PLAN, measured))
    path = tmp_path / "v.json"
    path.write_text(json.dumps({**content, **change}))
    with pytest.raises(FileFormatError, match=words):
        read_summary(path)


def test_validation_without_networks_is_refused(table, measured, tmp_path):
    content = validation_content(validate(TableEstimator(table), _PLAN, measured))
    path = tmp_path / "v.json"
    path.write_text(json.dumps({**content, "networks": []}))
    with pytest.raises(FileFormatError, match=r"^The validation .*v\.json' is not valid: networks: "):
        read_validation(path)


class _Falling(FakeRuntime):
    """Runs one of two nodes in f32."""

    def fallbacks(self, stage, value):
        return (Fallback.of("in f32", ["Softmax"], 2),)


def test_what_fell_back_is_told_by_table_and_validation(tmp_path):
    runtime = _Falling(_BY_OP_KEY)
    table = build_table(_PLAN, runtime, _PROTOCOL, tmp_path / "t.json", store="memory")
    measured = measure_networks(_PLAN, draw_networks(_PLAN, 4), runtime, _PROTOCOL, store="memory")
    sentence = "Of every network, 1 of 2 nodes ran in f32: Softmax."
    assert sentence in table.remarks
    assert validation_content(validate(TableEstimator(table), _PLAN, measured))["fallbacks"] == [sentence]
