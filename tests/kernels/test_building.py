# SPDX-License-Identifier: Apache-2.0
"""Building of predictors on an invented device: what is measured, resumed, ended, written and read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from staircase import PROTOCOL, SMALL, invented, seconds_of, time_of

from nni_latency.errors import FileFormatError, InvalidValueError, MeasurementError, MissingEntryError
from nni_latency.kernels import (
    Aim,
    Kernel,
    KernelPredictors,
    PredictedKernels,
    Sampler,
    build_predictor_for_kernel,
    build_predictors,
    find_types,
    kernel_types,
    measure_kernels,
    shipped_prior,
)
from nni_latency.kernels._learning import GroupLearner
from nni_latency.measurement import CandidateError, MemoryStore
from nni_latency.measurement.runtimes import TorchEager
from nni_latency.operators import OpSpec

TYPES = kernel_types()
KINDS = find_types(["add_block", "add_relu", "concat_block"])


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build predictors on the invented device; return them and their file."""
    out = tmp_path_factory.mktemp("kernels") / "fake.kernels.json"
    return build_predictors(KINDS, invented(), out, protocol=PROTOCOL, sampling=SMALL, store=MemoryStore()), out


def test_kernels_take_what_their_operators_take(built):
    predictors, _ = built
    assert {item.kernel.kind for item in predictors.kernels} == {"add_block", "add_relu", "concat_block"}
    for item in predictors.kernels:
        assert item.value == pytest.approx(time_of(TYPES[item.kernel.kind], item.kernel))
        assert item.low <= item.value <= item.high
        assert item.n_samples >= 2
    assert set(predictors.predictors) == {"add", "concat_block"}
    assert predictors.constant == 0


def test_what_is_written_is_what_is_read(built):
    predictors, out = built
    read = KernelPredictors.load(out)
    kernels = [item.kernel for item in predictors.kernels]
    assert read.kernels == predictors.kernels
    assert read.predict(kernels) == pytest.approx(predictors.predict(kernels), rel=1e-4)
    assert read.estimate_kernel(kernels[0]).value == pytest.approx(predictors.predict(kernels[:1])[0], rel=1e-4)
    assert read.campaign == predictors.campaign
    assert read.scores() == pytest.approx(predictors.scores(), nan_ok=True) or str(read.scores()) == str(
        predictors.scores()
    )
    assert json.loads(out.read_text())["format"] == "nni_latency.kernels"


def test_costs_are_those_that_an_estimator_asks_for(built):
    costs = PredictedKernels(built[0])
    shape = (1, 64, 28, 28)
    found = costs.estimate_fused([OpSpec.of("add", [shape, shape]), OpSpec.of("relu", [shape])])
    assert found.value == pytest.approx(built[0].predict([Kernel.of("add_relu", HW=28, CIN=64)])[0])
    assert found.low <= found.value <= found.high
    assert costs.estimate_fused([OpSpec.of("relu", [shape])]) is None
    assert costs.estimate_fused([OpSpec.of("lstm", [(5, 1, 8)])]) is None
    assert costs.estimate_fused([OpSpec.of("add", [(1, 64, 900, 900)] * 2)]) is None
    assert (costs.metric, costs.platform, costs.constant) == ("latency", built[0].platform, 0.0)


def test_what_was_not_measured_is_named(built):
    with pytest.raises(MissingEntryError, match=r"No kernel like 'se_block' was measured .*Measure se_block as well"):
        built[0].estimate_kernel(Kernel.of("se_block", HW=7, CIN=64))


def test_an_interrupted_build_ends_like_one_that_was_not(built, tmp_path):
    def stop(state):
        if state.rounds == 1:
            raise KeyboardInterrupt

    store, out, resumed = MemoryStore(), tmp_path / "k.json", []
    options = {"protocol": PROTOCOL, "sampling": SMALL, "store": store}
    with pytest.raises(KeyboardInterrupt):
        build_predictors(KINDS, invented(), out, on_progress=stop, **options)
    assert not out.exists()
    found = build_predictors(KINDS, invented(), out, on_start=resumed.append, **options)
    assert resumed == [1]
    assert [item.kernel for item in found.kernels] == [item.kernel for item in built[0].kernels]
    assert [item.value for item in found.kernels] == pytest.approx([item.value for item in built[0].kernels])


