# SPDX-License-Identifier: Apache-2.0
"""The FBNet space: its shapes, its published networks, and that a table describes what a frozen network runs."""

from __future__ import annotations

import csv
import itertools
import random
from pathlib import Path

import pytest
import torch

from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.operators import Features, capture_operators, features_of
from nni_latency.spaces import (
    CANDIDATES,
    PUBLISHED_NETWORKS,
    FBNetSpace,
    parse_candidate,
    scale_channels,
)

_SHARED = Path(__file__).parents[3] / "shared" / "data" / "help-fbnet"

#: Multiply-adds and parameters of the release page, in millions.
_PUBLISHED = {
    "fbnet-a": (249.4, 4.3),
    "fbnet-b": (295.6, 4.8),
    "fbnet-b1": (286.8, 4.1),
    "fbnet-c": (383.0, 5.5),
    "fbnet-c1": (374.2, 4.9),
}


@pytest.fixture(scope="module")
def full():
    return FBNetSpace()


@pytest.fixture(scope="module")
def tiny():
    return FBNetSpace(num_classes=4, input_size=16, width=0.5, depth=0.25)


def _selection(plan, choices, head=None):
    """Name the candidate of every layer of a plan."""
    left = iter(choices)
    names = [layer.default if not layer.searched else next(left) for layer in plan.layers]
    return names if head is None else [*names[:-1], str(head)]


def _features(plan, names):
    ops = [layer.candidates[name].op for layer, name in zip(plan.layers, names, strict=True)]
    return sum(map(features_of, ops), Features())


def _random_samples(space, count, seed=0):
    generator = random.Random(seed)
    labels = space.simplify()
    return [{label: generator.choice(CANDIDATES) for label in labels} for _ in range(count)]


def test_space_and_plan_have_22_labels_with_nine_candidates_in_order(full):
    assert CANDIDATES == ("k3_e1", "k3_e1_g2", "k3_e3", "k3_e6", "k5_e1", "k5_e1_g2", "k5_e3", "k5_e6", "skip")
    labels = [(f"layer{index}", CANDIDATES) for index in range(22)]
    assert [(label, tuple(mutable.values)) for label, mutable in full.simplify().items()] == labels
    assert [(layer.name, tuple(layer.candidates)) for layer in full.measure_plan().searched] == labels


@pytest.mark.parametrize("name", PUBLISHED_NETWORKS)
def test_published_network_has_the_published_multiply_adds_and_parameters(full, name):
    network = PUBLISHED_NETWORKS[name]
    plan = full.measure_plan()
    features = _features(plan, _selection(plan, network.choices, network.head_channels))
    macs, params = _PUBLISHED[name]
    assert features.macs / 1e6 == pytest.approx(macs, rel=0.01)
    assert features.params / 1e6 == pytest.approx(params, rel=0.02)


def test_published_parameters_are_those_of_the_real_network(full):
    network = PUBLISHED_NETWORKS["fbnet-a"]
    plan = full.measure_plan()
    names = _selection(plan, network.choices, network.head_channels)
    built = [layer.candidates[name].build() for layer, name in zip(plan.layers, names, strict=True)]
    real = sum(parameter.numel() for module in built for parameter in module.parameters())
    assert real == _features(plan, names).params


def test_every_candidate_of_a_plan_runs_and_fits_the_next_layer(tiny):
    """What a plan builds computes the shapes that its operators claim, for every candidate of every layer."""
    plan = tiny.measure_plan(batch_size=2)
    for before, after in itertools.pairwise(plan.layers):
        shape = next(iter(before.candidates.values())).op.input_shapes[0]
        wanted = next(iter(after.candidates.values())).op.input_shapes[0]
        for candidate in before.candidates.values():
            with torch.inference_mode():
                outputs = candidate.build().to("meta").eval()(torch.empty(shape, device="meta"))
            assert tuple(outputs.shape) == wanted


