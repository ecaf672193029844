# SPDX-License-Identifier: Apache-2.0
"""Estimators that measure on demand: exact with invented times, and real with tiny networks."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import re
from pathlib import Path

import pytest
import torch
from measured_nets import SEVERAL_INPUTS, TIMES, Fickle, Several, Small, Undecided, latency
from torch import nn

from nni_latency import load_estimator
from nni_latency.database import open_store
from nni_latency.errors import InvalidValueError, MeasurementError, MissingEntryError
from nni_latency.estimators import GraphEstimator, MeasuredNetworkEstimator, ModuleEstimator
from nni_latency.measurement import MemoryStore, Protocol
from nni_latency.measurement.runtimes import TorchEager
from nni_latency.operators import OpSpec, TracingWarning, capture_operators
from nni_latency.spaces import make_space, operator_plan
from nni_latency.tables import build_table
from nni_latency.testing import FakeRuntime, check_estimator

ALL = (ModuleEstimator, GraphEstimator, MeasuredNetworkEstimator)
LAYERED = (ModuleEstimator, GraphEstimator)
PICTURES = torch.zeros(1, 3, 8, 8)
SMALL = TIMES["conv2d"] + 2 * TIMES["relu"] + TIMES["add"] + TIMES["mean"] + TIMES["linear"]


def _make(kind=ModuleEstimator, *, store="memory", **options):
    runtime = FakeRuntime(latency, **options)
    return kind(runtime=runtime, store=store), runtime


@pytest.mark.parametrize("kind", ALL)
def test_estimate_is_exact_and_keeps_the_contract(kind):
    estimator, _ = _make(kind)
    answer = estimator.estimate(Small(), PICTURES)
    assert answer.value == pytest.approx(SMALL, rel=1e-5)
    assert answer.low <= answer.value <= answer.high
    check_estimator(estimator, Small(), PICTURES)


@pytest.mark.parametrize("kind", ALL)
def test_what_was_measured_is_not_measured_again(kind):
    estimator, runtime = _make(kind)
    first = estimator.estimate(Small(), PICTURES)
    assert estimator.estimate(Small(), PICTURES) == first
    assert runtime.sessions == 1


def test_network_of_known_operators_is_not_measured():
    estimator, runtime = _make()
    estimator.estimate(Small(), PICTURES)
    part = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU())
    assert estimator.estimate(part, PICTURES).value == pytest.approx(TIMES["conv2d"] + TIMES["relu"], rel=1e-5)
    assert runtime.sessions == 1


@pytest.mark.parametrize("kind", ALL)
def test_another_input_shape_is_another_estimate(kind):
    estimator, runtime = _make(kind)
    small = estimator.estimate(Small(), PICTURES)
    large = estimator.estimate(Small(), torch.zeros(4, 3, 16, 16))
    assert large.value > small.value
    assert runtime.sessions == 2
    assert estimator.estimate(Small(), PICTURES).value == pytest.approx(small.value)


def test_both_layer_based_ones_share_what_they_know():
    store = MemoryStore()
    by_module, _ = _make(store=store)
    by_graph, runtime = _make(GraphEstimator, store=store)
    assert by_module.estimate(Small(), PICTURES) == by_graph.estimate(Small(), PICTURES)
    assert runtime.sessions == 0


def test_layers_measure_the_whole_along():
    store = MemoryStore()
    by_module, _ = _make(store=store)
    by_module.estimate(Small(), PICTURES)
    whole, runtime = _make(MeasuredNetworkEstimator, store=store)
    assert whole.estimate(Small(), PICTURES).value == pytest.approx(SMALL, rel=1e-5)
    assert runtime.sessions == 0


@pytest.mark.parametrize("kind", LAYERED)
def test_marks_cost_nothing_in_the_answer(kind):
    """A view has a mark as well, which counts for the operator after it."""
    estimator, _ = _make(kind, mark=2**-20)
    answer = estimator.estimate(Small(), PICTURES)
    assert answer.value == pytest.approx(SMALL, rel=1e-4)
    ops = dict(capture_operators(Small(), PICTURES))
    assert estimator.estimate_op(ops["head"]).value == pytest.approx(TIMES["linear"], rel=1e-3)


@pytest.mark.parametrize("kind", ALL)
def test_several_and_keyword_inputs(kind):
    estimator, _ = _make(kind)
    total = sum(TIMES[name] for name in ("mul", "add", "embedding"))
    assert estimator.estimate(Several(), SEVERAL_INPUTS).value == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("kind", LAYERED)
def test_nothing_costs_nothing(kind):
    estimator, _ = _make(kind)
    assert estimator.estimate(nn.Identity(), PICTURES).value == 0
    assert estimator.estimate(nn.Sequential(nn.Identity(), nn.Flatten(), nn.Dropout()), PICTURES).value == 0


def test_operator_in_several_places_has_their_mean_and_spread():
    """The first relu costs three times what the second does; each network has them in other places."""
    estimator, runtime = _make()
    estimator.estimate(nn.Sequential(nn.ReLU(), nn.ReLU()), PICTURES)
    relu = OpSpec.of("relu", [PICTURES.shape])
    runtime.latencies = lambda op: TIMES["relu"] * 3 if op.kind == "relu" else latency(op)
    estimator.estimate(nn.Sequential(nn.ReLU(), nn.Conv2d(3, 4, 1), nn.Flatten()), PICTURES)
    found = estimator.estimate_op(relu)
    assert TIMES["relu"] < found.value < 3 * TIMES["relu"]
    assert found.low < TIMES["relu"]
    assert found.high > 2 * TIMES["relu"]


def test_slower_day_does_not_show():
    """The reference operator takes twice as long, too."""
    drift = [1.0]
    estimator, _ = _make(drift=lambda: drift[0])
    estimator.estimate(nn.ReLU(), PICTURES)
    drift[0] = 2.0
    estimator.estimate(nn.Sequential(nn.ReLU(), nn.Conv2d(3, 4, 1)), PICTURES)
    conv, _ = (op for _, op in capture_operators(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()), PICTURES))
    relu = OpSpec.of("relu", [PICTURES.shape])
    # Both are told for the speed at which most was measured, here between the two.
    assert [estimator.estimate_op(op).value for op in (conv, relu)] == pytest.approx(
        [1.5 * TIMES["conv2d"], 1.5 * TIMES["relu"]], rel=1e-5
    )


def test_many_networks_are_measured_in_one_go():
    estimator, runtime = _make()
    networks = [(Small(channels), PICTURES) for channels in (4, 5, 6)]
    estimator.measure([*networks, networks[0]])
    assert runtime.sessions == 1
    assert [estimator.estimate(*network).value for network in networks] == pytest.approx([SMALL] * 3, rel=1e-5)
    assert runtime.sessions == 1


@pytest.mark.parametrize(
    "op",
    [
        OpSpec.of("relu", [(1, 7)]),
        OpSpec.of("add", [(1, 7), (1, 7)]),
        OpSpec.of("mul", [(1, 7), (7,)], learned="+7"),
    ],
)
def test_operator_without_a_network_is_measured_alone_and_says_so(op):
    estimator, runtime = _make()
    runtime.latencies = lambda op: 2.0**-10
    found = estimator.estimate_op(op)
    assert found.value == pytest.approx(2.0**-10, rel=1e-5)
    assert found.missing == (f"measured alone: {op.op_key}",)
    assert estimator.estimate_op(op) == found
    assert runtime.sessions == 1


def test_operator_alone_gives_way_to_one_in_a_network():
    estimator, runtime = _make()
    op = OpSpec.of("relu", [PICTURES.shape])
    runtime.latencies = lambda op: 1.0
    estimator.estimate_op(op)
    runtime.latencies = latency
    assert estimator.estimate(nn.ReLU(), PICTURES).value == pytest.approx(TIMES["relu"], rel=1e-5)
    assert estimator.estimate_op(op).missing == ()


def test_operator_alone_that_fails_says_why():
    estimator, runtime = _make()

    def fail(op):
        raise RuntimeError(f"no kernel for {op.op_key}")

    runtime.latencies = fail
    op = OpSpec.of("relu", [(1, 7)])
    with pytest.raises(
        MeasurementError, match=rf"^{re.escape(op.op_key)} cannot be measured on .*: .*no kernel for relu"
    ):
        estimator.estimate_op(op)


def test_operator_that_can_not_be_built_must_be_met_first():
    estimator, _ = _make()
    with pytest.raises(
        MissingEntryError, match=r"cannot be built from its key alone\. It was not measured in a network"
    ):
        estimator.estimate_op(OpSpec.of("inverted_residual", [(1, 3, 4, 4)]))


def test_control_flow_by_data_is_traced_by_modules():
    estimator, _ = _make(GraphEstimator)
    with pytest.warns(TracingWarning, match=r"cannot be traced without data"):
        estimator._trace(Undecided(), torch.ones(1, 4))


def test_network_that_runs_otherwise_than_traced_is_refused(monkeypatch):
    estimator, runtime = _make()
    monkeypatch.setattr(runtime, "time_calls", lambda stage, value: [1.0] * 3)
    with pytest.raises(
        MeasurementError,
        match=r"^Fickle cannot be measured .*: it made 3 calls when it ran and 1 when it was traced",
    ):
        estimator.estimate(Fickle(), torch.ones(1, 4))


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("inputs", [None, "text", torch.zeros(1, 5)])
def test_inputs_that_do_not_fit_are_refused(kind, inputs):
    estimator, runtime = _make(kind)
    with pytest.raises(InvalidValueError, match=r"example.inputs"):
        estimator.estimate(nn.Linear(4, 2), inputs)
    assert runtime.sessions == 0


@pytest.mark.parametrize("kind", LAYERED)
def test_runtime_that_compiles_is_refused_by_layers(kind):
    estimator, runtime = _make(kind)
    runtime.sees_calls = False
    with pytest.raises(
        MeasurementError, match=r"cannot time the operators of a network one by one.*estimator 'network'"
    ):
        estimator.estimate(nn.ReLU(), PICTURES)


def test_runtime_that_compiles_measures_whole_networks():
    estimator, runtime = _make(MeasuredNetworkEstimator)
    runtime.sees_calls = False
    assert estimator.estimate(Small(), PICTURES).value == pytest.approx(SMALL, rel=1e-5)
    total = sum(TIMES[name] for name in ("mul", "add", "embedding"))
    assert estimator.estimate(Several(), SEVERAL_INPUTS).value == pytest.approx(total, rel=1e-5)


def test_table_and_estimator_agree_on_the_same_runs(tmp_path):
    """Time is attributed to operators in one place: what a table says of its runs, the estimators say of them too."""
    space = make_space(f"{Path(__file__).parent.parent / 'spaces' / 'own_space.py'}:OwnSpace")
    plan, store, generator = operator_plan(space, n_networks=4), MemoryStore(), random.Random(0)
    runtime = FakeRuntime(lambda op: 1e-4 + 1e-6 * len(op.op_key), mark=2e-6, noise=lambda: generator.uniform(0, 1e-4))
    table = build_table(plan, runtime, Protocol(rounds=12, time_budget=1e9), tmp_path / "t.json", store=store)
    estimator = ModuleEstimator(runtime=runtime, store=store)
    sessions = runtime.sessions
    for entry in table.entries:
        found = estimator.estimate_op(entry.op)
        assert found.missing == ()
        assert (found.value, found.low, found.high) == pytest.approx((entry.value, entry.low, entry.high), rel=1e-6)
    assert runtime.sessions == sessions


def test_network_that_failed_is_tried_again():
    """Unlike a candidate of a table it has no other to take its place."""
    estimator, runtime = _make()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "time_calls", lambda stage, value: [1.0] * 7)
        with pytest.raises(MeasurementError, match=r"made 7 calls"):
            estimator.estimate(nn.ReLU(), PICTURES)
    assert estimator.estimate(nn.ReLU(), PICTURES).value == pytest.approx(TIMES["relu"], rel=1e-5)


def test_weights_without_values_are_refused():
    estimator, _ = _make()
    with pytest.raises(InvalidValueError, match=r"Linear cannot be measured: 'weight' has no values"):
        estimator.estimate(nn.Linear(4, 2, device="meta"), torch.zeros(1, 4))


@pytest.mark.parametrize(("name", "kind"), [("module", ModuleEstimator), ("graph:cpu", GraphEstimator)])
def test_estimators_have_names(name, kind):
    estimator = load_estimator(name)
    assert type(estimator) is kind
    assert estimator.platform.id == TorchEager().platform.id


def _estimate_in_a_process(path, start, answers):
    estimator, runtime = _make(store=path)
    start.wait()
    value = estimator.estimate(Small(), PICTURES).value
    answers.put((runtime.sessions, value))


# From Python 3.12 on, whoever forks with threads is warned.
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_two_processes_measure_an_operator_once(tmp_path):
    """Both begin at the same moment; one waits for the other."""
    context = multiprocessing.get_context("fork")
    start, answers = context.Barrier(2), context.Queue()
    arguments = (str(tmp_path / "known.sqlite"), start, answers)
    both = [context.Process(target=_estimate_in_a_process, args=arguments) for _ in range(2)]
    for process in both:
        process.start()
    (first, one), (second, other) = (answers.get(timeout=300) for _ in both)
    for process in both:
        process.join(300)
    assert {first, second} == {0, 1}
    assert one == other


class _InThisProcess(TorchEager):
    """Torch without a worker, which takes a moment to start."""

    portable = False


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize(
    ("network", "inputs", "warned"),
    [
        (Several(), SEVERAL_INPUTS, False),
        (Undecided(), torch.ones(1, 4), True),
        (nn.LSTM(8, 16), torch.ones(5, 1, 8), False),
        (nn.TransformerEncoderLayer(16, 2, dim_feedforward=16, batch_first=True), torch.ones(1, 4, 16), False),
    ],
    ids=["several", "undecided", "lstm", "encoder"],
)
def test_real_networks_of_all_sorts(kind, network, inputs, warned):
    estimator = kind(runtime=_InThisProcess(), protocol=Protocol(rounds=2), store="memory")
    with pytest.warns(TracingWarning) if warned else contextlib.nullcontext():
        answer = estimator.estimate(network, inputs)
    assert 0 < answer.low <= answer.value <= answer.high


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("kind", ALL)
def test_real_network_on_a_gpu(kind):
    estimator = kind(runtime=TorchEager("cuda"), protocol=Protocol(rounds=4, processes=1), store="memory")
    answer = estimator.estimate(Small(), PICTURES)
    assert 0 < answer.low <= answer.value <= answer.high


@pytest.mark.slow
def test_real_network_adds_up_and_is_remembered(tmp_path):
    """Parts measured inside add up to the whole that was measured along with them."""
    protocol = Protocol(n_run=2, rounds=8, processes=1)
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.Flatten(), nn.LazyLinear(5)
    )
    pictures = torch.randn(2, 3, 16, 16)
    network(pictures)
    layers = ModuleEstimator(protocol=protocol, store=str(tmp_path / "known.sqlite"))
    answer = layers.estimate(network, pictures)
    whole = MeasuredNetworkEstimator(protocol=protocol, store=str(tmp_path / "known.sqlite")).estimate(
        network, pictures
    )
    assert answer.value == pytest.approx(whole.value, rel=1e-3)
    assert 0 < answer.low < answer.value < answer.high
    (campaign,) = open_store(str(tmp_path / "known.sqlite")).campaigns()
    assert len(campaign.subjects) == 1
