# SPDX-License-Identifier: Apache-2.0
"""The strategy `FBNet` in NNI experiments."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytorch_lightning import Callback
from toys import (
    FASTEST,
    LATENCIES,
    SCORES,
    Fixed,
    Shared,
    Toy,
    evaluator_for,
    expected_latency,
    latency_of,
    module_of,
    profiler_of,
    reversed_latencies,
    search,
    seeded,
    table_of,
    with_scores,
)

from nni_latency.errors import InvalidValueError, MismatchError, UnknownNameError, UnreachableTargetError
from nni_latency.nas import FBNet, architecture_parameters


class Watch(Callback):
    """Note the masks of the forward passes, what the penalty made of them, and the parameters after every epoch."""

    def __init__(self):
        self.masks = []
        self.steps = []
        self.temperatures = []
        self.alphas = []

    def on_train_start(self, trainer, pl_module):
        self.alphas.append(self._copy(pl_module))
        pl_module.mask.register_forward_hook(lambda module, args, mask: self.masks.append(mask.detach().clone()))
        pl_module.penalty.register_forward_hook(self._note)

    def _note(self, module, args, result):
        self.steps.append((len(self.masks), float(result[1]["penalty"])))

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if batch_idx == 0:
            self.temperatures.append(pl_module.mask.tau)

    def on_train_epoch_end(self, trainer, pl_module):
        self.alphas.append(self._copy(pl_module))

    def _copy(self, pl_module):
        return {label: alpha.detach().clone() for label, alpha in architecture_parameters(pl_module.model)}


def _equal(one, other):
    return all(torch.equal(one[label], other[label]) for label in one)


def _likeliest(strategy):
    return {label: max(row, key=row.__getitem__) for label, row in strategy.oneshot_module.export_probs().items()}


@pytest.fixture(scope="module")
def still():
    """Run a search whose parameters stand still, so that masks differ by their noise alone."""
    space, watch = seeded(Toy), Watch()
    strategy = FBNet(table_of(space), arc_learning_rate=0.0, warmup_epochs=0)
    search(space, strategy, epochs=2, callbacks=[watch])
    return watch


def test_penalty_sees_the_mask_of_the_forward_pass(still):
    assert len(still.steps) == 8
    for n_masks, penalty in still.steps:
        by_hand = sum(
            float(mask @ torch.tensor(list(row.values())))
            for mask, row in zip(still.masks[n_masks - 3 : n_masks], LATENCIES.values(), strict=True)
        )
        assert penalty == pytest.approx(by_hand, rel=1e-5)


def test_mask_differs_from_step_to_step(still):
    drawn = [tuple(still.masks[n : n + 3][0].tolist()) for n in range(0, len(still.masks), 3)]
    # Two forward passes a batch: one for the architecture, one for the weights.
    assert len(drawn) == 16
    assert len(set(drawn)) == 16


def test_layers_of_one_label_share_the_mask():
    space, watch = seeded(Shared), Watch()
    latencies = {"both": {"x": 1e-3, "y": 2e-3}}
    search(space, FBNet(table_of(space, latencies), warmup_epochs=0), epochs=1, callbacks=[watch])
    for n_masks, penalty in watch.steps:
        first, second = watch.masks[n_masks - 2 : n_masks]
        assert torch.equal(first, second)
        assert penalty == pytest.approx(float(first @ torch.tensor([1e-3, 2e-3])), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "first", "decay"), [({}, 5.0, 0.045), ({"temperature": 2.0, "temperature_decay": 0.5}, 2.0, 0.5)]
)
def test_temperature_falls_as_in_the_paper_or_as_asked(options, first, decay):
    space, watch = seeded(Toy), Watch()
    search(space, FBNet(table_of(space), **options), epochs=4, callbacks=[watch])
    assert watch.temperatures == pytest.approx([first * math.exp(-decay * epoch) for epoch in range(4)])


def test_first_epochs_train_weights_only():
    space, watch = seeded(Toy), Watch()
    search(space, FBNet(table_of(space), warmup_epochs=2), epochs=3, callbacks=[watch])
    before, first, second, third = watch.alphas
    assert _equal(before, first)
    assert _equal(first, second)
    assert not _equal(second, third)


def test_weights_learn_in_the_first_epochs():
    space = seeded(Toy)
    before = [parameter.detach().clone() for parameter in space.parameters()]
    search(space, FBNet(table_of(space), warmup_epochs=1), epochs=1)
    after = [parameter for name, parameter in space.named_parameters() if "_arch_alpha" not in name]
    assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_search_warms_up_for_a_ninth_of_its_epochs():
    space, watch = seeded(Toy), Watch()
    search(space, FBNet(table_of(space)), epochs=3, callbacks=[watch])
    before, first, second, _ = watch.alphas
    assert _equal(before, first)
    assert not _equal(first, second)


@pytest.mark.parametrize(
    ("latencies", "fastest"),
    [(LATENCIES, FASTEST), (reversed_latencies(), {"a": "y", "b": "y", "c": "x"})],
    ids=["as they are", "reversed"],
)
@pytest.mark.parametrize("options", [{"beta": 50.0}, {"weight": 1e4}], ids=["beta", "weight"])
def test_overwhelming_paper_loss_ends_at_the_fastest_candidates(latencies, fastest, options):
    space = seeded(Toy)
    strategy = FBNet(table_of(space, latencies), arc_learning_rate=0.1, **options)
    assert search(space, strategy, epochs=5) == fastest


def test_overwhelming_weight_with_a_tight_target_ends_at_the_fastest_candidates():
    space = seeded(Toy)
    strategy = FBNet(table_of(space), target=3.01e-3, weight=1e4, arc_learning_rate=0.1)
    assert search(space, strategy, epochs=8) == FASTEST
    # Only one network meets the target; so look at the parameters, too, and not at the export alone.
    assert _likeliest(strategy) == FASTEST


def test_expected_latency_follows_the_target():
    """The multiplier drives the probabilities, not the export alone, to where the target is."""
    expected = []
    for target in (3.3e-3, 8.9e-3):
        space = seeded(Toy)
        strategy = FBNet(table_of(space), target=target, arc_learning_rate=0.1, weight=10.0)
        search(space, strategy, epochs=12)
        expected.append(expected_latency(strategy.oneshot_module.export_probs()))
    assert expected[0] < 4.2e-3 < 5e-3 < expected[1]


@pytest.mark.filterwarnings("ignore:The target excludes no network")
@pytest.mark.parametrize("target", [None, 16e-3], ids=["no target", "target"])
def test_latencies_without_weight_change_nothing(target):
    found = []
    for latencies in (LATENCIES, reversed_latencies()):
        space, watch = seeded(Toy), Watch()
        strategy = FBNet(table_of(space, latencies), target=target, weight=0.0, arc_learning_rate=0.1)
        found.append((search(space, strategy, callbacks=[watch]), watch.alphas[-1]))
    assert found[0][0] == found[1][0]
    assert _equal(found[0][1], found[1][1])


def test_latencies_with_weight_change_something():
    found = []
    for latencies in (LATENCIES, reversed_latencies()):
        space, watch = seeded(Toy), Watch()
        search(space, FBNet(table_of(space, latencies), arc_learning_rate=0.1), callbacks=[watch])
        found.append(watch.alphas[-1])
    assert not _equal(*found)


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    space = seeded(Toy)
    return module_of(space, FBNet(table_of(space), target=9e-3), tmp_path_factory.mktemp("trainer"))


@given(st.floats(3e-3, 1e-2), SCORES)
def test_export_never_exceeds_the_target(module, target, scores):
    assert latency_of(with_scores(module, target, scores).export()) <= target * (1 + 1e-12)


@given(SCORES)
def test_export_of_an_easy_target_costs_what_is_expected_at_least(module, scores):
    """No network far below both the target and the expected cost is exported, where there is one in between."""
    made = with_scores(module, 9.1e-3, scores)
    assert latency_of(made.export()) >= 0.95 * expected_latency(made.export_probs()) - 1e-12


@pytest.mark.parametrize(
    ("target", "last", "found"), [(9.1e-3, [5.0, 0.0, 0.0, 0.0], "x"), (8e-3, [5.0, 0.0, 4.0, 0.0], "z")]
)
def test_export_takes_the_most_probable_network_that_fits(module, target, last, found):
    scores = ([0.0, 5.0, 0.0], [0.0, 5.0], last)
    assert with_scores(module, target, scores).export() == {"a": "y", "b": "y", "c": found}


def test_probabilities_are_those_of_the_parameters_without_noise(module, monkeypatch):
    made = with_scores(module, 9e-3, ([0.0, 1.0, 2.0], [0.0, 0.0], [0.0] * 4))
    with monkeypatch.context() as patch:
        # What a step exports for the penalty, which does not read it, never leaves the device.
        patch.setattr(torch.Tensor, "tolist", lambda tensor: pytest.fail("a value was fetched"))
        found = made.export_probs()
        made.penalty(torch.tensor(1.0), found)
    assert {label: list(row) for label, row in found.items()} == {label: list(row) for label, row in LATENCIES.items()}
    assert list(found["a"].values()) == pytest.approx(torch.softmax(torch.arange(3.0), -1).tolist())


def test_search_finds_a_network_within_the_target():
    space = seeded(Toy)
    sample = search(space, FBNet(table_of(space), target=4.5e-3, arc_learning_rate=0.1))
    assert latency_of(sample) <= 4.5e-3


def test_target_out_of_reach_stops_the_search_before_it_begins():
    space, watch = seeded(Toy), Watch()
    with pytest.raises(UnreachableTargetError, match=r"latency of 1\.00 ms\. Reachable is 3\.00 ms to 9\.00 ms"):
        search(space, FBNet(table_of(space), target=1e-3), callbacks=[watch])
    assert watch.alphas == []


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"weight": -1.0}, r"'weight' of FBNet must be a number >= 0"),
        *(
            ({"target": target}, r"The 'target' must be a positive, finite number\. Got")
            for target in (0.0, -1e-3, math.nan, math.inf)
        ),
        *(
            ({"temperature": temperature}, r"'temperature' of FBNet must be a number > 0\. Got")
            for temperature in (0.0, -1.0, math.nan)
        ),
        ({"penalty": None}, r"FBNet has its own loss and takes no 'penalty'"),
    ],
)
def test_search_refuses_options_out_of_range(options, complaint):
    space = seeded(Toy)
    with pytest.raises(InvalidValueError, match=complaint):
        search(space, FBNet(table_of(space), **options))


@pytest.mark.parametrize(
    ("kind", "estimator", "error", "complaint"),
    [
        (Shared, table_of(Toy()), MismatchError, r"another space than asked: toys:Toy\(\) against toys:Shared\(\)"),
        (Fixed, table_of(Toy()), InvalidValueError, r"has no choices: there is nothing to search"),
        (Toy, "crystal-ball", UnknownNameError, r"Unknown estimator 'crystal-ball'\. Available:"),
    ],
    ids=["table", "space", "estimator"],
)
def test_strategy_refuses_what_does_not_fit_together(kind, estimator, error, complaint):
    with pytest.raises(error, match=complaint):
        search(seeded(kind), FBNet(estimator))


def test_strategy_must_mutate_the_space_first(tmp_path):
    with pytest.raises(InvalidValueError, match=r"must mutate the model space before"):
        FBNet("table.json").configure_oneshot_module(evaluator_for(1, tmp_path).module)


def test_strategy_keeps_the_profiler_of_the_space():
    space = seeded(Toy)
    strategy = FBNet(table_of(space))
    search(space, strategy, epochs=1)
    assert strategy.profiler.profile(FASTEST) == pytest.approx(profiler_of(Toy()).profile(FASTEST))
