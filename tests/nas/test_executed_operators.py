# SPDX-License-Identifier: Apache-2.0
"""What a profiler counts in spaces where some samples have operators that no output depends on."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from nni_latency.estimators import TableEstimator
from nni_latency.imports import quiet_nni
from nni_latency.nas import LatencyProfiler, expected_cost
from nni_latency.operators import OpSpec, trace
from nni_latency.platforms import Platform
from nni_latency.spaces import (
    TooManyChoicesError,
    draw_samples,
    hub_space,
    network_of,
    operators_of_space,
)
from nni_latency.tables import Entry, LookupTable, SpaceReference

with quiet_nni():
    import nni
    from nni.nas.nn.pytorch import Cell, InputChoice, LayerChoice, ModelSpace, MutableConv2d, Repeat

TORCH, COMPILED = Platform("paper", "torch"), Platform("paper", "onnxruntime")


def _estimator(space, inputs, platform, share=0.0):
    """Return a table in which every operator of a space has another cost, and a share also beside all neighbours."""
    operators = operators_of_space(space, inputs).distinct
    entries = [Entry(1e-6 * n, 1e-6 * n, 1e-6 * n, op=op) for n, op in enumerate(operators, 100)]
    random = np.random.RandomState(0)
    names = ["", *(f"{side} {kind}" for kind in sorted({op.kind for op in operators}) for side in "<>")]
    for place in np.flatnonzero(random.rand(len(entries)) < share):
        costs = dict(zip(names, random.uniform(-1e-5, 1e-5, len(names)).tolist(), strict=True))
        entries[place] = replace(entries[place], beside=costs)
    shape = tuple(inputs.shape)
    own = SpaceReference("own")
    table = LookupTable(space=own, platform=platform, input_shape=shape, operators=tuple(entries))
    return TableEstimator(table, missing="error")


def _samples(space):
    """Yield samples with cells that take both predecessors, or only one: normal cells and those that reduce."""
    both, first, second = (0, 1), (0,), (1,)
    kinds = [(both, both), (first, first), (first, second), (second, first), (second, second)]
    for seed, (normal, reduce) in enumerate(kinds):
        (sample,) = draw_samples(space, 1, seed)
        for label, chosen in sample.items():
            kind, _, name = label.partition("/")
            if name.startswith("input_"):
                allowed = normal if kind == "normal" else reduce
                sample[label] = [place if place > 1 else allowed[place % len(allowed)] for place in chosen]
        yield sample


def _choice(label, *more):
    """Return a choice of layers whose operators all differ."""
    kernels = {f"k{size}": nn.Conv2d(8, 8, size, padding=size // 2) for size in (1, 3, 5)}
    return LayerChoice({**kernels, **{type(module).__name__: module for module in more}}, label=label)


class Branches(ModelSpace):
    """Some of three branches, the last of which starts from the second, and functions on them."""

    def __init__(self, n_chosen=1, reduction="sum"):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.first, self.second, self.third = (_choice(label) for label in ("first", "second", "third"))
        self.source = InputChoice(4, n_chosen, reduction, label="source")

    def forward(self, inputs):
        features = self.stem(inputs)
        first, second = self.first(features), torch.tanh(self.second(features))
        third = self.third(second)
        return self.source([features, torch.sigmoid(first), second, third])


class Levels(ModelSpace):
    """A searched backbone that returns a list, in which later layers may be in vain."""

    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.level = InputChoice(3, 1, label="level")

    def forward(self, inputs):
        return self.level(self.backbone(inputs)).mean((2, 3))


class Backbone(nn.Module):
    """Levels of features: a plain module with two results, a choice, and layers of a searched width and depth."""

    def __init__(self):
        super().__init__()
        width = nni.choice("width", [4, 8])
        self.stems = Stems()
        self.layer = _choice("layer", Ignoring())
        self.wide = nn.Sequential(MutableConv2d(8, width, 3, padding=1), MutableConv2d(width, 8, 1))
        self.deep = Repeat(lambda _: nn.Conv2d(8, 8, 3, padding=1), (0, 2), label="depth")

    def forward(self, inputs):
        one, other = self.stems(inputs)
        return [self.layer(one), self.deep(self.wide(other)), other]


class Stems(nn.Module):
    """Two convolutions with a result each."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 5, padding=2)

    def forward(self, inputs):
        return self.one(inputs), self.other(inputs)


