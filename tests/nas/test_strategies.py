# SPDX-License-Identifier: Apache-2.0
"""Strategies by name: each searches a space of pictures from beginning to end, and those that cannot are refused."""

from __future__ import annotations

import dataclasses
import functools
import json

import pytest
import torch
from test_profiler import ByMacs
from torch.utils.data import TensorDataset

from nni_latency.errors import InvalidValueError, UnknownNameError, UnreachableTargetError
from nni_latency.estimators import Estimate
from nni_latency.imports import quiet_nni
from nni_latency.nas import (
    STRATEGIES,
    Dataset,
    LatencyProfiler,
    SearchAim,
    SearchSettings,
    check_images,
    check_strategy,
    freeze_trained,
    is_one_shot,
    make_strategy,
    run_search,
    run_trials,
)
from nni_latency.spaces import draw_samples, hub_space, network_of

with quiet_nni():
    import nni
    from nni.nas.nn.pytorch import LayerChoice, ModelSpace, MutableBatchNorm2d, MutableConv2d, Repeat
    from nni.nas.strategy import DARTS
    from nni.nas.strategy import RandomOneShot as NniRandomOneShot

SETTINGS = SearchSettings(epochs=1, final_epochs=1, batch_size=8)
INPUTS = torch.zeros(1, 3, 8, 8)


class Layers(ModelSpace):
    """Choices of layers and a depth, which every one-shot strategy of NNI takes."""

    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.body = Repeat(
            lambda index: LayerChoice(
                {"wide": torch.nn.Conv2d(8, 8, 3, padding=1), "thin": torch.nn.Conv2d(8, 8, 1)}, label=f"kind{index}"
            ),
            (1, 3),
            label="depth",
        )
        self.head = torch.nn.Linear(8, 2)

    def forward(self, inputs):
        return self.head(self.body(self.stem(inputs)).mean((2, 3)))


class Flat(ByMacs):
    """A microsecond for every operator, whatever it is."""

    def estimate_op(self, op):
        return Estimate(1e-6, 1e-6, 1e-6)


class Values(ModelSpace):
    """Arguments of a convolution without a bias, as those of NNI's hub have none."""

    def __init__(self):
        super().__init__()
        width, kernel = nni.choice("width", [4, 8]), nni.choice("kernel", [1, 3])
        self.stem = MutableConv2d(3, width, kernel, padding=kernel // 2, bias=False)
        self.norm = MutableBatchNorm2d(width)
        self.act = LayerChoice({"relu": torch.nn.ReLU(), "tanh": torch.nn.Tanh()}, label="act")
        self.last = MutableConv2d(width, 2, 1)

    def forward(self, inputs):
        return self.last(self.act(self.norm(self.stem(inputs)))).mean((2, 3))


@pytest.fixture(scope="module")
def pictures():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(60, 3, 8, 8, generator=generator)
    classes = (inputs.mean((1, 2, 3)) > 0).long()
    sets = [TensorDataset(inputs[part], classes[part]) for part in (slice(0, 45), slice(45, 60))]
    return Dataset("made up", *sets, num_classes=2, input_size=8)


def _aim(space, share=0.5, **options):
    profiler = LatencyProfiler(space, INPUTS, latency_estimator=ByMacs())
    low, high = profiler.cost.range
    return SearchAim(profiler, low + share * (high - low), **options)


def _search(name, pictures, kind=Layers, **options):
    torch.manual_seed(0)
    space = kind()
    aim = _aim(space, trials=3, **options)
    strategy = make_strategy(name, aim)
    if is_one_shot(name):
        found = run_search(space, pictures, strategy, SETTINGS, profiler=aim.profiler, limit=aim.limit)
    else:
        found = run_trials(space, pictures, strategy, SETTINGS, profiler=aim.profiler, trials=aim.trials)
    return found, aim


@pytest.fixture(scope="module")
def searched(pictures):
    """Search with a strategy, once for all tests; return what was found and the aim."""
    return functools.cache(lambda name: _search(name, pictures))


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_finds_a_network_that_keeps_the_limit(name, searched):
    found, aim = searched(name)
    assert found.latency == pytest.approx(ByMacs().estimate(network_of(Layers(), found.sample)(), INPUTS).value)
    assert found.latency <= aim.limit
    assert 0 <= found.accuracy <= 1
    assert found.history
    json.dumps([found.sample, *map(dataclasses.asdict, found.history)])


@pytest.mark.parametrize("name", ["gumbel-darts", "enas", "random"])
def test_same_seed_finds_the_same_network(name, searched, pictures):
    first, second = searched(name)[0], _search(name, pictures)[0]
    assert first.sample == second.sample
    assert first.accuracy == second.accuracy
    inputs = torch.ones(2, 3, 8, 8)
    assert torch.equal(first.network.eval()(inputs), second.network.eval()(inputs))


def test_every_trial_keeps_the_limit_and_the_best_goes_on(searched):
    found, aim = searched("random")
    assert [trial.index for trial in found.history] == [0, 1, 2]
    assert all(trial.latency <= aim.limit for trial in found.history)
    assert found.sample == max(found.history, key=lambda trial: trial.accuracy).sample


def test_another_seed_tries_other_networks(searched, pictures):
    first, second = searched("random")[0], _search("random", pictures, seed=1)[0]
    assert [trial.sample for trial in first.history] != [trial.sample for trial in second.history]


def test_every_batch_of_a_trial_moves_on(pictures):
    aim, shares, last = _aim(Layers()), [], []
    how = {"profiler": aim.profiler, "trials": 3, "on_batch": shares.append, "on_final_batch": last.append}
    run_trials(Layers(), pictures, make_strategy("random", aim), SETTINGS, **how)
    for found, least in ((shares, 6), (last, 2)):
        assert len(found) >= least
        assert found == sorted(set(found))
        assert found[-1] == pytest.approx(1)


def test_error_of_a_trial_ends_the_search(pictures):
    aim = _aim(Layers())
    narrow = dataclasses.replace(pictures, train=TensorDataset(torch.zeros(20, 5, 8, 8), torch.zeros(20).long()))
    with pytest.raises(RuntimeError, match="to have 3 channels"):
        run_trials(Layers(), narrow, make_strategy("random", aim), SETTINGS, profiler=aim.profiler, trials=3)


def test_interrupt_of_a_trial_ends_the_search_at_once(pictures, capfd):
    def interrupt(trial):
        raise KeyboardInterrupt

    aim = _aim(Layers())
    with pytest.raises(KeyboardInterrupt):
        run_trials(
            Layers(),
            pictures,
            make_strategy("random", aim),
            SETTINGS,
            profiler=aim.profiler,
            trials=3,
            on_trial=interrupt,
        )
    assert capfd.readouterr() == ("", "")


def test_unknown_strategy_lists_those_that_there_are():
    with pytest.raises(UnknownNameError, match=r"Unknown strategy 'luck'\. Available: fbnet, darts"):
        make_strategy("luck", _aim(Layers()))


@pytest.mark.parametrize("name", STRATEGIES)
def test_limit_that_no_network_keeps_is_refused(name, pictures):
    with pytest.raises(UnreachableTargetError, match=r"No network of the space"):
        _search(name, pictures, share=-0.01)


def test_search_without_fbnet_needs_the_profiler(pictures):
    with pytest.raises(InvalidValueError, match=r"A search with ENAS needs the 'profiler' of its space"):
        run_search(Layers(), pictures, make_strategy("enas", _aim(Layers())), SETTINGS)


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategy_that_can_search_is_not_complained_about(name):
    cost, state = _aim(Layers()).profiler.cost, torch.get_rng_state()
    check_strategy(name, cost, Layers, torch.zeros(2, 3, 8, 8))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "space", "arguments", "complaint"),
    [
        ("fbnet", "nasbench101", {"num_stacks": 1, "num_modules_per_stack": 1}, "NNI can make no supernet for it"),
        ("enas", "nasbench101", {"num_stacks": 1, "num_modules_per_stack": 1}, "ENAS chooses among values"),
        ("fbnet", "darts", {"width": 4, "num_cells": 3}, "What it learns is not the probability of a choice"),
        ("gumbel-darts", "enas", {"width": 4, "num_cells": 3}, "too many for an expected cost"),
        ("proxyless", "autoformer", {"search_depth": (2, 3), "img_size": 32}, "NNI can make no supernet for it"),
    ],
)
def test_strategy_that_can_not_search_is_refused(name, space, arguments, complaint):
    def make():
        return hub_space(space, **arguments)

    cost = LatencyProfiler(make(), torch.zeros(1, 3, 32, 32), latency_estimator=Flat()).cost
    with pytest.raises(InvalidValueError, match=complaint):
        check_strategy(name, cost, make, torch.zeros(2, 3, 32, 32))


