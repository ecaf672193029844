# SPDX-License-Identifier: Apache-2.0
"""Costs of operators beside their neighbours: their fit, and what tables and estimators do with them."""

from __future__ import annotations

import math
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from nni_latency.analysis import ModelAnalysis
from nni_latency.errors import InvalidValueError
from nni_latency.estimators import (
    Estimate,
    FallbackEstimator,
    LayerEnsemble,
    LayerEstimator,
    TableEstimator,
    break_down,
    estimate_table,
)
from nni_latency.measurement import CallMap, NetworkCalls, Protocol, Record
from nni_latency.operators import OpSpec, Trace, TracedOperator, neighbours_of, trace, ways_to
from nni_latency.platforms import Platform
from nni_latency.tables import (
    Entry,
    LookupTable,
    MeasuredNetwork,
    OperatorSamples,
    SpaceReference,
    compare_tables,
    cost_beside,
    energy_of_operators,
    fold_calibration,
    scale_table,
)
from nni_latency.tables._neighbours import PlacedOperators, fit_neighbours
from nni_latency.tables.formats import export_table

PLATFORM = Platform("paper", "onnxruntime")
COSTS = st.dictionaries(
    st.one_of(st.just(""), st.from_regex(r"[<>] [a-z_0-9]{1,9}", fullmatch=True)),
    st.floats(-1e-3, 1e-3, allow_nan=False),
    max_size=5,
)


def _op(kind, size=8):
    return OpSpec.of(kind, [(1, size, 4, 4)])


def _table(*entries, **fields):
    made = [Entry(value, value, value, op=op, beside=beside) for op, value, beside in entries]
    header = {"space": SpaceReference("darts"), "platform": PLATFORM, "input_shape": (1, 8, 4, 4)}
    return LookupTable(**header, operators=tuple(made), **fields)


class Net(nn.Module):
    """A pooling that is read by two convolutions, one of them past an activation."""

    def __init__(self):
        super().__init__()
        self.pool, self.relu = nn.MaxPool2d(3, 1, 1), nn.ReLU()
        self.one, self.two = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, inputs):
        pooled = self.pool(inputs)
        return self.one(pooled) + self.two(self.relu(pooled))


def _net_table(**beside):
    """Return a table of the operators of `Net`, with costs beside neighbours by kind or name."""
    names = ("pool", "one", "relu", "two", "add")
    ops = [item.op for item in trace(Net(), torch.zeros(1, 8, 4, 4)).operators]
    return _table(
        *((op, 1e-5 * n, beside.get(name, {})) for n, (name, op) in enumerate(zip(names, ops, strict=True), 1))
    )


def test_activations_are_looked_through():
    found = trace(Net(), torch.zeros(1, 8, 4, 4)).neighbours
    assert [sorted(names) for names in found] == [
        ["> conv2d", "> conv2d"],
        ["< max_pool2d", "> add"],
        ["< max_pool2d", "> conv2d"],
        ["< max_pool2d", "> add"],
        ["< conv2d", "< conv2d"],
    ]


def test_every_tensor_counts_that_is_read():
    add, tanh = OpSpec.of("add", [(1, 8), (1, 8)]), OpSpec.of("softmax", [(1, 8)])
    assert neighbours_of([tanh, add], [(), (0, 0)]) == [("> add", "> add"), ("< softmax", "< softmax")]

    class Doubled(nn.Module):
        def forward(self, inputs):
            made = inputs.softmax(-1)
            return torch.stack([made, made])

    item = trace(Doubled(), torch.zeros(1, 8), "graph").operators[-1]
    assert (item.sources, item.reads) == ((0,), (0, 0))


def test_long_chains_of_activations_are_looked_through():
    length = sys.getrecursionlimit()
    ops = [_op("conv2d"), *[_op("relu")] * length, _op("max_pool2d")]
    found = neighbours_of(ops, [(), *((place,) for place in range(length + 1))])
    assert found == [("> max_pool2d",), *[("< conv2d", "> max_pool2d")] * length, ("< conv2d",)]


