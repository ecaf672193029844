# SPDX-License-Identifier: Apache-2.0
"""Graph predictors: what they learn, what they say of what they do not know, and their file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from measured_graphs import FAST, SLOW, WIDE, fitted, latency, measured, network
from safetensors import safe_open
from safetensors.torch import save_file
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted
from torch import nn

from nni_latency.errors import FileFormatError, InvalidValueError, UnknownNameError
from nni_latency.graphs import GraphNetworkEstimator, GraphPredictor, MeasuredNetwork
from nni_latency.graphs._examples import Measurements
from nni_latency.graphs._graph_learning import prior_of
from nni_latency.graphs._graph_network import GraphNetwork
from nni_latency.operators import Graph, OpSpec, TracedOperator, work_of
from nni_latency.platforms import Platform
from nni_latency.testing import check_estimator


@pytest.fixture(scope="module")
def predictor() -> GraphPredictor:
    return fitted()


@pytest.mark.slow
def test_it_learns_families_that_are_held_out(predictor: GraphPredictor) -> None:
    errors = np.abs(np.exp(predictor.held_out_) - 1)
    assert errors.shape == (24, 2)
    assert np.median(errors) < 0.1


@pytest.mark.slow
def test_operators_add_up_to_the_network(predictor: GraphPredictor) -> None:
    graph = network([16, 16, 16])
    costs = predictor.explain(graph, FAST)
    whole = predictor.predict([graph], FAST)[0]
    assert [item.name for item in costs] == [item.name for item in graph.operators]
    assert all(item.seconds >= 0 for item in costs)
    run = whole - sum(item.seconds for item in costs)
    assert 0 <= run < 0.5 * whole


@pytest.mark.slow
def test_every_output_after_the_first_adds_to_the_overhead_of_a_run(predictor: GraphPredictor) -> None:
    graph = network([16, 16, 16])
    whole, *more = predictor.predict([replace(graph, outputs=((1, 16),) * count) for count in (1, 2, 4)], FAST)
    run = whole - sum(item.seconds for item in predictor.explain(graph, FAST))
    first, all_three = (value - whole for value in more)
    assert 0 < first < run
    assert all_three == pytest.approx(3 * first, rel=0.05)


@pytest.mark.slow
def test_depths_never_seen_cost_in_proportion(predictor: GraphPredictor) -> None:
    one, two = network([32] * 20), network([32] * 40)
    ratio = np.divide(*predictor.predict([two, one], FAST))
    assert ratio == pytest.approx(latency(two) / latency(one), rel=0.05)


@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=False), st.lists(st.integers(4, 40), min_size=2, max_size=5))
def test_names_and_order_do_not_matter(predictor: GraphPredictor, random: object, widths: list[int]) -> None:
    graph = network([*widths, widths[-1]], shortcut=True)
    # Two networks side by side can be ordered in many ways.
    count = len(graph.operators)
    both = [*((0, place) for place in range(count)), *((1, place) for place in range(count))]
    mixed = sorted(range(2 * count), key=lambda number: (both[number][1] + random.random(), number))  # type: ignore[attr-defined]
    where = {both[number]: place for place, number in enumerate(mixed)}
    if any(
        where[side, source] > where[side, place] for side, place in both for source in graph.operators[place].sources
    ):
        return
    shuffled = [
        TracedOperator(
            f"x{number}", graph.operators[both[number][1]].op,
            tuple(where[both[number][0], source] for source in graph.operators[both[number][1]].sources),
        )
        for number in mixed
    ]  # fmt: skip
    straight = [
        TracedOperator(item.name, item.op, tuple(source + side * count for source in item.sources))
        for side in (0, 1)
        for item in graph.operators
    ]
    found = predictor.predict([Graph(tuple(shuffled), 2 * count), Graph(tuple(straight), 2 * count)], SLOW)
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_operators_never_seen_are_named_and_widen_the_interval(predictor: GraphPredictor) -> None:
    known = predictor.estimate_platforms(network([16, 16]))[FAST.id]
    strange = predictor.estimate_platforms(network([16, 16], activation="strange"))[FAST.id]
    assert known.missing == ()
    assert strange.missing == ("operators never learned from: strange",)
    assert strange.high / strange.value > known.high / known.value
    assert known.low < known.value < known.high


def test_an_estimator_keeps_the_contract(predictor: GraphPredictor) -> None:
    pytest.importorskip("onnx")
    module = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()).eval()
    check_estimator(GraphNetworkEstimator(predictor, FAST), module, torch.zeros(1, 3, 16, 16))


def test_a_platform_must_be_known(predictor: GraphPredictor) -> None:
    with pytest.raises(UnknownNameError, match="Unknown platform 'other"):
        predictor.predict([network([8])], "other.torch.fp32.t1")
    with pytest.raises(UnknownNameError, match="device-fast"):
        predictor.predict([network([8])])


@pytest.mark.slow
def test_processes_side_by_side_learn_the_same(predictor: GraphPredictor) -> None:
    told: list[tuple[int, int]] = []
    several = clone(predictor).set_params(n_jobs=2)
    several.fit(measured(), lambda done, total: told.append((done, total)))
    assert np.array_equal(several.predict([network([16], 16)], FAST), predictor.predict([network([16], 16)], FAST))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] == told[-1][1]


def test_parameters_are_those_of_an_estimator_of_scikit_learn() -> None:
    unfitted = clone(GraphPredictor(hidden=8)).set_params(epochs=3)
    assert {"hidden": 8, "epochs": 3, "n_folds": 4}.items() <= unfitted.get_params().items()
    assert repr(unfitted) == "GraphPredictor(hidden=8, epochs=3)"
    with pytest.raises(NotFittedError):
        check_is_fitted(unfitted)
    with pytest.raises(InvalidValueError, match=r"no parameter 'width'\. Available: hidden, "):
        unfitted.set_params(width=8)


def test_fitted_predictor_is_fitted_for_scikit_learn(predictor: GraphPredictor) -> None:
    check_is_fitted(predictor)
    assert not hasattr(clone(predictor), "members_")


def test_it_must_be_fitted() -> None:
    with pytest.raises(NotFittedError):
        GraphPredictor().predict([network([8])])


def test_latencies_that_disagree_are_named() -> None:
    items = measured()
    wrong = replace(items[0], latency=2 * items[0].latency)
    with pytest.raises(InvalidValueError, match=r"disagree: 'plain-0' takes .* on device-fast"):
        GraphPredictor().fit([*items, wrong])
    with pytest.raises(InvalidValueError, match="at least 8 networks"):
        GraphPredictor().fit(items[:4])
    with pytest.raises(InvalidValueError, match="positive"):
        replace(items[0], latency=float("nan"))


@pytest.mark.slow
def test_times_of_kernels_are_learned_from() -> None:
    items = []
    for item in measured(8, [(FAST, 1.0)]):
        operators = item.graph.operators
        counted = [number for number, operator in enumerate(operators) if operator.op.kind not in ("relu", "sigmoid")]
        pairs = [(number, number + 1) if operators[number].op.kind == "conv2d" else (number,) for number in counted]
        parts = tuple((pair, latency(Graph((item.graph.operators[pair[0]],), 1)) - 5e-6) for pair in pairs)
        items.append(replace(item, parts=parts))
    found = GraphPredictor(hidden=16, epochs=40, n_folds=2, n_members=1, learning_rate=5e-3).fit(items)
    costs = found.explain(items[0].graph)
    for numbers, seconds in items[0].parts:
        assert sum(costs[number].seconds for number in numbers) == pytest.approx(seconds, rel=0.4)


@pytest.mark.parametrize("is_put_down", [True, False])
def test_what_lies_outside_of_kernels_is_told_from_the_first_one(is_put_down: bool) -> None:
    outside, items = 3e-4, []
    for item in measured(8, [(FAST, 1.0)]):
        seconds = [latency(Graph((operator,), 1)) - 5e-6 for operator in item.graph.operators]
        parts = [((number,), value) for number, value in enumerate(seconds) if value > 0]
        if is_put_down:  # as a runtime with a profile does it
            parts[0] = (parts[0][0], parts[0][1] + outside)
        items.append(replace(item, latency=sum(seconds) + outside, parts=tuple(parts)))
    examples = Measurements.of(items).examples
    for parts, item in zip(examples.parts, items, strict=True):
        assert sum(part.seconds for part in parts) == pytest.approx(item.latency)
        assert [part.overheads for part in parts] == [1.0] + [0.0] * (len(parts) - 1)
    network = GraphNetwork(1, 8, 1, 0.0)
    network.load_state_dict(prior_of(examples), strict=False)
    assert float(network.runs.detach().exp()) == pytest.approx(outside, rel=0.2)


def test_it_is_the_same_from_its_file(predictor: GraphPredictor, tmp_path: Path) -> None:
    graphs = [network([8, 8]), network([40, 12], 30)]
    again = GraphPredictor.load(predictor.save(tmp_path / "graph.safetensors"))
    assert again.get_params() == predictor.get_params()
    assert again.platforms_ == predictor.platforms_
    assert again.estimate_platforms(graphs[0]) == predictor.estimate_platforms(graphs[0])
    np.testing.assert_array_equal(again.predict(graphs, SLOW), predictor.predict(graphs, SLOW))
    np.testing.assert_allclose(again.latencies_, predictor.latencies_, rtol=1e-6)
    assert np.nanmin(again.latencies_) == pytest.approx(min(item.latency for item in measured()))


def test_a_file_with_too_few_errors_is_refused(predictor: GraphPredictor, tmp_path: Path) -> None:
    path = predictor.save(tmp_path / "graph.safetensors")
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file({**tensors, "held_out": tensors["held_out"][:, :1].contiguous()}, path, metadata=metadata)
    with pytest.raises(FileFormatError, match="an error, a latency and a width for every network and platform"):
        GraphPredictor.load(path)


@pytest.mark.parametrize(("name", "reason"), [("absent", "No such file"), (".", "Is a directory")])
def test_a_file_that_cannot_be_opened_is_refused_with_the_reason(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(FileFormatError, match=f"^Cannot read the graph predictor '.*': {reason}"):
        GraphPredictor.load(tmp_path / name)


def test_a_damaged_file_is_refused(predictor: GraphPredictor, tmp_path: Path) -> None:
    path = predictor.save(tmp_path / "graph.safetensors")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileFormatError, match="no graph predictor that can be read"):
        GraphPredictor.load(path)
    path.write_bytes(whole)
    with safe_open(path, "pt") as file:
        content = json.loads(file.metadata()["nni_latency"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for changed, message in (
        ({"version": 99}, "has version 99, this nni_latency reads up to 1"),
        ({"format": "nni_latency.kernels"}, "is not a graph predictor"),
        ({"spreads": [0.1]}, "is damaged"),
        ({"description": [1], "doubt_weights": [0.1] * 3}, "describes operators in another way"),
    ):
        save_file(tensors, path, metadata={"nni_latency": json.dumps({**content, **changed})})
        with pytest.raises(FileFormatError, match=message):
            GraphPredictor.load(path)
    lacking = {name: value for name, value in tensors.items() if name != "1/runs"}
    save_file(lacking, path, metadata={"nni_latency": json.dumps(content)})
    with pytest.raises(FileFormatError, match="is damaged"):
        GraphPredictor.load(path)
    broken = {**tensors, "0/runs": torch.full_like(tensors["0/runs"], float("nan"))}
    save_file(broken, path, metadata={"nni_latency": json.dumps(content)})
    with pytest.raises(FileFormatError, match="finite"):
        GraphPredictor.load(path)


@pytest.mark.slow
def test_a_platform_is_learned_from_a_few_networks(predictor: GraphPredictor) -> None:
    items = measured(6, [(WIDE, 0.4)])
    graphs = [item.graph for item in items]
    chosen = predictor.suggest(graphs, 8)
    assert len(set(chosen)) == 8
    found = predictor.adapt([items[number] for number in chosen])
    assert [platform.id for platform in found.platforms_] == [FAST.id, SLOW.id, WIDE.id]
    errors = found.predict(graphs, WIDE) / [item.latency for item in items] - 1
    assert np.abs(errors).mean() < 0.1
    # The others stay as they were.
    np.testing.assert_allclose(found.predict(graphs, FAST), predictor.predict(graphs, FAST), rtol=1e-5)
    # Networks of the new platform are rows of their own.
    assert found.held_out_.shape == found.latencies_.shape == (24 + 8, 3)
    assert not np.isnan(found.held_out_[24:, 2]).any()
    assert np.isnan(found.held_out_[24:, :2]).all()
    assert sorted(found.latencies_[24:, 2]) == sorted(items[number].latency for number in chosen)
    again = found.adapt([items[number] for number in chosen])
    assert len(again.platforms_) == 3
    assert np.isnan(again.held_out_[:32, 2]).all()


@pytest.mark.slow
def test_a_platform_unlike_any_known_one_is_learned_from_its_own_speeds(predictor: GraphPredictor) -> None:
    """A GPU takes longer to start an operator, and computes so fast that small networks hardly show it."""

    def seconds(graph: Graph) -> float:
        return 1e-5 + sum(2e-5 + work_of(item.op)[0].flops / 1e14 for item in graph.operators)

    noise = np.random.default_rng(0)
    items = [
        replace(item, latency=seconds(item.graph) * float(np.exp(noise.normal(0, 0.03))))
        for item in measured(6, [(WIDE, 1.0)])
    ]
    found = predictor.adapt(items)
    heavy = network([256] * 6, 32)
    assert latency(heavy) > 20 * max(latency(item.graph) for item in items)
    estimate = found.predict([heavy], WIDE)[0]
    assert 0.5 * seconds(heavy) < estimate < 2.5 * seconds(heavy)


def test_one_platform_is_learned_at_a_time(predictor: GraphPredictor) -> None:
    with pytest.raises(InvalidValueError, match="One platform is added at a time"):
        predictor.adapt(measured())
    with pytest.raises(InvalidValueError, match="at least 5 networks"):
        predictor.adapt(measured(1, [(WIDE, 1.0)]))


def test_a_platform_that_nobody_measured_is_guessed() -> None:
    facts = [{"peak_flops": peak, "memory_bandwidth": peak} for peak in (50, 100, 200)]
    known = [
        (Platform(f"device-{item['peak_flops']}", "onnxruntime", facts=item), 100 / item["peak_flops"])
        for item in facts
    ]
    found = GraphPredictor(hidden=16, epochs=15, n_folds=2, n_members=1).fit(measured(4, known))
    graph = network([24, 24])
    near = Platform("device-90", "onnxruntime", facts={"peak_flops": 90, "memory_bandwidth": 90})
    guess = found.guess(graph, near)
    assert guess.low < guess.value < guess.high
    assert guess.value == pytest.approx(latency(graph, 100 / 90), rel=0.4)
    assert guess.missing == (f"not measured on {near.id}: guessed from {known[1][0].id}",)
    faster = Platform("device-90", "onnxruntime", facts={"peak_flops": 180, "memory_bandwidth": 180, "cache": 1})
    assert guess.value / found.guess(graph, faster).value == pytest.approx(2.0, rel=0.3)
    assert found.guess(graph, faster).missing[1:] == ("no known platform has the fact cache: it does not count",)
    with pytest.raises(InvalidValueError, match="peak_flops"):
        found.guess(graph, Platform("x", facts={"peak_flops": -1}))


def test_two_platforms_are_too_few_to_guess(predictor: GraphPredictor) -> None:
    with pytest.raises(InvalidValueError, match="three known ones"):
        predictor.guess(network([8]), WIDE)


def test_a_network_without_operators_is_no_network() -> None:
    with pytest.raises(InvalidValueError, match="no operators"):
        MeasuredNetwork("empty", Graph((), 0), 1.0, FAST)


def test_operators_without_inputs_are_described(predictor: GraphPredictor) -> None:
    odd = Graph(
        (TracedOperator("a", OpSpec.of("strange", [()])), TracedOperator("b", OpSpec.of("index", [(5,)]), (0,))), 2
    )
    assert predictor.predict([odd], FAST)[0] > 0