class Ignoring(nn.Module):
    """A convolution whose result nothing takes."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 7, padding=3)

    def forward(self, inputs):
        self.conv(inputs)
        return torch.exp(inputs)


class InPlace(ModelSpace):
    """Activations that change what others take, too: alone, in a candidate, and in a plain module."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.act = nn.ReLU(inplace=True)
        self.layer = _choice("layer", nn.Hardswish(inplace=True))
        self.plain = nn.Sequential(nn.SiLU(inplace=True), nn.Conv2d(8, 8, 3, padding=1))
        self.source = InputChoice(3, 1, label="source")

    def forward(self, inputs):
        features = self.stem(inputs)
        self.act(features)
        layer = self.layer(features)
        return self.source([layer + 1, self.plain(features), features])


class Aliases(ModelSpace):
    """Activations in place on the result of a choice, or on what it may be, of which the other one is read."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.acts = nn.ModuleList([nn.SiLU(inplace=True), nn.Hardswish(inplace=True), nn.ELU(inplace=True)])
        self.skip, self.after, self.before = (_choice(f"layer{n}", nn.Identity()) for n in range(3))
        self.deep = Repeat(lambda _: nn.Conv2d(8, 8, 3, padding=1), (0, 2), label="depth")
        self.source = InputChoice(4, 1, label="source")

    def forward(self, inputs):
        features = self.stem(inputs)
        changed = self.after(self.skip(features))
        self.acts[0](changed)
        kept = self.before(features)
        self.acts[1](features)
        self.acts[2](self.deep(kept))
        return self.source([features, changed, kept, torch.tanh(inputs)])


class Twice(ModelSpace):
    """One tensor that a module takes twice, and changes in place."""

    def __init__(self):
        super().__init__()
        self.stem, self.pair = nn.Conv2d(3, 8, 3, padding=1), Pair()
        self.source = InputChoice(2, 1, label="source")

    def forward(self, inputs):
        one, other = self.stem(inputs), self.stem(inputs)
        return self.source([*self.pair(one, one), *self.pair(one, other)][1:4:2])


class Pair(nn.Module):
    """Changes the first of two tensors; returns what it makes of each."""

    def __init__(self):
        super().__init__()
        self.layer, self.act = _choice("layer"), nn.SiLU(inplace=True)

    def forward(self, one, other):
        self.act(one)
        return self.layer(one), torch.exp(other)


class Shared(ModelSpace):
    """A module whose results share memory, or change what it is given; one of them is changed, another one is read."""

    def __init__(self, make):
        super().__init__()
        self.stem, self.module = nn.Conv2d(3, 8, 3, padding=1), make()
        self.act, self.layer = nn.SiLU(inplace=True), _choice("layer")
        self.source = InputChoice(4, 1, label="source")

    def forward(self, inputs):
        features = self.stem(inputs)
        first, *others = self.module(features)
        self.act(first)
        return self.source([features, others[0], self.layer(others[-1]), torch.tanh(inputs)])


class Leaf(nn.Module):
    """Returns a tensor twice, the second time a part of it, and its input."""

    def forward(self, inputs):
        made = torch.exp(inputs)
        return [made, made[:, :8], inputs]


class ChangingLeaf(nn.Module):
    """Changes its input in place, and returns two other tensors."""

    def forward(self, inputs):
        made = torch.exp(inputs)
        return [made, torch.sigmoid(inputs.tanh_())]


class Repeated(nn.Module):
    """Returns the result of a layer twice."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, inputs):
        made = self.layer(inputs)
        return [made, made]


