# SPDX-License-Identifier: Apache-2.0
"""Trees over operators: what they learn from times of kernels, and how they are saved."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from measured_graphs import FAST, SLOW, WIDE, latency, measured, network
from safetensors import safe_open
from safetensors.torch import save_file

from nni_latency.errors import FileFormatError
from nni_latency.graphs import GraphPredictor, MeasuredNetwork
from nni_latency.graphs._encoding import encode_graph
from nni_latency.graphs._examples import Examples, Measurements
from nni_latency.graphs._operator_trees import (
    FEWEST_NETWORKS,
    N_COLUMNS,
    OperatorTrees,
    columns,
    describe,
    has_enough,
    learn_trees,
)
from nni_latency.operators import Graph, OpSpec


def _with_parts(items: list[MeasuredNetwork]) -> list[MeasuredNetwork]:
    """Add what every operator takes; activations run with what is before them."""
    found = []
    for item in items:
        slower = item.latency / latency(item.graph)
        parts: list[tuple[tuple[int, ...], float]] = []
        for number, operator in enumerate(item.graph.operators):
            seconds = slower * (latency(Graph((operator,), 1)) - 5e-6)
            if seconds > 0:
                parts.append(((number,), seconds))
            else:
                parts[-1] = ((*parts[-1][0], number), parts[-1][1])
        found.append(replace(item, parts=tuple(parts)))
    return found


@pytest.fixture(scope="module")
def items() -> list[MeasuredNetwork]:
    return _with_parts(measured(26, [(FAST, 1.0)])) + measured(26, [(SLOW, 2.0)])


@pytest.fixture(scope="module")
def trees(items: list[MeasuredNetwork]) -> OperatorTrees:
    return learn_trees(Measurements.of(items).examples, 0, 0)


@pytest.fixture(scope="module")
def predictor(items: list[MeasuredNetwork]) -> GraphPredictor:
    return GraphPredictor(hidden=8, epochs=2, n_folds=2, n_members=1).fit(items)


def test_networks_that_were_not_seen_are_sums_of_their_operators(trees: OperatorTrees) -> None:
    graphs = [network([20, 20, 20], 20), network([33, 33], 25, "sigmoid"), network([48] * 3, 14, shortcut=True)]
    encoded = [encode_graph(graph) for graph in graphs]
    found = [trees.latency(graph, describe(graph)) for graph in encoded]
    np.testing.assert_allclose(found, [latency(graph) for graph in graphs], rtol=0.1)
    assert found[0] == pytest.approx(trees.costs(encoded[0], describe(encoded[0])).sum() + trees.run)


def test_a_platform_without_times_of_kernels_has_no_trees(items: list[MeasuredNetwork]) -> None:
    examples = Measurements.of(items).examples
    assert has_enough(examples, 0)
    assert not has_enough(examples, 1)
    assert not has_enough(examples.only(range(FEWEST_NETWORKS - 1)), 0)


def test_operators_are_described_with_what_is_next_to_them() -> None:
    graph = encode_graph(network([8, 8]))
    found = columns(graph)
    assert found.shape == (5, N_COLUMNS)
    features = graph.features.shape[1]
    # Group and kind of what the first convolution reads: nothing; of what reads it: its activation.
    assert found[0, features + 2 : features + 6].tolist() == [-1, -1, graph.kinds[1], graph.groups[1]]
    np.testing.assert_allclose(found[1, -6:], graph.features[0, :6])


def test_the_overhead_of_a_run_is_that_of_short_networks(items: list[MeasuredNetwork], trees: OperatorTrees) -> None:
    """A run of long networks may begin with more that no kernel tells."""
    examples = Measurements.of(items).examples
    assert trees.run == pytest.approx(5e-6, rel=0.3)
    slow = trees.moved(Examples(examples.graphs, examples.latencies * 2, [()] * len(examples.graphs)), 0)
    assert slow.run == pytest.approx(1e-5, rel=0.3)


def test_operators_that_are_equal_are_seen_once(trees: OperatorTrees) -> None:
    graph = encode_graph(network([16] * 8))
    described = describe(graph)
    assert len(described.rows) < len(graph) == len(described.row_of)
    np.testing.assert_array_equal(described.rows[described.row_of], columns(graph))


def test_they_are_the_same_from_arrays(trees: OperatorTrees) -> None:
    again = OperatorTrees.read(trees.tensors())
    graph = encode_graph(network([12, 40, 40]))
    np.testing.assert_array_equal(again.costs(graph, describe(graph)), trees.costs(graph, describe(graph)))
    assert again.run == trees.run


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rates", np.zeros((2, 2)), "rates"),
        ("run", np.array([np.nan]), "rates"),
        ("feature", np.array([10**6], dtype=np.int32), "as many features|divides by feature"),
        ("sum", np.array([np.inf, 1.0]), "not finite"),
    ],
)
def test_arrays_that_fit_nothing_are_refused(trees: OperatorTrees, name: str, value: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OperatorTrees.read({**trees.tensors(), name: value})


def test_a_predictor_answers_with_its_trees(predictor: GraphPredictor, tmp_path: Path) -> None:
    assert [found is None for found in predictor.trees_] == [False, True]
    graph = network([24, 24], 18)
    alone = predictor.predict([graph], FAST)[0]
    by_trees = predictor.trees_[0].latency(encode_graph(graph), describe(encode_graph(graph)))
    without = GraphPredictor.load(_without_trees(predictor, tmp_path / "without.safetensors"))
    assert without.trees_ == (None, None)
    assert alone == pytest.approx(np.sqrt(by_trees * without.predict([graph], FAST)[0]))
    assert predictor.predict([graph], SLOW)[0] == pytest.approx(without.predict([graph], SLOW)[0])
    costs = predictor.explain(graph, FAST)
    assert 0 < sum(item.seconds for item in costs) <= alone * (1 + 1e-9)
    again = GraphPredictor.load(predictor.save(tmp_path / "new.safetensors"))
    np.testing.assert_array_equal(again.predict([graph], FAST), predictor.predict([graph], FAST))


@pytest.mark.slow
def test_a_platform_that_is_learned_anew_has_trees_if_enough_kernels_were_timed(
    predictor: GraphPredictor, items: list[MeasuredNetwork], tmp_path: Path
) -> None:
    again = GraphPredictor.load(predictor.save(tmp_path / "again.safetensors"))
    fast = [item for item in items if item.platform == FAST]
    assert again.adapt(fast[:8]).trees_ == (None, None)
    assert [found is None for found in again.adapt(fast).trees_] == [False, True]


def _without_trees(predictor: GraphPredictor, path: Path) -> Path:
    """Write a file without trees."""
    predictor.save(path)
    with safe_open(path, "pt") as file:
        content = json.loads(file.metadata()["nni_latency"])
        tensors = {name: file.get_tensor(name) for name in file.keys() if not name.startswith("trees/")}  # noqa: SIM118
    save_file(tensors, path, metadata={"nni_latency": json.dumps(content)})
    return path


def test_damaged_trees_are_refused(predictor: GraphPredictor, tmp_path: Path) -> None:
    path = predictor.save(tmp_path / "g.safetensors")
    with safe_open(path, "pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    tensors["trees/0/left"] = tensors["trees/0/left"] * 0
    save_file(tensors, path, metadata=metadata)
    with pytest.raises(FileFormatError, match=r"is damaged.*children behind it"):
        GraphPredictor.load(path)


def test_families_are_held_out_as_a_whole_and_random_blocks_one_by_one() -> None:
    items = measured(4, [(FAST, 1.0)])
    mixed = [replace(item, name=f"mixed-{item.name}", family="mixed-small") for item in items]
    data = Measurements.of([*items, *mixed])
    folds = data.folds(2, 0)
    assert sorted(row for fold in folds for row in fold) == list(range(2 * len(items)))
    families, blocks = (
        [[row for row in fold if (row >= len(items)) == is_mixed] for fold in folds] for is_mixed in (0, 1)
    )
    assert all(len({items[row].family for row in fold}) * 4 == len(fold) for fold in families)
    assert sorted(map(len, blocks)) == [len(mixed) // 2] * 2
    assert {items[row - len(items)].family for row in blocks[0]} == {item.family for item in items}
    predictor = GraphPredictor(hidden=8, epochs=1, n_folds=2, n_members=1).fit([*items, *mixed])
    assert not np.isnan(predictor.held_out_).any()
    assert (predictor.widths_ > 0).all()
    assert predictor.counts_.tolist() == [len(items) + len(mixed)]


def test_trees_of_one_platform_are_moved_to_another(trees: OperatorTrees) -> None:
    """Twelve networks without times of kernels are enough, where all takes a third of the time."""
    few = Measurements.of(measured(3, [(SLOW, 0.3)])).examples
    graphs = [encode_graph(network([20, 20, 20], 20)), encode_graph(network([33, 33], 25, "sigmoid"))]
    np.testing.assert_allclose(trees.moved(few, 0).latencies(graphs), 0.3 * trees.latencies(graphs), rtol=0.1)
    assert trees.moved(few, 0).trees is trees.trees


def _slower_where(items: list[MeasuredNetwork], is_slow: Callable[[OpSpec], bool]) -> list[MeasuredNetwork]:
    """Let the kernels of some operators take twice as long."""
    found = []
    for item in _with_parts(items):
        slower = [1.0 + is_slow(item.graph.operators[numbers[0]].op) for numbers, _ in item.parts]
        parts = tuple((numbers, by * seconds) for (numbers, seconds), by in zip(item.parts, slower, strict=True))
        more = sum(seconds for _, seconds in parts) - sum(seconds for _, seconds in item.parts)
        found.append(replace(item, parts=parts, latency=item.latency + more))
    return found


def test_trees_learn_on_by_kernels_of_another_platform(trees: OperatorTrees) -> None:
    # Rates of convolutions cannot say this.
    items = _slower_where(
        measured(30, [(WIDE, 0.3)]), lambda op: op.kind == "conv2d" and bool(op["out_channels"] >= 36)
    )
    examples = Measurements.of(items).examples
    known, unknown = examples.only(range(0, 120, 2)), examples.only(range(1, 120, 2))
    moved, continued = trees.moved(known, 0), trees.continued(known, 0, 0)

    def off(found: OperatorTrees, some: Examples) -> float:
        return float(np.abs(found.latencies(some.graphs) / some.latencies[:, 0] - 1).mean())

    assert off(continued, known) < 0.05 < off(moved, known)
    assert off(continued, unknown) < 0.6 * off(moved, unknown)
    assert continued.trees.trees[: len(trees.trees.trees)] == trees.trees.trees


@pytest.mark.slow
def test_a_platform_that_is_added_learns_from_times_of_kernels() -> None:
    """Eight networks hardly tell additions from convolutions; their kernels do."""
    predictor = GraphPredictor(hidden=16, epochs=10, n_folds=2, n_members=1).fit(measured(8, [(FAST, 1.0)]))
    slow = _slower_where(measured(8, [(WIDE, 0.3)]), lambda op: op.kind == "add")
    few, others = slow[::4], [item for number, item in enumerate(slow) if number % 4]

    def off(known: list[MeasuredNetwork]) -> float:
        found = predictor.adapt(known).predict([item.graph for item in others], WIDE)
        return float(np.abs(np.log(found / [item.latency for item in others])).mean())

    assert off(few) < 0.8 * off([replace(item, parts=()) for item in few])


@pytest.mark.slow
def test_a_platform_takes_over_trees_where_they_help(items: list[MeasuredNetwork]) -> None:
    predictor = GraphPredictor(hidden=16, epochs=3, n_folds=2, n_members=1).fit(items)
    few = measured(5, [(WIDE, 0.3)])
    found = predictor.adapt(few)
    assert found.trees_[-1] is not None
    assert found.trees_[-1].trees is predictor.trees_[0].trees  # type: ignore[union-attr]
    assert predictor.adapt(few[:10]).trees_[-1] is None, "too few to tell"
    off = np.abs(np.log(found.predict([item.graph for item in few], WIDE) / [item.latency for item in few]))
    assert off.mean() < 0.1
