# SPDX-License-Identifier: Apache-2.0
"""What is known is answered, what is not is measured once or predicted, and every answer says where it comes from."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch
from fake_machines import HERE, OnnxFake, machines, network, onnx_bytes
from hypothesis import given
from hypothesis import strategies as st
from measured_graphs import FAST, fitted
from nni_latency_service.query import AllMachines, Answer, LatencyQuery, LocalMachines, Question

from nni_latency.database import DatabaseStore, open_store
from nni_latency.errors import (
    InvalidValueError,
    LatencyError,
    MeasurementError,
    MissingEntryError,
    UnknownNameError,
)
from nni_latency.estimators import Estimate, NetworkEstimator
from nni_latency.kernels import Kernel, KernelPredictor, KernelPredictors, MeasuredKernel
from nni_latency.measurement import MemoryStore
from nni_latency.operators import OpSpec, graph_key, read_onnx
from nni_latency.platforms import Platform
from nni_latency.spaces import FBNetSpace, network_of

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")


class _Guess(NetworkEstimator):
    """Says of everything that it takes two milliseconds, within a share."""

    metric, reads_onnx = "latency", True

    def __init__(self, spread):
        self.platform, self.spread, self.asked = HERE, spread, 0

    def estimate(self, model, example_inputs=None):
        self.asked += 1
        return Estimate(0.002, 0.002 * (1 - self.spread), 0.002 * (1 + self.spread))


@pytest.fixture
def store(tmp_path):
    made = DatabaseStore(str(tmp_path / "m.sqlite"))
    yield made
    made.close()


def test_first_measured_then_known(store):
    places, [runtime] = machines()
    query = LatencyQuery(store, machines=places)
    module, inputs = network()
    first = query.ask(Question.of(module, inputs), HERE.id)
    again = query.ask(Question.of(module, inputs), HERE.id)
    assert (first.source, again.source) == ("measurement", "record")
    assert again == Answer.of_content({**first.content(), "source": "record"})
    assert first.versions["fake"] == "7"
    assert first.repeatability == pytest.approx(0)
    assert first.campaign
    assert first.age < 60
    assert runtime.sessions == 1


def test_a_module_and_its_onnx_file_are_one_question(tmp_path):
    module, inputs = network()
    path = tmp_path / "net.onnx"
    path.write_bytes(onnx_bytes())
    keys = {
        Question.of(module, inputs).key,
        Question.of(path).key,
        Question.of(str(path)).key,
        Question.of(path.read_bytes()).key,
        graph_key(read_onnx(path)),
    }
    assert len(keys) == 1
    assert Question.of(module, torch.zeros(2, 3, 8, 8)).key not in keys
    assert Question.of(path, batch_size=2).key == Question.of(module, torch.zeros(2, 3, 8, 8)).key


def test_nothing_of_the_weights_is_in_a_question():
    with_weights = onnx_bytes(512)
    asked = Question.of(with_weights)
    assert len(asked.onnx) < len(with_weights) / 4
    assert Question.of(asked.onnx).key == asked.key


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("relu()@1x8x4x4:float32", "operator"),
        (OpSpec.of("linear", [(1, 4)], out_features=2, bias=True), "operator"),
        ("clamp(max=inf,min=0)@1x8x4x4:float32", "operator"),
        ("relu_block(CIN=64,HW=56)", "kernel"),
    ],
)
def test_operators_and_kernels_are_measured_and_known(store, source, kind):
    places, _ = machines()
    query = LatencyQuery(store, machines=places)
    asked = Question.of(source)
    assert asked.kind == kind
    assert query.ask(asked, HERE.id).source == "measurement"
    assert query.ask(asked.key, HERE.id).source == "record"


@pytest.mark.slow
def test_a_sample_of_a_space_is_a_question(store):
    space = FBNetSpace(input_size=32, depth=0.2)
    plan = space.measure_plan(1)
    sample = {layer.name: next(iter(layer.candidates)) for layer in plan.searched}
    asked = Question.of(network_of(space, sample)(), torch.zeros(plan.input_shape))
    assert asked.kind == "network"
    places, _ = machines()
    assert LatencyQuery(store, machines=places).ask(asked, HERE.id).source == "measurement"


@pytest.mark.parametrize(
    ("measure", "spread", "within", "source"),
    [
        ("never", 0.5, 0.1, "prediction"),
        ("if-unsure", 0.05, 0.1, "prediction"),
        ("if-unsure", 0.2, 0.1, "measurement"),
        ("if-unsure", 0.2, 0.25, "prediction"),
        ("always", 0.01, 0.1, "measurement"),
    ],
)
def test_it_is_measured_when_it_is_asked_for(store, measure, spread, within, source):
    places, _ = machines()
    query = LatencyQuery(store, machines=places, predictors={"guess": _Guess(spread)})
    module, inputs = network()
    answer = query.ask(Question.of(module, inputs), HERE.id, measure=measure, within=within)
    assert answer.source == source
    assert answer.predictor == ("guess" if source == "prediction" else "")
    # A record is worth more than any prediction.
    known = query.ask(Question.of(module, inputs), HERE.id, measure="never")
    assert known.source == ("record" if source == "measurement" else "prediction")


def test_a_graph_predictor_answers_for_its_platforms(store):
    query = LatencyQuery(store, predictors={"graph": fitted(3)})
    assert FAST.id in query.platforms()
    answer = query.ask(onnx_bytes(), FAST.id)
    assert (answer.source, answer.predictor) == ("prediction", "graph")
    assert "No machine that measures on this platform is there" in " ".join(answer.remarks) or answer.spread <= 0.1
    assert query.ask("relu()@1x8x4x4:float32", FAST.id, measure="never").source == "prediction"


def test_two_that_ask_at_once_measure_once(tmp_path):
    answers, places = [], machines()
    store = DatabaseStore(str(tmp_path / "m.sqlite"))
    query = LatencyQuery(store, machines=places[0])
    asked = Question.of(onnx_bytes())
    threads = [threading.Thread(target=lambda: answers.append(query.ask(asked, HERE.id))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.source for answer in answers) == ["measurement", "record", "record", "record"]
    assert len(list(store.campaigns())) == 1
    store.close()


def test_two_services_on_one_server_measure_once(tmp_path):
    answers, asked = [], Question.of(onnx_bytes())

    def ask():
        own = DatabaseStore(str(tmp_path / "m.sqlite"))
        answers.append(LatencyQuery(own, machines=machines()[0]).ask(asked, HERE.id).source)
        own.close()

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == ["measurement", "record", "record"]


def test_what_cannot_be_run_is_one_sentence_and_tried_again(store):
    places, [runtime] = machines(broken=True)
    query = LatencyQuery(store, machines=places)
    with pytest.raises(
        MeasurementError, match=r"cannot be measured on fake-device\.fake\.fp32\.t1: the device burns\.$"
    ):
        query.ask(onnx_bytes(), HERE.id)
    predicting = LatencyQuery(store, machines=places, predictors={"guess": _Guess(0.5)})
    answer = predicting.ask(Question.of(*network()), HERE.id)
    assert answer.source == "prediction"
    assert "It was not measured" in answer.remarks[0]
    runtime.broken = False
    assert query.ask(onnx_bytes(), HERE.id).source == "measurement"


def test_what_nobody_knows_is_one_sentence():
    query = LatencyQuery(MemoryStore(), machines=machines()[0])
    with pytest.raises(MissingEntryError, match=r"is not known\. It was asked for by its key alone\. Send the network"):
        query.ask("0" * 32, HERE.id)
    with pytest.raises(MissingEntryError, match=r"No predictor knows it, and nothing is measured with measure='never'"):
        query.ask(onnx_bytes(), HERE.id, measure="never")
    with pytest.raises(MissingEntryError, match=r"Nothing is known of the platform 'board'\. Available: fake-device"):
        query.ask(onnx_bytes(), "board")


@pytest.mark.parametrize(
    ("source", "error", "sentence"),
    [
        ("nothing", InvalidValueError, r"A latency is asked of an ONNX file .* Got 'nothing'"),
        ("nope.onnx", InvalidValueError, r"Cannot read the ONNX file 'nope\.onnx': No such file"),
        (b"not a network", InvalidValueError, r"'network\.onnx' is not an ONNX file that can be read"),
        (b"", InvalidValueError, r"it holds no graph"),
        (3, InvalidValueError, r"A latency is asked of a torch\.nn\.Module.* Got int"),
        ("noise(HW=3)", UnknownNameError, r"Unknown kernel 'noise'"),
        ("relu_block(HW=3)", LatencyError, r"CIN"),
        ("no_such_op()@1x8:float32", UnknownNameError, r"cannot be built from its key"),
    ],
)
def test_what_is_no_question_is_one_sentence(source, error, sentence):
    with pytest.raises(error, match=sentence) as caught:
        Question.of(source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [{"measure": "perhaps"}, {"within": 0}, {"within": float("nan")}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(InvalidValueError, match=r"'(measure|within)' must be"):
        LatencyQuery(MemoryStore()).ask("0" * 32, HERE.id, **options)


def test_a_platform_with_a_newer_runtime_is_measured_anew(store):
    older = Platform("fake-device", "fake", facts={"runtime.version": "6"})
    LatencyQuery(store, machines=machines(older)[0]).ask(onnx_bytes(), HERE.id)
    query = LatencyQuery(store, machines=machines(HERE)[0])
    before = query.ask(onnx_bytes(), HERE.id, measure="never")
    assert before.versions["fake"] == "6"
    assert before.remarks == ("It was measured before the platform changed: runtime.version: 6 against 7.",)
    now = query.ask(onnx_bytes(), HERE.id)
    assert (now.source, now.versions["fake"]) == ("measurement", "7")
    # Where nobody measures, the latest state of the platform answers.
    assert LatencyQuery(store).ask(onnx_bytes(), HERE.id).versions["fake"] == "7"


def test_the_graph_of_what_was_measured_is_in_the_database(store):
    LatencyQuery(store, machines=machines()[0]).ask(onnx_bytes(), HERE.id)
    [campaign] = store.campaigns()
    [subject] = campaign.subjects.values()
    assert campaign.header.kind == "query"
    assert len(subject["specification"]["graph"]["nodes"]) >= 3


def test_machines_without_the_platform_say_what_there_is():
    with pytest.raises(UnknownNameError, match=r"Unknown platform 'x'\. Available: fake-device\.fake\.fp32\.t1"):
        LocalMachines([OnnxFake()]).benches("x")


def test_machines_together_measure_what_each_of_them_can():
    other = Platform("board", "fake")
    here, both = OnnxFake(), [OnnxFake(), OnnxFake(other)]
    together = AllMachines([LocalMachines([here]), LocalMachines(both)])
    assert [item.id for item in together.platforms()] == ["board.fake.fp32.t1", HERE.id]
    assert together.benches(HERE.id).runtime is here
    assert together.benches(other.id).runtime is both[1]
    with pytest.raises(UnknownNameError, match=r"Unknown platform 'x'\. Available: board"):
        together.benches("x")
    together.close()


@given(
    value=st.floats(1e-9, 1e3),
    source=st.sampled_from(["record", "measurement", "prediction"]),
    missing=st.lists(st.text(), max_size=2).map(tuple),
    at=st.none() | st.floats(0, 2e9),
)
def test_answers_come_out_as_they_went_in(value, source, missing, at):
    answer = Answer(value, value / 2, value * 2, key="k", platform="p", source=source, missing=missing, at=at)
    assert Answer.of_content(answer.content()) == answer


def test_open_store_in_memory_answers_too():
    query = LatencyQuery(open_store("memory"), machines=machines()[0])
    assert [query.ask(onnx_bytes(), HERE.id).source for _ in range(2)] == ["measurement", "record"]


def test_a_kernel_is_answered_by_what_has_learned_kernels(store):
    kernels = [Kernel.of("relu_block", HW=8, CIN=count) for count in range(4, 64, 4)]
    measured = tuple(MeasuredKernel(1e-8 * item["CIN"], 0.0, 1e-8 * item["CIN"], item) for item in kernels)
    learned = KernelPredictor(candidates=("process",)).fit(kernels, [item.value for item in measured])
    predictors = KernelPredictors(predictors={"relu": learned}, kernels=measured, platform=HERE)
    query, kernel = LatencyQuery(store, predictors={"mine": predictors}), Kernel.of("relu_block", HW=8, CIN=30)
    answer = query.ask(kernel, HERE.id, measure="never")
    assert (answer.source, answer.predictor) == ("prediction", "mine")
    assert answer.value == pytest.approx(predictors.estimate_kernel(kernel).value)
    asked = Question.of(kernel)
    assert query.predict(replace(asked, kind="network"), HERE.id) is None