class SameTwice(nn.Module):
    """Gives one tensor twice to a module that changes the first, and reads the second."""

    def __init__(self):
        super().__init__()
        self.reads = ReadsSecond()

    def forward(self, inputs):
        return [torch.exp(inputs), *self.reads(inputs, inputs)]


class ReadsSecond(nn.Module):
    """Changes the first of two tensors in place, and reads the second."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(8, 8, 1)

    def forward(self, one, other):
        one.tanh_()
        return self.layer(one), torch.exp(other)


class Untouched(ModelSpace):
    """A network that may return its input."""

    def __init__(self):
        super().__init__()
        self.layer = _choice("layer")
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.source = InputChoice(2, 1, label="source")

    def forward(self, inputs):
        return self.source([inputs, self.layer(self.stem(inputs))])


class Asking(ModelSpace):
    """A module with two results that asks for a size that is searched, and one that describes itself."""

    def __init__(self):
        super().__init__()
        self.asks, self.describes = Asks(), Describes()
        self.source = InputChoice(3, 1, label="source")

    def forward(self, inputs):
        one, other = self.asks(inputs)
        return self.source([one, other.mT, self.describes(other)])


class Asks(nn.Module):
    """Two branches behind a layer of searched width, of which the second has one operator more where it is narrow."""

    def __init__(self):
        super().__init__()
        width = nni.choice("width", [4, 8])
        self.stem, self.one, self.other = (
            MutableConv2d(3, width, 3, padding=1),
            MutableConv2d(width, 8, 1),
            MutableConv2d(width, 8, 3, padding=1),
        )

    def forward(self, inputs):
        features = self.stem(inputs)
        narrow = features.shape[1] == 4
        return self.one(features), self.other(torch.tanh(features) if narrow else features)


class Describes(nn.Module):
    """A choice within one operator."""

    def __init__(self):
        super().__init__()
        self.layer = _choice("layer")

    def forward(self, inputs):
        return torch.exp(self.layer(inputs))

    def op_spec(self, shape):
        return OpSpec.of("block", [shape], kernel=self.layer.kernel_size[0])


class Assigned(ModelSpace):
    """A result that is assigned to a part of another one cannot be followed: it counts."""

    def __init__(self):
        super().__init__()
        self.stem, self.part = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 1)
        self.layer = _choice("layer")
        self.source = InputChoice(2, 1, label="source")

    def forward(self, inputs):
        features = self.stem(inputs)
        features[:, :4] = self.part(inputs)[:, :4]
        return self.source([features, self.layer(torch.tanh(features))])


class Cells(ModelSpace):
    """Cells of NNI outside of its hub, of which a later one may leave out the one before."""

    def __init__(self, merge_op="all"):
        super().__init__()
        self.stems = Stems()
        kernels = [nn.Conv2d(8, 8, size, padding=size // 2) for size in (1, 3, 5)]
        self.cells = nn.ModuleList(
            Cell(kernels, 2, 1, 2, merge_op, preprocessor=Squeezes(), label=f"cell{number}")
            for number in range(1 if merge_op == "loose_end" else 3)
        )

    def forward(self, inputs):
        before, last = self.stems(inputs)
        for cell in self.cells:
            before, last = last, cell([before, last])
        return last.mean((2, 3))


class Dense(ModelSpace):
    """Layers that each take the result of one of the four before them."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.layers = nn.ModuleList(_choice(f"layer{number}") for number in range(12))
        self.sources = nn.ModuleList(InputChoice(min(number, 4), 1, label=f"source{number}") for number in range(2, 13))

    def forward(self, inputs):
        results = [self.layers[0](self.stem(inputs))]
        results.append(self.layers[1](results[0]))
        for layer, source in zip(self.layers[2:], self.sources, strict=False):
            results.append(layer(source(results[-4:])))
        return self.sources[-1](results[-4:])


class Keeping(ModelSpace):
    """A layer that takes what an earlier one has kept, not what it is given."""

    def __init__(self):
        super().__init__()
        self.earlier = Keeper()
        self.later = Taker(self.earlier)
        self.source = InputChoice(2, 1, label="source")

    def forward(self, inputs):
        features = self.earlier(inputs)
        return self.source([features, self.later(features)])