def test_plan_describes_what_it_builds(tiny):
    for layer in tiny.measure_plan().layers:
        for candidate in layer.candidates.values():
            inputs = torch.empty(candidate.op.input_shapes[0], device="meta")
            assert capture_operators(candidate.build(), inputs) == [("", candidate.op)]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_frozen_network_runs_the_operators_of_the_plan(full, number):
    sample = _random_samples(full, 3)[number]
    plan = full.measure_plan()
    captured = [op for _, op in capture_operators(full.freeze(sample), full.example_inputs())]
    names = _selection(plan, sample.values())
    assert captured == [layer.candidates[name].op for layer, name in zip(plan.layers, names, strict=True)]


@pytest.mark.parametrize("sample", [dict.fromkeys((f"layer{n}" for n in range(7)), name) for name in CANDIDATES])
def test_frozen_network_gives_logits(tiny, sample):
    with torch.inference_mode():
        assert tiny.freeze(sample).eval()(tiny.example_inputs(3)).shape == (3, 4)


def test_frozen_network_trains(tiny):
    model = tiny.freeze(dict.fromkeys(tiny.simplify(), "k3_e1_g2"))
    model(torch.randn(2, 3, 16, 16)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_imagenet_preset_has_the_strides_of_the_paper(full):
    plan = full.measure_plan()
    sizes = [layer.candidates["k3_e1"].op.input_shapes[0][2] for layer in plan.searched]
    assert sizes == [112] * 2 + [56] * 4 + [28] * 4 + [14] * 8 + [7] * 4
    assert plan.input_shape == (1, 3, 224, 224)


def test_cifar_preset_has_the_strides_of_the_public_measurements():
    """Stem stride 1, stages 1, 1, 2, 2, 1, 2, 1, head of 1504 channels, as the 5,000 public networks have."""
    geometry = FBNetSpace(input_size=32).geometry
    firsts = [layer for layer in geometry.layers if layer.stride == 2 or layer.in_channels != layer.out_channels]
    assert (geometry.preset, geometry.num_classes, geometry.head_channels) == ("cifar", 100, 1504)
    assert [layer.input_size for layer in geometry.layers] == [32] * 6 + [16] * 4 + [8] * 8 + [4] * 4
    assert [layer.stride for layer in firsts] == [1, 2, 2, 1, 2, 1]


def test_cifar10_preset_has_the_strides_of_the_public_table_of_a_raspberry_pi():
    """Stem stride 1, stages 1, 2, 2, 1, 1, 1, 1: blocks of 184 channels see images of 8 pixels."""
    geometry = FBNetSpace(preset="cifar10").geometry
    assert (geometry.input_size, geometry.num_classes) == (32, 10)
    assert [layer.input_size for layer in geometry.layers] == [32] * 2 + [16] * 4 + [8] * 16


def test_public_architectures_are_networks_of_the_cifar_space():
    files = sorted(_SHARED.glob("*.csv"))
    if not files:
        pytest.skip("the public measurements are not on this machine")
    with next(path for path in files if "layer0" in path.read_text()[:2000]).open() as file:
        rows = list(itertools.islice(csv.DictReader(file), 200))
    names = [layer.name for layer in FBNetSpace(input_size=32).measure_plan().searched]
    assert [name for name in rows[0] if name.startswith("layer")] == names
    assert {int(row[name]) for row in rows for name in names} == set(range(9))


@pytest.mark.parametrize(
    ("size", "preset"), [(None, "imagenet"), (224, "imagenet"), (65, "imagenet"), (64, "cifar"), (16, "cifar")]
)
def test_preset_follows_the_input_size(size, preset):
    assert FBNetSpace(input_size=size, depth=0.25).geometry.preset == preset


def test_preset_may_be_chosen():
    geometry = FBNetSpace(input_size=64, preset="imagenet", depth=0.25).geometry
    assert geometry.layers[0].input_size == 32


def test_depth_and_width_scale_the_space():
    geometry = FBNetSpace(width=0.5, depth=0.5, num_classes=10).geometry
    assert len(geometry.layers) == 1 + 5 * 2 + 1
    assert [layer.out_channels for layer in geometry.layers] == [8, 16, 16, 16, 16, 32, 32, 56, 56, 96, 96, 176]


@pytest.mark.parametrize("width", [0.1, 0.35, 0.5, 0.75, 1.25, 2.0])
def test_scaled_channels_suit_two_groups(width):
    channels = [scale_channels(channels, width) for channels in (16, 24, 32, 64, 112, 184, 352)]
    assert all(number % 8 == 0 and number >= 8 for number in channels)
    assert channels == sorted(channels)


def test_odd_input_sizes_work():
    space = FBNetSpace(num_classes=3, input_size=37, depth=0.25, width=0.5)
    sample = dict.fromkeys(space.simplify(), "k5_e3")
    plan = space.measure_plan()
    captured = [op for _, op in capture_operators(space.freeze(sample), space.example_inputs())]
    names = _selection(plan, sample.values())
    assert captured == [layer.candidates[name].op for layer, name in zip(plan.layers, names, strict=True)]


def test_skip_changes_nothing_where_shapes_stay(full):
    kinds = [layer.candidates["skip"].op.kind for layer in full.measure_plan().searched]
    # The first layer of every stage but the first changes channels.
    assert [index for index, kind in enumerate(kinds) if kind == "conv_block"] == [1, 5, 9, 13, 17, 21]
    assert set(kinds) == {"conv_block", "identity"}


def test_plan_measures_the_published_heads_of_the_full_space_alone(full, tiny):
    assert list(full.measure_plan().layers[-1].candidates) == ["1504", "1984"]
    assert list(tiny.measure_plan().layers[-1].candidates) == ["1504"]


def test_batch_size_reaches_every_operator(tiny):
    plan = tiny.measure_plan(batch_size=8)
    assert plan.batch_size == 8
    assert {c.op.input_shapes[0][0] for layer in plan.layers for c in layer.candidates.values()} == {8}


def test_reference_names_all_arguments(tiny):
    assert tiny.reference.name == "fbnet"
    assert dict(tiny.reference.arguments) == {
        "preset": "cifar",
        "input_size": 16,
        "num_classes": 4,
        "width": 0.5,
        "depth": 0.25,
        "head_channels": 1504,
    }


def test_reference_makes_the_same_space_again(tiny):
    again = FBNetSpace(**tiny.reference.arguments)
    assert again.reference == tiny.reference
    assert again.measure_plan().layers == tiny.measure_plan().layers


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_classes": 0}, r"'num_classes' of FBNetSpace must be an int >= 1\. Got 0"),
        ({"input_size": -3}, r"'input_size' of FBNetSpace must be an int >= 1\. Got -3"),
        ({"input_size": 32.5}, r"'input_size' of FBNetSpace must be an int >= 1\. Got 32\.5"),
        ({"input_size": "x"}, r"'input_size' of FBNetSpace must be an int >= 1\. Got 'x'"),
        ({"head_channels": "wide"}, r"'head_channels' of FBNetSpace must be an int >= 1\. Got 'wide'"),
        ({"width": 0.0}, r"'width' of FBNetSpace must be a number in \(0, 8\]\. Got 0\.0"),
        ({"depth": 9}, r"'depth' of FBNetSpace must be a number in \(0, 8\]\. Got 9"),
        ({"depth": float("nan")}, r"'depth' of FBNetSpace must be a number in \(0, 8\]\. Got nan"),
    ],
)
def test_bad_argument_is_named(arguments, message):
    with pytest.raises(InvalidValueError, match=message):
        FBNetSpace(**arguments)


def test_unknown_preset_lists_what_there_is():
    with pytest.raises(UnknownNameError, match=r"Unknown preset 'mnist'\. Available: imagenet, cifar, cifar10\."):
        FBNetSpace(preset="mnist")


@pytest.mark.parametrize("name", CANDIDATES)
def test_candidate_names_say_their_shape(name):
    shape = parse_candidate(name)
    if shape is None:
        assert name == "skip"
    else:
        group = f"_g{shape.groups}" if shape.groups > 1 else ""
        assert name == f"k{shape.kernel_size}_e{shape.expansion}{group}"