def test_ways_to_a_tensor_follow_every_one_that_is_read():
    ops = [_op("conv2d"), _op("max_pool2d"), _op("relu"), _op("relu")]
    found = list(ways_to(3, ops, [(), (), (0, 1, -1), (2, -2, 0)]))
    assert found == [((3, 2, 0), None), ((3, 2, 1), None), ((3, 2), -1), ((3,), -2), ((3, 0), None)]


def test_unused_readers_are_no_neighbours():
    relu, pool = _op("softmax"), _op("max_pool2d")
    graph = Trace((TracedOperator("a", relu), TracedOperator("b", pool, (0,)), TracedOperator("c", pool, (0,))), 3)
    assert graph.neighbours[0] == ("> max_pool2d", "> max_pool2d")
    assert replace(graph, returned=(1,)).without_unused().neighbours[0] == ("> max_pool2d",)


def test_what_operators_read_survives_a_store_and_older_records_lack_it():
    graph = trace(Net(), torch.zeros(1, 8, 4, 4))
    calls = CallMap.of(graph)
    assert CallMap.read(calls.content()) == calls
    assert calls.neighbours == graph.neighbours
    content = calls.content()
    del content["after"]
    assert CallMap.read(content).neighbours is None


@given(beside=COSTS)
def test_costs_beside_neighbours_survive_their_file(beside, tmp_path_factory):
    table = _table((_op("relu"), 1e-4, beside), (_op("tanh"), 2e-4, {}))
    path = tmp_path_factory.mktemp("file") / "t.json"
    table.save(path)
    loaded = LookupTable.load(path)
    assert loaded.operators[0].beside == beside
    assert loaded == table
    assert ("beside" in path.read_text()) == bool(beside)


@pytest.mark.parametrize(
    ("name", "cost"),
    [("conv2d", 1.0), ("<conv2d", 1.0), ("< ", 1.0), ("< a b", 1.0), ("> add", math.nan), ("", math.inf)],
)
def test_invalid_costs_beside_neighbours_are_refused(name, cost):
    with pytest.raises(InvalidValueError, match="beside neighbours must be finite numbers"):
        Entry(1.0, 1.0, 1.0, beside={name: cost})


@pytest.mark.parametrize("metric", ["activation_memory", "throughput"])
def test_only_operators_whose_costs_add_up_have_neighbours(metric):
    with pytest.raises(InvalidValueError, match="has costs beside neighbours, which only operators have"):
        _table((_op("relu"), 1e-4, {"< add": 1e-5}), metric=metric)
    table = LookupTable.from_latencies({"a": ["x"]}, {"a": {"x": 1.0}})
    with pytest.raises(InvalidValueError, match="has costs beside neighbours, which only operators have"):
        table.with_entries(lambda entry: replace(entry, beside={"< add": 1e-5}))


@given(beside=COSTS, factor=st.floats(1e-3, 1e3))
def test_costs_beside_neighbours_scale_with_their_table(beside, factor):
    table = replace(_table((_op("relu"), 1e-2, beside)), calibration=factor)
    for scaled in (scale_table(table, factor), fold_calibration(table)):
        found = scaled.operators[0].beside
        assert found == pytest.approx({name: factor * cost for name, cost in beside.items()})


def test_an_estimate_adds_the_costs_beside_neighbours():
    inputs, net = torch.zeros(1, 8, 4, 4), Net()
    plain = TableEstimator(_net_table()).estimate(net, inputs)
    table = replace(
        _net_table(pool={"": -2e-6, "> conv2d": 3e-6}, add={"< conv2d": -4e-6}, relu={"> conv2d": 5e-6}),
        calibration=1.5,
    )
    estimator = TableEstimator(table)
    more = 1.5 * (-2e-6 + 2 * 3e-6 - 2 * 4e-6 + 5e-6)
    whole = estimator.estimate(net, inputs)
    assert whole.value == pytest.approx(1.5 * plain.value + more, rel=1e-12)
    shares = break_down(estimator, net, inputs).operators
    assert sum(item.estimate.value for item in shares) == pytest.approx(whole.value, rel=1e-12)
    assert shares[0].estimate.value == pytest.approx(1.5 * (1e-5 + 4e-6), rel=1e-12)
    # Where the place is unknown, the mean over all places counts.
    assert estimator.estimate_op(table.operators[0].op).value == 1e-5