class Keeper(nn.Module):
    """Keeps a tensor for another module."""

    def __init__(self):
        super().__init__()
        self.stem, self.layer = nn.Conv2d(3, 8, 3, padding=1), _choice("earlier")

    def forward(self, inputs):
        self.kept = self.stem(inputs)
        return self.layer(self.kept)


class Taker(nn.Module):
    """Takes what another module has kept."""

    def __init__(self, keeper):
        super().__init__()
        self.keeper, self.layer = [keeper], _choice("later")

    def forward(self, inputs):
        return self.layer(self.keeper[0].kept + inputs)


class Changing(ModelSpace):
    """Cells with a candidate that changes its input."""

    def __init__(self, n_cells):
        super().__init__()
        self.stems = Stems()
        candidates = [nn.Conv2d(8, 8, 3, padding=1), nn.Sequential(nn.SiLU(inplace=True), nn.Conv2d(8, 8, 1))]
        self.cells = nn.ModuleList(Cell(candidates, 2, 1, 2, label=f"cell{number}") for number in range(n_cells))
        self.squeeze = nn.Conv2d(16, 8, 1)

    def forward(self, inputs):
        before, last = self.stems(inputs)
        for cell in self.cells:
            before, last = last, self.squeeze(cell([before, last]))
        return last


class Squeezes(nn.Module):
    """What a cell does to the results of the two before it."""

    def __init__(self):
        super().__init__()
        self.squeeze = nn.ModuleDict({str(size): nn.Conv2d(size, 8, 1) for size in (8, 16)})

    def forward(self, given):
        return [torch.relu(self.squeeze[str(item.shape[1])](item)) for item in given]


def _estimate(estimator, space, sample, inputs):
    with torch.device("meta"):
        network = network_of(space, sample)()
    return estimator.estimate(network, inputs).value


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("darts", {"width": 4, "num_cells": (3, 4), "dataset": "cifar"}),
        ("darts", {"width": (4, 8), "num_cells": 3, "dataset": "imagenet"}),
        ("enas", {"width": 4, "num_cells": 4, "dataset": "cifar"}),
        ("nasnet", {"width": 4, "num_cells": 3, "dataset": "cifar"}),
        ("amoebanet", {"width": 4, "num_cells": 3, "dataset": "imagenet"}),
        ("pnas", {"width": 4, "num_cells": 3, "dataset": "cifar"}),
    ],
)
def test_profile_counts_what_the_platform_executes(name, arguments):
    space = hub_space(name, **arguments)
    inputs = torch.zeros(1, 3, 32, 32)
    eager, compiled = (_estimator(space, inputs, platform) for platform in (TORCH, COMPILED))
    profilers = [LatencyProfiler(space, inputs, latency_estimator=estimator) for estimator in (eager, compiled)]
    saved = []
    for sample in _samples(space):
        costs = [profiler.profile(sample) for profiler in profilers]
        slow = [_estimate(estimator, space, sample, inputs) for estimator in (eager, compiled)]
        assert costs == pytest.approx(slow, rel=1e-12)
        assert profilers[1].expression.evaluate(sample) == costs[1]
        saved.append(costs[0] - costs[1])
    assert saved[0] >= -1e-12
    assert min(saved[1:]) > 1e-4