def test_network_that_does_not_take_the_pictures_is_refused():
    with pytest.raises(
        InvalidValueError, match=r"Layers do not take the data set's images, 5x8x8: .* \(RuntimeError\)"
    ):
        check_images(Layers(), torch.zeros(2, 5, 8, 8), 2)


def test_network_may_return_more_than_there_are_classes():
    assert check_images(Layers(), torch.zeros(2, 3, 8, 8), 1) == 2


def test_network_with_too_few_classes_is_refused():
    complaint = r"for each of the data set's 3 classes and each image\. Got a tensor of shape \(2, 2\) for 2 images"
    with pytest.raises(InvalidValueError, match=complaint):
        check_images(Layers(), torch.zeros(2, 3, 8, 8), 3)


@pytest.mark.parametrize("kind", [DARTS, NniRandomOneShot])
def test_frozen_network_has_the_weights_of_the_supernet(kind):
    space = Values()
    kind().mutate_model(space)
    for sample in draw_samples(Values(), 4):
        network = freeze_trained(space, sample)
        made = network_of(Values(), sample)()
        made.load_state_dict(network.state_dict(), strict=True)
        kernel = network.stem.weight
        whole = space.stem.weight
        middle = slice(None) if sample["kernel"] == 3 else slice(1, 2)
        assert torch.equal(kernel, whole[: sample["width"], :, middle, middle])
        assert torch.equal(network.norm.weight, space.norm.weight[: sample["width"]])


def test_weights_have_the_names_of_the_space_s_own_network():
    """A supernet of MobileNetV3 holds places that a network without squeeze-and-excitation lacks."""
    arguments = {"base_widths": (8,) * 9, "width_multipliers": (1.0,), "expand_ratios": (1.0,), "depth_range": (1, 2)}
    space = hub_space("mobilenetv3", **arguments)
    sample = next(item for item in draw_samples(space, 9) if "identity" in item.values())
    own = network_of(space, sample)()
    NniRandomOneShot().mutate_model(space)
    network = freeze_trained(space, sample)
    assert list(network.state_dict()) == list(own.state_dict())
    inputs = torch.randn(2, 3, 32, 32)
    for module in space.modules():
        if hasattr(module, "resample"):
            module.resample(memo=sample)
    assert torch.allclose(network.eval()(inputs), space.eval()(inputs), atol=1e-5)
