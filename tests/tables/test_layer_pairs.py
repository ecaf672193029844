# SPDX-License-Identifier: Apache-2.0
"""Costs of pairs of neighbouring layers: in a table, its file and its arithmetic, and their fit to timed parts."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nni_latency import FBNetSpace
from nni_latency.errors import FileFormatError, InvalidValueError
from nni_latency.estimators import TableEstimator
from nni_latency.measurement import Protocol, balanced_round
from nni_latency.platforms import Platform
from nni_latency.tables import (
    LayerPair,
    LookupTable,
    as_throughput,
    compare_tables,
    fold_calibration,
    merge_tables,
    scale_table,
    subset_table,
    weigh_tables,
)
from nni_latency.tables._layer_schedule import Round, Samples
from nni_latency.tables._summary import summarise
from nni_latency.tables.formats import export_table
from tests.tables.simulated import Seen

PAIR = LayerPair(("a", "b"), ((0, 1), (0, 0, 1)), ((0.0, 2e-4), (-1e-4, 1e-4)))
COSTS = {"a": {"x": 0.001, "y": 0.002}, "b": {"u": 0.003, "v": 0.004, "w": 0.005}}


def make_table(**fields):
    table = LookupTable.from_latencies({label: list(choices) for label, choices in COSTS.items()}, COSTS)
    return replace(table, pairs=(PAIR,), calibration=1.5, **fields)


def cost(table, a, b):
    return TableEstimator(table).estimate_sample({"a": a, "b": b}).value


def test_a_pair_costs_more_than_its_entries():
    table = make_table()
    assert cost(table, "x", "w") == pytest.approx(1.5 * (0.001 + 0.005 + 2e-4))
    assert cost(table, "y", "v") == pytest.approx(1.5 * (0.002 + 0.004 - 1e-4))


def test_file_keeps_pairs(tmp_path):
    table = make_table()
    assert LookupTable.load(table.save(tmp_path / "table.json")).pairs == table.pairs
    # Tables without pairs are as they were.
    content = json.loads(replace(table, pairs=()).save(tmp_path / "without.json").read_text())
    assert not content.get("pairs")


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_file_keeps_any_pair(tmp_path_factory, data):
    number = st.floats(-1e-3, 1e-3)
    kinds = tuple(tuple(data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))) for size in (2, 3))
    costs = tuple(tuple(data.draw(st.lists(number, min_size=3, max_size=3))) for _ in range(3))
    table = replace(make_table(), pairs=(LayerPair(("a", "b"), kinds, costs),))
    path = tmp_path_factory.getbasetemp() / "any_pair.json"
    assert LookupTable.load(table.save(path)).pairs == table.pairs


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"layers": ["a", "c"]}, "c"),
        ({"layers": ["b", "a"]}, "kind"),
        ({"layers": ["a", "a"], "kinds": [[0, 1], [0, 1]]}, "neighbours, the earlier one first. Got a and a"),
        ({"kinds": [[0, 1], [0, 0]]}, "kind"),
        ({"kinds": [[0, 2], [0, 0, 1]]}, "row"),
        ({"costs": [[0.0, 1e-4], [1e-4]]}, "rows of different lengths"),
        ({"costs": [[0.0, -0.004], [0.0, 0.0]]}, None),
        ({"costs": [[0.0, -0.006], [0.0, 0.0]]}, "too far below zero: the entries and pairs of a network add up to 0"),
        ({"costs": [[0.0, -0.0061], [0.0, 0.0]]}, "add up to -0.0001"),
        ({"costs": [[0.0, "much"], [0.0, 0.0]]}, "pairs.0.costs.0.1"),
        ({"costs": []}, "row"),
    ],
)
def test_pairs_that_do_not_fit_their_table_are_refused(change, named, tmp_path):
    path = make_table().save(tmp_path / "table.json")
    content = json.loads(path.read_text())
    content["pairs"][0].update(change)
    path.write_text(json.dumps(content))
    if named is None:
        assert LookupTable.load(path).pairs
        return
    with pytest.raises(FileFormatError, match=re.escape(named)):
        LookupTable.load(path)


def test_pairs_of_what_does_not_add_up_are_refused():
    table = replace(make_table(), pairs=(), calibration=1.0, metric="peak_memory")
    with pytest.raises(InvalidValueError, match="The peak_memory of layers does not add up"):
        replace(table, pairs=(PAIR,))
    # A candidate without an entry is in no network.
    lacking = subset_table(make_table(), choices=["x", "u", "v"])
    far = LayerPair(("a", "b"), PAIR.kinds, ((0.0, -0.1), (0.0, 0.0)))
    assert replace(lacking, pairs=(far,)).pairs == (far,)


def test_pairs_must_be_of_neighbours_and_each_once():
    costs = {**COSTS, "c": {"p": 0.001}}
    table = LookupTable.from_latencies({label: list(choices) for label, choices in costs.items()}, costs)
    with pytest.raises(InvalidValueError, match="neighbours"):
        replace(table, pairs=(LayerPair(("a", "c"), ((0, 0), (0,)), ((0.0,),)),))
    with pytest.raises(InvalidValueError, match="once"):
        replace(table, pairs=(PAIR, PAIR))


def test_arithmetic_takes_pairs_along():
    table = make_table()
    assert cost(scale_table(table, 2.0), "x", "w") == pytest.approx(2 * cost(table, "x", "w"))
    assert cost(fold_calibration(table), "x", "w") == pytest.approx(cost(table, "x", "w"))
    assert subset_table(table, choices=["x", "u", "w"]).pairs == table.pairs
    throughput = as_throughput(table)
    assert cost(throughput, "x", "w") == pytest.approx(1 / cost(table, "x", "w"))
    assert cost(scale_table(throughput, 2.0), "x", "w") == pytest.approx(2 * cost(throughput, "x", "w"))
    both = weigh_tables([table, scale_table(table, 2.0)], [3.0, 1.0])
    assert cost(both, "y", "v") == pytest.approx(5 * cost(table, "y", "v"))
    other = replace(table, pairs=(LayerPair(("a", "b"), ((0, 0), (0, 1, 1)), ((1e-4, 0.0),)),))
    both = weigh_tables([table, other], [1.0, 1.0])
    for a in COSTS["a"]:
        for b in COSTS["b"]:
            assert cost(both, a, b) == pytest.approx(cost(table, a, b) + cost(other, a, b))


def test_merging_keeps_the_pairs_of_the_first_table():
    parts = [subset_table(make_table(), choices=["x", "u", "v", "w"]), subset_table(make_table(), choices=["y"])]
    assert cost(merge_tables(parts), "y", "v") == cost(make_table(), "y", "v")
    found = merge_tables([parts[0], replace(parts[1], pairs=())])
    assert found.pairs == make_table().pairs and any("neighbouring" in remark for remark in found.remarks)


def test_comparison_and_export_name_pairs():
    table = make_table()
    assert any("pairs" in item for item in compare_tables(table, replace(table, pairs=())).differences)
    assert compare_tables(table, table).differences == ()
    assert any("neighbouring" in remark for remark in export_table(table, "csv", unit="s"))


SPACE = FBNetSpace(num_classes=10, input_size=32, width=0.25, depth=0.5)
PLAN = SPACE.measure_plan()


def simulated(surcharge, seed=0):
    """Return a table of a quiet machine on which a change between grouped and other blocks costs a surcharge."""
    generator = np.random.default_rng(seed)
    costs = [[1e-4 * (1 + choice % 5) for choice in range(size)] for size in PLAN.sizes]
    grouped = [["_g2" in name for name in layer.candidates] for layer in PLAN.layers]

    def times(network):
        parts = np.array([row[choice] for row, choice in zip(costs, network, strict=True)])
        kinds = [row[choice] for row, choice in zip(grouped, network, strict=True)]
        for place in range(1, len(parts)):
            parts[place] += surcharge * (kinds[place] != kinds[place - 1])
        return parts

    samples = Samples(PLAN.sizes)
    references = [PLAN.indices_of(reference) for reference in PLAN.references]
    for number in range(12):
        networks = [*balanced_round(PLAN.sizes, number, 0), *references]
        visits = []
        for network in networks:
            speed = np.exp(generator.normal(0, 0.005))
            runs = [speed * times(network) * np.exp(generator.normal(0, 0.01, len(network))) for _ in range(7)]
            whole = [float(run.sum() * np.exp(generator.normal(0, 0.002))) for run in runs]
            visits.append(Seen(1e-4, [run.tolist() for run in runs], whole))
        samples.add(Round(tuple(map(tuple, networks)), tuple(visits)))
    table = summarise(PLAN, Platform("simulated", "fake"), Protocol(), samples)
    tried = np.random.default_rng(9).integers(0, 9, (60, len(SPACE.simplify())))
    default = {layer.name: layer.default for layer in PLAN.layers if not layer.searched}
    truth = []
    for row in tried:
        named = dict(zip(SPACE.simplify(), row, strict=True))
        network = [
            list(layer.candidates).index(default[layer.name]) if layer.name in default else named[layer.name]
            for layer in PLAN.layers
        ]
        truth.append(times(network).sum())
    errors = np.log(TableEstimator(table).predict(tried) / np.array(truth))
    return table, float(np.abs(errors - np.median(errors)).mean())


def test_pairs_are_found_where_neighbours_matter():
    table, error = simulated(6e-5)
    assert len(table.pairs) > 5 and error < 0.01
    # The networks of the build show it: its error beyond chance is that of networks outside of it.
    # As a standard deviation; 0.83 of it is the scale of Student's t.
    assert table.network_error < 0.01 / 0.83
    changes, same = [], []
    for pair in table.pairs:
        first, second = (["_g2" in choice for choice in table[layer].choices] for layer in pair.layers)
        for index, cost in np.ndenumerate(pair.by_choice):
            (changes if first[index[0]] != second[index[1]] else same).append(cost)
    assert np.mean(changes) - np.mean(same) == pytest.approx(6e-5, rel=0.35)


def test_pairs_are_left_out_where_neighbours_do_not_matter():
    table, error = simulated(0.0)
    assert table.pairs == () and error < 0.006


class _Noise:
    """Costs of pairs that take one second from networks with every second choice of a layer."""

    def shares(self, networks):
        return np.where(networks[:, 5:6] % 2, 0.0, -1.0) * np.ones(networks.shape)


def test_pairs_that_take_more_than_networks_cost_are_left_out(monkeypatch):
    monkeypatch.setattr("nni_latency.tables._summary.fit_pairs", lambda *_arguments: _Noise())
    table, _ = simulated(6e-5)
    assert table.pairs == ()
