# SPDX-License-Identifier: Apache-2.0
"""How graph networks learn, what platforms count, and calls side by side."""

from __future__ import annotations

import gc
import sys
import time
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from joblib import delayed
from measured_graphs import measured, network

from nni_latency.graphs._encoding import GROUPS, TERMS, EncodedGraph, encode_graph
from nni_latency.graphs._examples import Examples, Measurements
from nni_latency.graphs._graph_learning import Fitting, Settings, learn, networks_off, platform_weights
from nni_latency.graphs._graph_transfer import most_telling
from nni_latency.graphs._rates import fit_rates, group_totals
from nni_latency.graphs._side_by_side import side_by_side
from nni_latency.operators import OpSpec, chained


def test_a_run_takes_no_longer_than_the_shortest_network(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without a prior, learning begins with 10 us.
    monkeypatch.setattr("nni_latency.graphs._graph_learning.prior_of", lambda examples: {})
    graphs = [encode_graph(network([width])) for width in (8, 16)]
    examples = Examples(graphs, np.array([[5e-6, np.nan], [2e-5, 1e-3]]), [(), ()])
    runs = learn(examples, Settings(hidden=4, epochs=1)).network.runs.exp()
    assert runs.tolist() == pytest.approx([5e-6, 1e-5], rel=0.01)


def test_rates_of_uneven_times_are_not_those_of_the_shortest() -> None:
    """Errors relative to the measured times alone would make 1.2 ms of one and four: long ones count for less."""
    graphs = 20 * [encode_graph(network([64]))]
    examples = Examples(graphs, np.array(10 * [[1e-3], [4e-3]]), 20 * [()])
    rates, run = fit_rates(examples, 0)
    expected = group_totals(graphs[:1]) @ rates.ravel() + run
    assert expected == pytest.approx(1.6e-3, rel=0.05)


def test_rates_of_unknown_operators_are_those_of_a_related_group() -> None:
    """Where no softmax across rows was measured, it costs as much as one along rows, not as operators in general."""
    graphs = [encode_graph(chained([OpSpec.of("softmax", [(1, rows, 64)], dim=2)])) for rows in range(100, 120)]
    graphs += [encode_graph(network([width])) for width in range(8, 28)]
    seconds = [1e-5 * len(graph) * (10 if number < 20 else 1) for number, graph in enumerate(graphs)]
    rates, _ = fit_rates(Examples(graphs, np.array(seconds)[:, None], 40 * [()]), 0)
    along, across = (rates[GROUPS.index(name)] for name in ("softmax", "softmax across rows"))
    assert across == pytest.approx(along, rel=1e-6)
    assert across.max() > 3 * rates[GROUPS.index("branch")].max()


def test_a_picture_that_is_laid_out_anew_costs_as_much_whatever_wrote_it() -> None:
    """One group of which few such pictures were measured would take as much as fits these."""

    def pictures(channels: int, kind: str) -> EncodedGraph:
        conv = OpSpec.of("conv2d", [(1, 8, 32, 32)], out_channels=channels, kernel_size=1, stride=1)
        rows = OpSpec.of("linear", [(1, channels * 1024)], out_features=4)
        return encode_graph(chained([conv, OpSpec.of(kind, [(1, channels, 32, 32)]), rows]))

    graphs = [*(pictures(channels, "relu") for channels in range(16, 64)), pictures(32, "selu")]
    names = [GROUPS.index(name) for name in ("activation of a product", "scalar function of a product")]
    seconds = np.array([graph.terms.sum() for graph in graphs])
    # Something else takes a millisecond more.
    seconds[-1] += 1e-3
    rates, _ = fit_rates(Examples(graphs, seconds[:, None], len(graphs) * [()]), 0)
    known, other = (rates[name, TERMS.index("crowded")] for name in names)
    assert known == pytest.approx(other, rel=0.2)


def test_platforms_count_as_the_root_of_their_numbers_of_networks() -> None:
    """A platform with a quarter of the networks has half as much of the loss as one with all of them."""
    measured = torch.full((8, 2), 1e-3)
    measured[2:, 1] = torch.nan
    weights = platform_weights(measured.double().numpy())
    first, second = measured.clone(), measured.clone()
    first[:, 0] *= 1.5
    second[:, 1] *= 1.5
    losses = [float(networks_off(predicted, measured, weights)) for predicted in (first, second)]
    assert losses[0] == pytest.approx(2 * losses[1])
    assert losses[1] > 0


def test_held_out_networks_are_predicted_by_as_many_graph_networks_as_answer() -> None:
    data, settings = Measurements.of(measured(2)), Settings(hidden=4, epochs=1)
    steps: list[int] = []
    found = Fitting(settings, 1, lambda count=1: steps.append(count)).hold_out(data, 2, 3, 0)
    assert len(steps) == 6
    alone = [Fitting(settings, 1, lambda count=1: None).hold_out(data, 2, 1, 0).errors for _ in range(2)]
    assert np.array_equal(*alone)
    held = data.folds(2, 0)[0]
    members = [
        learn(data.examples.without(held), replace(settings, seed=100 + number), data.examples.only(held).graphs)
        for number in range(3)
    ]
    logarithms = np.mean([np.log(item.predictions) for item in members], axis=0)
    assert found.errors[held] == pytest.approx(logarithms - np.log(data.examples.latencies[held]))


def _hold(number: int) -> int:
    """Hold 400 MB more in this process, for longer than joblib waits until it looks."""
    sys.kept = [*getattr(sys, "kept", []), np.ones(50_000_000)]  # type: ignore[attr-defined]
    time.sleep(1.1)
    return number


@pytest.mark.slow
def test_a_process_that_grows_is_replaced_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(side_by_side([delayed(_hold)(number) for number in range(6)], 2)) == list(range(6))


def test_no_calls_are_answered_without_a_warning() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert list(side_by_side([], 2)) == []
        gc.collect()
    assert not told


def test_errors_of_calls_side_by_side_are_told() -> None:
    with pytest.raises(ZeroDivisionError):
        list(side_by_side([delayed(divmod)(1, number) for number in (1, 0, 2)], 2))


def test_networks_that_tell_the_most_are_usual_ones() -> None:
    """Forty networks along one line, and one that is far off any: it says nothing of the others."""
    directions = np.array([[1.0 + 0.01 * number, 0.0] for number in range(40)] + [[0.0, 3.0]])
    assert most_telling(directions, 1)[0] < 40
    assert 40 in most_telling(directions, 4)
    assert sorted(most_telling(directions, 100)) == list(range(41))
