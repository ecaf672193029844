# SPDX-License-Identifier: Apache-2.0
"""A whole search in the FBNet space, small enough for a test, and measured at its end."""

from __future__ import annotations

import dataclasses
import statistics
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, Subset

from nni_latency.errors import InvalidValueError
from nni_latency.measurement import Protocol, Subject, time_chain
from nni_latency.measurement.runtimes import TorchEager
from nni_latency.nas import FBNet, LatencyProfiler, SearchSettings, load_dataset, run_search
from nni_latency.spaces import FBNetSpace, draw_samples
from nni_latency.tables import build_table

pytestmark = pytest.mark.slow

SETTINGS = SearchSettings(epochs=2, final_epochs=1, batch_size=32, threads=1)


def _space():
    return FBNetSpace(num_classes=10, input_size=32, width=0.25, depth=0.25)


def _range(table):
    return LatencyProfiler(_space(), latency_estimator=table).cost.range


@pytest.fixture(scope="module")
def pictures():
    digits = load_dataset("digits")
    return dataclasses.replace(digits, train=Subset(digits.train, range(64)), valid=Subset(digits.valid, range(64)))


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    out = tmp_path_factory.mktemp("table") / "table.json"
    return build_table(_space().measure_plan(), TorchEager("cpu"), Protocol(rounds=8, processes=1), out)


@pytest.fixture(scope="module")
def found(pictures, table):
    """Search twice, with targets near either end of what can be reached."""
    found = {}
    for name, share in (("tight", 0.15), ("loose", 0.95)):
        torch.manual_seed(0)
        space, epochs, final, batches, last = _space(), [], [], [], []
        low, high = _range(table)
        target = low + share * (high - low)
        strategy = FBNet(table, target=target, arc_learning_rate=0.1)
        result = run_search(
            space, pictures, strategy, SETTINGS, against=draw_samples(_space(), 6),
            on_epoch=epochs.append, on_final_epoch=final.append, on_batch=batches.append, on_final_batch=last.append,
        )  # fmt: skip
        found[name] = SimpleNamespace(
            result=result, target=target, epochs=epochs, final=final, batches=batches, last=last
        )
    return found


def test_search_meets_its_target(found):
    assert found["tight"].result.latency <= found["tight"].target
    assert found["loose"].result.latency <= found["loose"].target


def test_tight_target_finds_a_network_that_measures_faster_than_a_loose_one(found):
    runtime, samples = TorchEager("cpu"), {"tight": [], "loose": []}
    with runtime.session():
        inputs = runtime.inputs((1, 3, 32, 32))
        subjects = {name: Subject.of_module(found[name].result.network, (1, 3, 32, 32)) for name in samples}
        stages = {name: runtime.prepare(subject, inputs) for name, subject in subjects.items()}
        # In turns, so that whatever else the machine does slows down both.
        for _ in range(100):
            for name, stage in stages.items():
                samples[name] += time_chain([stage], inputs, runtime.clock)
    assert statistics.median(samples["tight"]) < statistics.median(samples["loose"])


def test_every_batch_moves_on(found):
    for shares, epochs in ((found["tight"].batches, 2), (found["tight"].last, 1)):
        assert len(shares) > 2 * epochs
        assert shares == sorted(set(shares))
        assert shares[0] < 1 / epochs
        assert shares[-1] == pytest.approx(1)


def test_sample_is_one_that_a_new_space_freezes_and_the_network_can_learn_on(found):
    result = found["tight"].result
    assert list(result.sample) == list(_space().simplify())
    network = _space().freeze(result.sample)
    network.load_state_dict(result.network.state_dict())
    pictures = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(network.eval()(pictures), result.network.eval()(pictures))
    assert all(parameter.requires_grad for parameter in result.network.parameters())


def test_accuracy_is_that_of_the_network_on_the_held_back_pictures(found, pictures):
    result = found["tight"].result
    (inputs, classes), *more = DataLoader(pictures.valid, len(pictures.valid))
    assert not more
    with torch.no_grad():
        guesses = result.network.eval()(inputs).argmax(1)
    assert result.accuracy == pytest.approx(float((guesses == classes).double().mean()))


def test_search_is_compared_with_as_many_other_networks_as_it_is_given(found, table):
    profiler = LatencyProfiler(_space(), latency_estimator=table)
    others = [profiler.profile(sample) for sample in draw_samples(_space(), 6)]
    compared = found["tight"].result.compared
    assert len(compared) == 6
    assert all(list(sample) == list(_space().simplify()) for sample in compared)
    # Each is within a limit of its own, from the cheapest of the others to the costliest.
    costs = [profiler.profile(sample) for sample in compared]
    assert costs == sorted(costs)
    assert max(costs) <= max(others) * (1 + 1e-9)


def test_comparing_a_search_does_not_change_what_it_finds(found, pictures, table):
    torch.manual_seed(0)
    alone = run_search(_space(), pictures, FBNet(table, target=found["tight"].target, arc_learning_rate=0.1), SETTINGS)
    assert alone.compared == ()
    assert (alone.sample, alone.accuracy) == (found["tight"].result.sample, found["tight"].result.accuracy)


def test_history_holds_every_epoch(found):
    run = found["tight"]
    assert [epoch.index for epoch in run.result.history] == [0, 1]
    assert tuple(run.epochs) == run.result.history
    assert run.final == [0]


def test_history_has_loss_accuracy_latency_and_temperature(found, table):
    low, high = _range(table)
    for epoch in found["tight"].result.history:
        assert 0 < epoch.loss < 20
        assert 0 <= epoch.accuracy <= 1
        assert low <= epoch.latency <= high
        assert epoch.duration > 0
    assert [epoch.temperature for epoch in found["tight"].result.history] == pytest.approx([5.0, 4.78], abs=0.01)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"epochs": 0}, r"'epochs' of a search must be an int >= 1\. Got 0"),
        ({"epochs": True}, r"'epochs' of a search must be an int >= 1\. Got True"),
        ({"epochs": 1.5}, r"'epochs' of a search must be an int >= 1\. Got 1\.5"),
        ({"final_epochs": -1}, r"'final_epochs' of a search must be an int >= 0\. Got -1"),
        ({"batch_size": 1}, r"'batch_size' of a search must be an int >= 2\. Got 1"),
        ({"seed": -1}, r"'seed' of a search must be an int >= 0\. Got -1"),
        ({"learning_rate": 0.0}, r"'learning_rate' of a search must be > 0\. Got 0\.0"),
    ],
)
def test_settings_refuse_numbers_out_of_range(options, complaint):
    with pytest.raises(InvalidValueError, match=complaint):
        SearchSettings(**options)