@pytest.mark.parametrize(
    "refinement",
    ["uncertain", *(pytest.param(name, marks=pytest.mark.slow) for name in ("finegrained", "prior", "random"))],
)
def test_iterations_add_kernels_and_are_resumed_as_they_were(refinement, tmp_path):
    standings = []
    sampling = replace(SMALL, refinement=refinement, iteration=1, error_threshold=0.001, init_sample_num=12)
    kinds, store = find_types(["dwconv_relu", "se_block"]), MemoryStore()

    def build(out, **options):
        return build_predictors(
            kinds, invented(), tmp_path / out, protocol=PROTOCOL, sampling=sampling, store=store, **options
        )

    found = build("a.json", aim=Aim(on_standing=standings.append))
    assert [standing.iteration for standing in standings] == [0, 1]
    assert standings[1].kernels > standings[0].kernels
    again, rounds = [], []
    build("b.json", on_start=rounds.append, on_progress=again.append)
    assert rounds == [found.rounds]
    assert not again


def test_kernels_that_another_version_drew_are_used_all_the_same(tmp_path, monkeypatch):
    sampling = replace(SMALL, iteration=1, error_threshold=0.001, init_sample_num=12)
    kinds, store = find_types(["dwconv_relu"]), MemoryStore()

    def build(out):
        return build_predictors(kinds, invented(), tmp_path / out, protocol=PROTOCOL, sampling=sampling, store=store)

    before = build("before.json")
    draws = iter(range(1, 10**6))
    monkeypatch.setattr(
        GroupLearner,
        "more",
        lambda learner, _measured: Sampler(shipped_prior(), 1000 + next(draws)).from_prior(learner.kinds[0], 5),
    )
    now = build("now.json")
    assert {item.kernel for item in before.kernels} < {item.kernel for item in now.kernels}
    # One iteration was drawn for those that are not known, and not one after another until all were found.
    assert next(draws) == 2


@pytest.mark.slow
def test_kernels_are_kept_apart_that_predictors_are_held_to(tmp_path):
    standings, store = [], MemoryStore()
    sampling = replace(SMALL, iteration=1, error_threshold=0.001, init_sample_num=12, test_sample_num=7)

    def build(name):
        return build_predictors(
            find_types(["dwconv_relu", "se_block"]),
            invented(),
            tmp_path / name,
            protocol=PROTOCOL,
            sampling=sampling,
            store=store,
            aim=Aim(on_standing=standings.append),
        )

    found = build("k.json")
    learned, tested = ({item.kernel for item in items} for items in (found.kernels, found.tested))
    assert len(tested) == 14
    assert not learned & tested
    assert [standing.kernels for standing in standings][-1] == len(learned)
    assert [standing.tested.n for standing in standings] == [14, 14]
    values = [time_of(TYPES[item.kernel.kind], item.kernel) for item in found.tested]
    errors = np.abs(found.predict([item.kernel for item in found.tested]) / values - 1)
    assert found.test_scores().within10 == pytest.approx(np.mean(errors < 0.1))
    # They come back in the second iteration.
    assert min(item.n_samples for item in found.tested) > max(item.n_samples for item in found.kernels)
    assert build("again.json").tested == found.tested
    assert KernelPredictors.load(tmp_path / "k.json").tested == found.tested


def test_without_kernels_kept_apart_there_is_no_score_of_them(built):
    assert built[0].tested == ()
    assert built[0].test_scores() is None


def test_it_ends_when_predictions_are_good_enough(tmp_path):
    seen = []

    def is_enough(scores):
        seen.append(scores.within10)
        return True

    sampling = replace(SMALL, iteration=None, error_threshold=0.001)
    build_predictors(
        find_types(["add_block"]),
        invented(),
        tmp_path / "k.json",
        protocol=PROTOCOL,
        sampling=sampling,
        store=MemoryStore(),
        aim=Aim(is_enough),
    )
    assert len(seen) == 1


def test_the_constant_of_a_runtime_is_taken_away(tmp_path):
    class Compiled(type(invented())):
        supports_layer_timing = False

    runtime = Compiled(seconds_of, noise=lambda: 2e-4)
    found = build_predictors(
        find_types(["add_relu"]), runtime, tmp_path / "k.json", protocol=PROTOCOL, sampling=SMALL, store=MemoryStore()
    )
    assert found.constant == pytest.approx(2e-4, rel=0.02)
    for item in found.kernels:
        # What the network that does next to nothing computes is taken away, too.
        assert item.value == pytest.approx(time_of(TYPES["add_relu"], item.kernel), abs=2e-6)
    assert KernelPredictors.load(tmp_path / "k.json").constant == found.constant


class _Picky(type(invented())):
    """A device that runs no kernel of more than sixteen channels."""

    def prepare(self, subject, inputs):
        if subject.kind == "kernel" and getattr(inputs, "shape", (1, 0))[1] > self.most:
            raise CandidateError("too many channels")
        return super().prepare(subject, inputs)