@pytest.mark.parametrize("by", ["module", "graph"])
@pytest.mark.parametrize(
    ("make", "n", "saves"),
    [
        (Branches, 30, 30),
        (lambda: Branches(2, "concat"), 30, 20),
        (lambda: Branches(2, "none"), 30, 20),
        (lambda: Branches(3, "mean"), 30, 10),
        (Levels, 30, 30),
        (InPlace, 12, 12),
        (Aliases, 60, 60),
        (Twice, 6, 6),
        (Asking, 20, 15),
        (Assigned, 6, 3),
        (lambda: Shared(Leaf), 12, 12),
        (lambda: Shared(ChangingLeaf), 12, 8),
        (lambda: Shared(SameTwice), 12, 8),
        (lambda: Shared(lambda: Repeated(nn.Conv2d(8, 8, 1))), 12, 12),
        (lambda: Shared(lambda: Repeated(_choice("repeated"))), 24, 24),
        (lambda: Shared(lambda: LayerChoice([Repeated(nn.Conv2d(8, 8, 1)), Leaf()], label="leaf")), 24, 24),
        (lambda: Shared(lambda: LayerChoice([ChangingLeaf(), Leaf()], label="leaf")), 24, 20),
        (Untouched, 6, 3),
        (Cells, 30, 10),
        (lambda: Cells("loose_end"), 30, 10),
    ],
    ids=[
        "one",
        "two",
        "list",
        "three",
        "levels",
        "in place",
        "aliases",
        "twice",
        "asking",
        "assigned",
        "leaf",
        "changing leaf",
        "same twice",
        "repeated",
        "repeated choice",
        "choice of repeated",
        "choice of leaves",
        "untouched",
        "cells",
        "loose ends",
    ],
)
def test_operators_of_an_own_space_are_those_that_the_platform_executes(make, n, saves, by):
    space, inputs = make(), torch.zeros(1, 3, 16, 16)
    everything, executed = (operators_of_space(space, inputs, by, runs_unused=unused) for unused in (True, False))
    fewer = 0
    for sample in draw_samples(space, n):
        graph = trace(space.freeze(sample), inputs, by)
        assert everything.operators_of(sample) == Counter(item.op for item in graph.operators)
        used = Counter(item.op for item in graph.without_unused().operators)
        assert executed.operators_of(sample) == used
        fewer += used.total() < len(graph.operators)
    assert fewer >= saves


@pytest.mark.parametrize("make", [Branches, lambda: Branches(2), Levels, InPlace, Cells])
def test_profile_of_an_own_space_counts_what_the_platform_executes(make):
    space, inputs = make(), torch.zeros(1, 3, 16, 16)
    for platform in (TORCH, COMPILED):
        estimator = _estimator(space, inputs, platform)
        profiler = LatencyProfiler(space, inputs, latency_estimator=estimator)
        for sample in draw_samples(space, 12):
            slow = estimator.estimate(space.freeze(sample), inputs).value
            assert profiler.profile(sample) == pytest.approx(slow, rel=1e-12)


def test_a_module_that_takes_what_another_one_has_kept_is_refused():
    space, inputs = Keeping(), torch.zeros(1, 3, 16, 16)
    assert operators_of_space(space, inputs).parts
    with pytest.raises(TooManyChoicesError, match="a module takes what another one has kept"):
        operators_of_space(space, inputs, runs_unused=False)


def test_a_cell_that_changes_its_inputs_in_place_is_refused_where_they_are_used():
    inputs = torch.zeros(1, 3, 16, 16)
    for n_cells, refused in ((1, False), (2, True)):
        space = Changing(n_cells)
        assert operators_of_space(space, inputs).parts
        with pytest.raises(TooManyChoicesError, match="works in place") if refused else nullcontext():
            operators_of_space(space, inputs, runs_unused=False)


def test_a_space_of_too_many_uses_is_profiled_network_by_network():
    space, inputs = Dense(), torch.zeros(1, 3, 16, 16)
    estimator = _estimator(space, inputs, COMPILED)
    with pytest.warns(UserWarning, match="combinations of layer1, source2, .*Every network is therefore built"):
        profiler = LatencyProfiler(space, inputs, latency_estimator=estimator)
    for sample in draw_samples(space, 3):
        assert profiler.profile(sample) == estimator.estimate(space.freeze(sample), inputs).value


def test_one_of_some_inputs_needs_no_other():
    space, inputs = Branches(2), torch.zeros(1, 3, 16, 16)
    sample = {"first": "k1", "second": "k3", "third": "k5", "source": [0, 1]}
    graph = trace(space.freeze(sample), inputs).without_unused()
    assert [item.name for item in graph.operators] == ["stem", "first", "sigmoid", "source"]