def test_what_falls_below_zero_is_taken_from_the_others():
    inputs, net = torch.zeros(1, 8, 4, 4), Net()
    estimator = TableEstimator(_net_table(pool={"> conv2d": -2e-5}))
    shares = break_down(estimator, net, inputs)
    assert shares.total.value == pytest.approx(1.5e-4 - 4e-5, rel=1e-12)
    assert [item.estimate.value > 0 for item in shares.operators] == [False, True, True, True, True]
    assert sum(item.estimate.value for item in shares.operators) == pytest.approx(shares.total.value, rel=1e-12)


def test_an_analysis_counts_the_costs_beside_neighbours():
    estimator = TableEstimator(_net_table(pool={"> conv2d": 3e-5}, add={"< conv2d": -1e-6}))
    analysis = ModelAnalysis(Net(), (8, 4, 4), estimator=estimator)
    assert analysis.latency.value == pytest.approx(1.5e-4 + 6e-5 - 2e-6, rel=1e-12)
    assert sum(block.latency.value for block in analysis.blocks) == pytest.approx(analysis.latency.value, rel=1e-12)
    assert analysis.bottlenecks[0].name == "pool"


class _Unused(Net):
    """Computes what nobody takes: an export and a compiler remove it."""

    def __init__(self):
        super().__init__()
        self.head = nn.Conv2d(8, 16, 1)

    def forward(self, inputs):
        self.head(self.pool(inputs))
        return super().forward(inputs)


def test_an_analysis_leaves_out_what_the_platform_does_not_execute():
    inputs, estimator = torch.zeros(1, 8, 4, 4), TableEstimator(_net_table(pool={"> conv2d": 3e-5}))
    analysis = ModelAnalysis(_Unused(), example_inputs=inputs, estimator=estimator)
    assert analysis.latency.value == estimator.estimate(_Unused(), inputs).value
    assert sum(block.latency.value for block in analysis.blocks) == pytest.approx(analysis.latency.value, rel=1e-12)
    assert "head" not in {block.name for block in analysis.blocks}
    assert "head" in {block.name for block in ModelAnalysis(_Unused(), example_inputs=inputs).blocks}


def test_an_analysis_by_an_ensemble_works_out_the_costs_beside_neighbours_once(monkeypatch):
    tables = _net_table(pool={"> conv2d": 3e-6}), _net_table(add={"< conv2d": -1e-6})
    ensemble = LayerEnsemble(members=list(map(TableEstimator, tables)))
    asked, own = [], LayerEnsemble._mean_beside
    monkeypatch.setattr(LayerEnsemble, "_mean_beside", lambda self, op: asked.append(op) or own(self, op))
    analysis = ModelAnalysis(Net(), (8, 4, 4), estimator=ensemble)
    assert analysis.latency.value == pytest.approx(1.5e-4 + 3e-6 - 1e-6, rel=1e-12)
    assert Counter(asked) == dict.fromkeys(asked, 1)
    ensemble.weights_ = 1.0, 0.0
    ensemble._settle()
    assert ensemble.beside[tables[0].operators[0].op] == {"> conv2d": 3e-6}


def test_fallbacks_and_ensembles_count_the_costs_beside_neighbours():
    inputs, net = torch.zeros(1, 8, 4, 4), Net()
    first, second = _net_table(pool={"> conv2d": 3e-6}), _net_table(add={"< conv2d": -1e-6}, pool={"": 1e-6})
    ensemble = LayerEnsemble(members=[TableEstimator(first), TableEstimator(replace(second, calibration=2.0))])
    whole = (1.5e-4 + 6e-6 + 2 * (1.5e-4 - 2e-6 + 1e-6)) / 2
    assert ensemble.estimate(net, inputs).value == pytest.approx(whole, rel=1e-12)
    pool, add = first.operators[0].op, first.operators[-1].op
    assert ensemble.beside[pool] == pytest.approx({"> conv2d": 1.5e-6, "": 1e-6})
    assert ensemble.beside[add] == pytest.approx({"< conv2d": -1e-6})
    known = replace(first, operators=first.operators[:-1])
    fallback = FallbackEstimator(known, TableEstimator(second), adapt=False)
    assert fallback.estimate(net, inputs).value == pytest.approx(1.5e-4 + 6e-6 - 2e-6, rel=1e-12)