def test_kernels_that_fail_are_named_and_the_rest_goes_on(tmp_path):
    runtime = _Picky(seconds_of)
    runtime.most = 64
    found = build_predictors(
        find_types(["relu_block"]),
        runtime,
        tmp_path / "k.json",
        protocol=PROTOCOL,
        sampling=replace(SMALL, init_sample_num=80),
        store=MemoryStore(),
    )
    assert found.failures
    assert set(found.failures.values()) == {"too many channels"}
    assert max(item.kernel["CIN"] for item in found.kernels) <= 64


def test_nothing_that_runs_is_an_error(tmp_path):
    runtime = _Picky(seconds_of)
    runtime.most = 0
    with pytest.raises(MeasurementError, match="None of the kernels can be run: too many channels"):
        build_predictors(
            find_types(["relu_block"]),
            runtime,
            tmp_path / "k.json",
            protocol=PROTOCOL,
            sampling=SMALL,
            store=MemoryStore(),
        )


def test_nothing_to_measure_is_an_error(tmp_path):
    with pytest.raises(InvalidValueError, match="'kinds' must be kernel types, at least one"):
        build_predictors([], invented(), tmp_path / "k.json")


def test_nn_meter_s_names_build_one_predictor():
    predictor = build_predictor_for_kernel(
        "add_relu",
        invented(),
        init_sample_num=25,
        finegrained_sample_num=2,
        iteration=1,
        error_threshold=0.1,
        protocol=PROTOCOL,
        store=MemoryStore(),
    )
    assert predictor.kinds_ == ("add_relu",)
    assert predictor.cross_validation.within10 > 0.8


def test_given_kernels_are_measured_in_their_order():
    kernels = [Kernel.of("add_block", HW=14, CIN=count) for count in (48, 16, 32)]
    found = measure_kernels(kernels, invented(), protocol=PROTOCOL, store=MemoryStore())
    assert [item.kernel for item in found] == kernels
    assert [item.value for item in found] == pytest.approx([time_of(TYPES["add_block"], kernel) for kernel in kernels])
    with pytest.raises(InvalidValueError, match="'HW' of 'add_block' must be from 1 to 512"):
        measure_kernels([Kernel.of("add_block", HW=0, CIN=1)], invented(), store=MemoryStore())


@pytest.mark.slow
def test_kernels_of_several_inputs_run_in_torch_in_worker_processes():
    kernels = [
        Kernel.of("add_relu", HW=8, CIN=8),
        Kernel.of("concat_block", HW=8, CIN1=4, CIN2=4, CIN3=0, CIN4=0),
        Kernel.of("matmul_block", HEADS=2, ROWS=8, INNER=4, COLUMNS=8),
        Kernel.of("split_block", HW=8, CIN=8),
    ]
    found = measure_kernels(kernels, TorchEager(), protocol=replace(PROTOCOL, half_width=0.0), store=MemoryStore())
    assert [item.kernel for item in found] == kernels


def _changed(out, target, change):
    content = json.loads(Path(out).read_text())
    change(content)
    target.write_text(json.dumps(content))
    return target


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.update(format="nni_latency.lut"), "is not a file of kernel predictors"),
        (lambda content: content.update(version=9), "has version 9, this nni_latency reads up to 1"),
        (lambda content: content["predictors"][0].update(kinds=["mystery"]), "Unknown kernel 'mystery'"),
        (lambda content: content["predictors"][0]["model"].update(trees=None, process=None), "neither trees nor"),
        (lambda content: content["kernels"][0].update(value=-1), "kernels.0.value"),
        (lambda content: content.pop("platform"), "platform is missing"),
    ],
)
def test_files_that_cannot_be_are_refused(built, tmp_path, change, message):
    with pytest.raises(FileFormatError, match=message):
        KernelPredictors.load(_changed(built[1], tmp_path / "k.json", change))


def test_a_model_is_read_with_the_activations_that_it_was_fitted_with(built, tmp_path):
    assert all("hsigmoid" in predictor.table_.activations for predictor in built[0].predictors.values())
    with pytest.raises(FileFormatError, match=r"The process has (\d+) features, the group \d+"):
        KernelPredictors.load(
            _changed(built[1], tmp_path / "k.json", lambda it: it["predictors"][0]["activations"].remove("hsigmoid"))
        )


def test_scores_are_of_all_groups(built):
    scores = built[0].scores()
    assert scores.n == len(built[0].kernels)
    assert 0 <= scores.within5 <= scores.within10 <= 1
    assert np.isfinite(scores.rmspe)