def test_functions_on_which_no_output_depends_are_left_out():
    space, inputs = hub_space("darts", width=4, num_cells=3, dataset="imagenet"), torch.zeros(1, 3, 32, 32)
    found = operators_of_space(space, inputs, "graph", runs_unused=False)
    for sample in _samples(space):
        graph = trace(network_of(space, sample)(), inputs, "graph").without_unused()
        assert found.operators_of(sample) == Counter(item.op for item in graph.operators)


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("name", ["darts", "pnas"])
def test_expected_cost_of_certain_choices_is_their_profile(name, share):
    space = hub_space(name, width=4, num_cells=4, dataset="cifar")
    inputs = torch.zeros(1, 3, 32, 32)
    profiler = LatencyProfiler(space, inputs, latency_estimator=_estimator(space, inputs, COMPILED, share))
    expected = expected_cost(profiler.cost)
    for sample in _samples(space):
        alphas = []
        for label, values in profiler.cost.choices.items():
            chosen = tuple(sample[label]) if isinstance(sample[label], list) else sample[label]
            alphas.append(torch.tensor([100.0 if value == chosen else 0.0 for value in values]))
        assert float(expected(expected.softmax(alphas))) == pytest.approx(profiler.profile(sample), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("darts", {"width": (4, 8), "num_cells": 3, "dataset": "cifar"}),
        ("enas", {"width": 4, "num_cells": 3, "dataset": "imagenet"}),
        ("nasnet", {"width": 4, "num_cells": 3, "dataset": "cifar"}),
        ("amoebanet", {"width": 4, "num_cells": 3, "dataset": "imagenet"}),
        ("pnas", {"width": 4, "num_cells": 3, "dataset": "cifar"}),
        ("nasbench201", {"stem_out_channels": 4, "num_modules_per_stack": 1}),
        ("nasbench101", {"stem_out_channels": 12, "num_stacks": 1, "num_modules_per_stack": 2}),
    ],
)
def test_profile_counts_what_operators_cost_beside_their_neighbours(name, arguments):
    space, inputs = hub_space(name, **arguments), torch.zeros(1, 3, 32, 32)
    samples = list(_samples(space))[1:] if "nasbench" not in name else draw_samples(space, 12)
    for platform in (TORCH, COMPILED):
        estimator, plain = (_estimator(space, inputs, platform, share) for share in (0.5, 0.0))
        profiler = LatencyProfiler(space, inputs, latency_estimator=estimator)
        costs = [_estimate(estimator, space, sample, inputs) for sample in samples]
        assert [profiler.profile(sample) for sample in samples] == pytest.approx(costs, rel=1e-12)
        assert costs[0] != pytest.approx(_estimate(plain, space, samples[0], inputs), rel=1e-6)


@pytest.mark.parametrize("share", [0.3, 1.0])
@pytest.mark.parametrize(
    "make",
    [
        *(
            Branches,
            lambda: Branches(2, "concat"),
            lambda: Branches(3, "mean"),
            Levels,
            InPlace,
            Aliases,
            Twice,
            Asking,
        ),
        *(lambda: Shared(Leaf), lambda: Shared(ChangingLeaf), lambda: Shared(SameTwice)),
        lambda: Shared(lambda: Repeated(_choice("repeated"))),
        lambda: Shared(lambda: LayerChoice([ChangingLeaf(), Leaf()], label="leaf")),
        *(Assigned, Untouched, Cells, lambda: Cells("loose_end")),
    ],
)
def test_profile_of_an_own_space_counts_what_operators_cost_beside_their_neighbours(make, share):
    space, inputs = make(), torch.zeros(1, 3, 16, 16)
    for platform in (TORCH, COMPILED):
        estimator = _estimator(space, inputs, platform, share)
        profiler = LatencyProfiler(space, inputs, latency_estimator=estimator)
        for sample in draw_samples(space, 12):
            slow = estimator.estimate(space.freeze(sample), inputs).value
            assert profiler.profile(sample) == pytest.approx(slow, rel=1e-12)