def test_a_member_that_lacks_an_operator_counts_the_costs_beside_neighbours():
    inputs, net = torch.zeros(1, 8, 4, 4), Net()
    whole = _net_table(pool={"> conv2d": 3e-6})
    partial = replace(whole, operators=whole.operators[:-1])
    members = [TableEstimator(table, missing="error") for table in (whole, partial)]
    ensemble = LayerEnsemble(members=members)
    assert ensemble.estimate(net, inputs).value == pytest.approx(1.5e-4 + 6e-6, rel=1e-12)


class _Asked(LayerEstimator):
    """Notes which operators it is asked for."""

    metric = "latency"

    def __init__(self):
        self.platform, self.asked = PLATFORM, []

    def estimate_op(self, op):
        self.asked.append(op)
        return Estimate(1e-5, 1e-5, 1e-5)


def test_a_fallback_asks_the_second_for_nothing_that_the_table_knows():
    inputs, net, second = torch.zeros(1, 8, 4, 4), Net(), _Asked()
    fallback = FallbackEstimator(_net_table(pool={"> conv2d": 3e-6}), second)
    assert fallback.estimate(net, inputs).value == pytest.approx(1.5e-4 + 6e-6, rel=1e-12)
    assert not second.asked


def test_a_network_that_costs_less_than_nothing_costs_nothing():
    op = _op("relu")
    estimator = TableEstimator(_table((op, 1e-5, {"": -2e-5})))
    assert estimator.estimate(nn.ReLU(), torch.zeros(1, 8, 4, 4)).value == 0


def test_an_estimated_table_keeps_the_costs_beside_neighbours():
    from nni_latency.spaces import make_space, operator_plan

    plan = operator_plan(make_space("nasbench201", {"stem_out_channels": 4, "num_modules_per_stack": 1}), n_networks=2)
    ops = list(plan.ops.values())
    table = _table(*((op, 1e-5, {"> conv2d": 1e-6}) for op in ops))
    assert estimate_table(TableEstimator(table), plan).operators[0].beside == {"> conv2d": 1e-6}


def test_tables_tell_of_the_costs_beside_neighbours():
    plain, table = _net_table(), _net_table(pool={"> conv2d": 3e-6})
    found = compare_tables(plain, table).differences
    assert "only the second has costs of operators beside their neighbours" in found
    assert not compare_tables(table, table).differences
    remarks = export_table(table, "csv", unit="s")
    assert any("beside their neighbours is left out" in remark for remark in remarks)
    assert not any("beside" in remark for remark in export_table(plain, "csv", unit="s"))


def test_energy_counts_the_costs_beside_neighbours():
    graph = trace(Net(), torch.zeros(1, 8, 4, 4))
    networks = [MeasuredNetwork(value=1e-4, low=1e-4, high=1e-4, sample={}, entries=1e-4)]
    table = replace(_net_table(pool={"> conv2d": 3e-6}), networks=tuple(networks))
    energy = energy_of_operators(table, [CallMap.of(graph).operators], [2.0], [graph.neighbours])
    assert energy.networks[0].entries == pytest.approx(2 * (1.5e-4 + 6e-6))
    assert energy.operators[0].beside == pytest.approx({"> conv2d": 6e-6})


def _chain(kinds, random):
    """Return the operators of a chain, each with one size of two."""
    ops = [_op(kind, size) for kind, size in zip(kinds, random.choice([8, 16], len(kinds)), strict=True)]
    places = enumerate(ops)
    items = tuple(TracedOperator("", op, (number - 1,) if number else (), number) for number, op in places)
    return Trace(items, len(ops))


def _samples(saving, seed=0, *, recorded=True):
    """Return samples of chains in which a pooling behind a convolution costs less."""
    random, calls, records = np.random.RandomState(seed), {}, []
    for index in range(30):
        graph = _chain(random.choice(["conv2d", "max_pool2d", "batch_norm"], 24), random)
        times = [2e-5 if item.op.kind == "conv2d" else 1e-5 for item in graph.operators]
        for place, (item, names) in enumerate(zip(graph.operators, graph.neighbours, strict=True)):
            if item.op.kind == "max_pool2d" and "< conv2d" in names:
                times[place] -= saving
        calls[str(index)] = NetworkCalls(
            CallMap.of(graph) if recorded else replace(CallMap.of(graph), after=None), CallMap.of(graph)
        )
        for turn in range(3):
            run = np.array(times) * np.exp(0.01 * random.normal(size=len(times)))
            records.append(Record(1e-3, [run.tolist()], {"latency": [float(run.sum())]}, (str(index),), turn))
    protocol = Protocol(n_warmup=0, rounds=3, time_budget=1e9)
    return OperatorSamples(calls, protocol, records)


def test_costs_beside_neighbours_are_recovered():
    samples = _samples(8e-6)
    found = {key: costs for key, costs in samples.beside.items() if "< conv2d" in costs}
    assert {key.partition("(")[0] for key in found} == {"max_pool2d"}
    for costs in found.values():
        others = cost_beside(costs, ["< max_pool2d"])
        assert cost_beside(costs, ["< conv2d"]) - others == pytest.approx(-8e-6, rel=0.1)
    unrecorded = _samples(8e-6, recorded=False)
    assert unrecorded.beside == {}
    assert samples.network_error() < 0.5 * unrecorded.network_error()


def test_times_of_places_do_not_depend_on_neighbours():
    samples, unrecorded = _samples(8e-6), _samples(8e-6, recorded=False)
    assert [samples.places(key) for key in samples.measured] == [unrecorded.places(key) for key in unrecorded.measured]
    assert samples.references == unrecorded.references
    assert "fit" not in vars(samples), "neighbours were fitted for nothing"


@pytest.mark.parametrize("seed", range(4))
def test_neighbours_that_do_not_matter_have_no_costs(seed):
    assert _samples(0.0, seed).beside == {}


def test_places_never_cost_less_than_nothing():
    """Two neighbours save most of the cost each, but together hardly more than one of them."""
    kinds = {(): 1.0, ("> add",): 0.3, ("> cat",): 0.3, ("> add", "> cat"): 0.2}
    networks = []
    for number in range(20):
        names = [(), (), *[("> add",)] * (1 + number % 3), *[("> cat",)] * (1 + number % 4)]
        names += [("> add", "> cat")] * (number == 0)
        costs = np.array([kinds[name] for name in names])
        networks.append(PlacedOperators(np.zeros(len(names), dtype=np.int64), names, costs))
    places = [item for network in networks for item in zip(network.neighbours, network.costs, strict=True)]
    mean = float(np.mean([cost for _, cost in places]))
    totals = [network.costs.sum() for network in networks]
    fit = fit_neighbours(
        networks, np.array([mean]), np.mean(totals), lambda amounts: np.log(totals / amounts.sum(axis=1))
    )
    (beside,) = fit.beside
    least = min(mean + cost_beside(beside, names) for names, _ in places)
    assert least == pytest.approx(0.02 * mean)


def test_networks_with_more_neighbours_than_others_are_predicted_to_cost_something():
    counts = [0, 1, 2] * 5 + [8]
    networks = [
        PlacedOperators(np.zeros(4, dtype=np.int64), [("> add",) * count] * 4, np.full(4, max(0.1, 1 - 0.3 * count)))
        for count in counts
    ]
    seen = []

    def residuals(amounts):
        seen.append(amounts)
        return np.log([network.costs.sum() for network in networks] / amounts.sum(axis=1))

    fit_neighbours(networks, np.array([np.mean([network.costs for network in networks])]), 2.0, residuals)
    assert len(seen) > 1
    assert all((amounts > 0).all() for amounts in seen)
