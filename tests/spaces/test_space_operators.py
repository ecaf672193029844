# SPDX-License-Identifier: Apache-2.0
"""The operators of all networks of a space, against each network's own trace."""

from __future__ import annotations

import warnings
from collections import Counter
from functools import partial

import pytest
import torch
from torch import nn

from nni_latency.errors import InvalidValueError, MissingEntryError
from nni_latency.estimators import TableEstimator
from nni_latency.imports import quiet_nni
from nni_latency.operators import trace
from nni_latency.platforms import Platform
from nni_latency.spaces import TooManyChoicesError, draw_samples, hub_space, operators_of_space, reference_of
from nni_latency.spaces._neighbours import Beside
from nni_latency.tables import Entry, LookupTable

with quiet_nni():
    import nni
    from nni.mutable import MutableExpression
    from nni.nas.nn.pytorch import (
        Cell,
        InputChoice,
        LayerChoice,
        ModelSpace,
        MutableBatchNorm2d,
        MutableConv2d,
        MutableLinear,
        MutableModule,
        Repeat,
    )
    from nni.nas.space import model_context


class Widths(ModelSpace):
    """Widths, kernels and expansions that act together, a residual and a pooling written as functions."""

    def __init__(self):
        super().__init__()
        width, expand, kernel = nni.choice("w", [8, 16, 24]), nni.choice("e", [1, 2.5]), nni.choice("k", [3, 5])
        hidden = MutableExpression.to_int(width * expand)
        self.stem = MutableConv2d(3, width, 3, padding=1)
        self.wide = MutableConv2d(width, hidden, 1, bias=False)
        self.norm = MutableBatchNorm2d(hidden)
        self.deep = MutableConv2d(hidden, width, kernel, padding=kernel // 2)
        self.head = MutableLinear(width, 10)

    def forward(self, inputs):
        stem = torch.relu(self.stem(inputs))
        outputs = stem + self.deep(nn.functional.hardswish(self.norm(self.wide(stem))))
        return self.head(outputs.mean((2, 3)))


class Depths(ModelSpace):
    """Repeated layer choices, one of them inside another, with an identity and shared labels."""

    def __init__(self):
        super().__init__()
        self.blocks = Repeat(
            lambda index: LayerChoice(
                {
                    "conv": nn.Conv2d(4, 4, 3, padding=1),
                    "skip": nn.Identity(),
                    "inner": Repeat(nn.Sequential(nn.ReLU(), nn.Conv2d(4, 4, 1)), (1, 2), label="inner"),
                },
                label=f"op{index}",
            ),
            (0, 3),
            label="depth",
        )
        activation = nn.ReLU()
        self.one = LayerChoice([nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, padding=1)], label="both")
        self.two = LayerChoice([nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, padding=1)], label="both")
        self.activation = activation

    def forward(self, inputs):
        outputs = self.activation(self.one(self.blocks(inputs)))
        return self.activation(self.two(outputs)).flatten(1)


class Inputs(ModelSpace):
    """Inputs chosen singly, several at once, and joined."""

    def __init__(self, reduction="sum"):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, size, padding=size // 2) for size in (1, 3, 5))
        self.one = InputChoice(3, 1, label="one")
        self.some = InputChoice(3, 2, reduction=reduction, label="some")
        self.last = nn.Conv2d(8 if reduction == "concat" else 4, 2, 1)

    def forward(self, inputs):
        found = [conv(inputs) for conv in self.convs]
        return self.last(self.some(found)), self.one(found)


class Cells(ModelSpace):
    """Two cells whose operators are made for their input, with all nodes joined or the loose ends alone."""

    def __init__(self):
        super().__init__()
        pool = nn.MaxPool2d(3, 1, 1)
        factories = {
            "conv": lambda node, op, source: nn.Conv2d(4, 4, 3 if source == 0 else 1, padding=1 if source == 0 else 0),
            "pool": lambda node, op, source: nn.AvgPool2d(3, 1, 1),
        }
        self.first = Cell({"conv": nn.Conv2d(4, 4, 1), "pool": pool}, 2, 2, 1, label="plain")
        self.fit = nn.Conv2d(8, 4, 1)
        self.second = Cell(factories, 3, 1, 2, label="made")

    def forward(self, inputs):
        first = self.fit(self.first(inputs))
        return self.second(first, inputs)


class Embedding(MutableModule):
    """A module that freezes itself."""

    def __init__(self, size):
        super().__init__()
        self.size = self.add_mutable(size) if not isinstance(size, int) else size
        made = size if isinstance(size, int) else nni.mutable.ensure_frozen(size)
        self.table = nn.Parameter(torch.zeros(1, made, 8))

    def freeze(self, sample):
        with model_context(sample):
            return Embedding(self.size.freeze(sample))

    def forward(self, inputs):
        sizes = inputs.shape
        return torch.cat([self.table.expand(sizes[0], -1, -1), inputs], 1)


class Tokens(ModelSpace):
    """Tokens whose number is searched, so that forwards which ask for it cannot run symbolically."""

    def __init__(self):
        super().__init__()
        self.embed = Embedding(nni.choice("tokens", [1, 3]))
        self.mix = MutableLinear(8, nni.choice("mix", [8, 16]))
        self.asking = _Asking()

    def forward(self, inputs):
        return self.asking(self.mix(self.embed(inputs)))


class _Asking(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = MutableLinear(nni.choice("mix", [8, 16]), nni.choice("out", [2, 4]))

    def forward(self, inputs):
        batch, tokens, width = inputs.shape
        return self.out(inputs.reshape(batch * tokens, width))


class Keywords(ModelSpace):
    """A forward with a keyword input."""

    def __init__(self):
        super().__init__()
        self.layer = LayerChoice([nn.Linear(4, 4), nn.Linear(4, 4, bias=False)], label="layer")

    def forward(self, inputs, *, mask):
        return self.layer(inputs) * mask


class Pair(ModelSpace):
    """A forward with a list of two inputs."""

    def __init__(self):
        super().__init__()
        self.layer = LayerChoice([nn.Linear(4, 4), nn.Linear(4, 4, bias=False)], label="layer")

    def forward(self, inputs):
        return self.layer(inputs[0]) + inputs[1]


class Parameters(ModelSpace):
    """Parameters that functions take, as they are and as views, beside a layer that is searched."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.table = nn.Parameter(torch.zeros(1, 9, 8))
        self.scale = nn.Parameter(torch.zeros(8))
        self.layer = LayerChoice([nn.Linear(8, 4), nn.Linear(8, 4, bias=False)], label="layer")

    def forward(self, inputs):
        outputs = torch.cat([self.token.expand(inputs.shape[0], -1, -1), inputs], 1)
        outputs = outputs + self.table[:, : outputs.shape[1]] + self.token.expand_as(outputs)
        return self.layer(self.scale * outputs) @ self.scale[:4]


class Continuous(ModelSpace):
    """A choice among all numbers of a range."""

    def __init__(self):
        super().__init__()
        self.add_mutable(nni.uniform("rate", 0, 1))
        self.layer = LayerChoice([nn.Linear(4, 4), nn.Linear(4, 2)], label="layer")

    def freeze(self, sample):
        return self.layer.freeze(sample)

    def forward(self, inputs):
        return self.layer(inputs)


def _check(space, inputs, n_samples=8, by="module"):
    found = operators_of_space(space, inputs, by)
    samples = draw_samples(space, n_samples, 1)
    graphs = [trace(space.freeze(dict(sample)).eval(), inputs, by) for sample in samples]
    for sample, graph in zip(samples, graphs, strict=True):
        assert found.operators_of(sample) == Counter(item.op for item in graph.operators)
    _check_neighbours(space, inputs, by, dict(enumerate(samples)), graphs)
    return found


def _check_neighbours(space, inputs, by, samples, graphs):
    """Check that a walk finds all operators of some networks beside their neighbours, of all those in any of them."""
    for runs_unused in (True, False):
        executed = graphs if runs_unused else [graph.without_unused() for graph in graphs]
        placed = [list(zip(graph.operators, graph.neighbours, strict=True)) for graph in executed]
        beside = {}
        for network in placed:
            for item, names in network:
                beside.setdefault(item.op, set()).update(names)
        found = operators_of_space(space, inputs, by, runs_unused=runs_unused, beside=beside)
        for number, network in enumerate(placed):
            items = Counter(item.op for item, _ in network)
            items.update(Beside(item.op, name) for item, names in network for name in names)
            assert found.items_of(samples[number]) == items


@pytest.mark.parametrize("by", ["module", "graph"])
@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (Widths, torch.zeros(2, 3, 8, 8)),
        (Depths, torch.zeros(1, 4, 6, 6)),
        (Inputs, torch.zeros(1, 4, 5, 5)),
        (partial(Inputs, "concat"), torch.zeros(1, 4, 5, 5)),
        (partial(Inputs, "mean"), torch.zeros(1, 4, 5, 5)),
        (Cells, torch.zeros(1, 4, 6, 6)),
        (Tokens, torch.zeros(2, 5, 8)),
        (Keywords, (torch.zeros(3, 4), {"mask": torch.zeros(3, 4)})),
        (Pair, [[torch.zeros(3, 4), torch.zeros(3, 4)]]),
        (Parameters, torch.zeros(2, 5, 8)),
    ],
    ids=["widths", "depths", "inputs", "concat", "mean", "cells", "tokens", "keywords", "pair", "parameters"],
)
def test_operators_are_those_of_every_network(make, inputs, by):
    _check(make(), inputs, by=by)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "size", "n_samples"),
    [
        ("proxylessnas", {}, 64, 2),
        ("mobilenetv3", {"width_multipliers": (0.5, 1.0), "expand_ratios": (1.0, 3.0), "depth_range": (1, 2)}, 64, 3),
        ("shufflenet", {"channel_search": True}, 64, 2),
        ("autoformer", {"img_size": 64, "search_depth": (2, 3)}, 64, 3),
        ("nasbench201", {"num_modules_per_stack": 1}, 32, 4),
        ("darts", {"width": (8, 16), "num_cells": (3, 4)}, 32, 3),
        ("nasnet", {"width": 8, "num_cells": (3, 5)}, 32, 3),
        ("enas", {"width": 8, "num_cells": 3}, 32, 3),
        ("amoebanet", {"width": 8, "num_cells": 3}, 32, 3),
        ("pnas", {"width": 8, "num_cells": 3}, 32, 3),
    ],
)
def test_operators_of_the_hub_are_those_of_every_network(name, arguments, size, n_samples):
    space = hub_space(name, **arguments)
    _check(space, torch.zeros(1, 3, size, size), n_samples)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:nni")
def test_parameters_of_a_space_are_told_from_what_it_computes():
    found = _check(Parameters(), torch.zeros(2, 5, 8))
    learned = {op.kind: op["learned"] for op in found.distinct if op.get("learned") is not None}
    assert learned.keys() == {"cat", "add", "mul", "matmul"}
    assert (learned["cat"], learned["mul"]) == ("1x1x8+", "8+")


@pytest.mark.slow
def test_operators_of_nasbench101_follow_the_pruned_graph():
    space = hub_space("nasbench101", stem_out_channels=16, num_stacks=2, num_modules_per_stack=2)
    _check(space, torch.zeros(1, 3, 16, 16), 25)


class Returning(ModelSpace):
    """Layers that return their input, alone or with what they make of it, among others."""

    def __init__(self):
        super().__init__()
        self.before = LayerChoice([nn.Conv2d(4, 4, 1), nn.MaxPool2d(3, 1, 1)], label="before")
        self.layer = LayerChoice([nn.Identity(), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3, padding=1)], label="layer")
        self.both = _Both()
        self.after = LayerChoice([nn.AvgPool2d(3, 1, 1), nn.Identity()], label="after")

    def forward(self, inputs):
        own, made = self.both(self.layer(self.before(inputs)))
        return self.after(own) + self.after(made)


class _Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.choice = LayerChoice([nn.Identity(), nn.BatchNorm2d(4)], label="both")

    def forward(self, inputs):
        return [inputs, self.choice(inputs)]


@pytest.mark.parametrize("by", ["module", "graph"])
def test_neighbours_are_found_past_modules_that_return_their_input(by):
    _check(Returning(), torch.zeros(1, 4, 6, 6), 24, by)


def test_costs_beside_neighbours_that_were_not_looked_for_are_refused():
    space, inputs = Inputs(), torch.zeros(1, 4, 5, 5)
    ops = operators_of_space(space, inputs).distinct
    entries = tuple(Entry(1.0, 1.0, 1.0, op=op, beside={"": -0.1, "> conv2d": 0.2}) for op in ops)
    header = {"space": reference_of(space), "input_shape": (1, 4, 5, 5), "platform": Platform("paper", "torch")}
    estimator = TableEstimator(LookupTable(**header, operators=entries))
    with pytest.raises(InvalidValueError, match="beside neighbours that were not looked for in the space"):
        operators_of_space(space, inputs).priced(estimator)
    priced = operators_of_space(space, inputs, beside=estimator.beside).priced(estimator)
    for sample in draw_samples(space, 4):
        slow = estimator.estimate(space.freeze(sample), inputs).value
        assert priced({label: tuple(value) for label, value in sample.items()}) == pytest.approx(slow, rel=1e-12)


def test_a_cell_without_a_path_is_no_network():
    space = hub_space("nasbench101", num_stacks=1, num_modules_per_stack=1)
    found = operators_of_space(space, torch.zeros(1, 3, 16, 16))
    (sample,) = draw_samples(space, 1, 0)
    with pytest.raises(InvalidValueError, match=r"network of the space: No path of the cell leads from its input"):
        found.operators_of({**sample, "cell/num_nodes": 7, "cell/input6": []})


@pytest.mark.slow
def test_loose_ends_are_counted():
    space = hub_space("amoebanet", width=8, num_cells=3)
    found = operators_of_space(space, torch.zeros(1, 3, 32, 32))
    assert [item.outputs for item in found.derived] == [("normal/loose_ends",), ("reduce/loose_ends",)]
    (sample,) = draw_samples(space, 1, 3)
    assert (
        1 <= found.derived[0].function({k: tuple(v) if isinstance(v, list) else v for k, v in sample.items()})[0] <= 5
    )


def test_the_space_is_not_changed():
    space = Widths().train()
    space.stem._compiled_call_impl = own = space.stem._call_impl
    before = {name: value.clone() for name, value in space.state_dict().items()}
    attributes = [set(vars(module)) for module in space.modules()]
    operators_of_space(space, torch.zeros(1, 3, 8, 8))
    assert all(torch.equal(value, before[name]) for name, value in space.state_dict().items())
    assert all(module.training for module in space.modules())
    assert [set(vars(module)) - {"_mutables"} for module in space.modules()] == [
        names - {"_mutables"} for names in attributes
    ]
    assert space.stem._compiled_call_impl is own


def test_modules_of_others_are_called_as_ever_while_a_space_is_walked():
    call, other = nn.Module.__call__, nn.Sequential(nn.Linear(4, 2))

    class Calling(Keywords):
        def forward(self, inputs, *, mask):
            assert nn.Module.__call__ is call
            assert other(torch.ones(1, 4)).shape == (1, 2)
            return super().forward(inputs, mask=mask)

    assert operators_of_space(Calling(), (torch.zeros(3, 4), {"mask": torch.zeros(3, 4)})).distinct


class Forward(ModelSpace):
    """Two linear layers to choose from, and a forward that is given."""

    def __init__(self, forward):
        super().__init__()
        self.layer = LayerChoice([nn.Linear(4, 4), nn.Linear(4, 4, bias=False)], label="layer")
        self.run = forward

    def forward(self, inputs):
        return self.run(self.layer(inputs))


def test_a_bug_in_a_forward_surfaces():
    def forward(inputs):
        return {"left": inputs}["right"]

    with pytest.raises(KeyError, match="right"):
        operators_of_space(Forward(forward), torch.zeros(1, 4))


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        (lambda inputs: inputs if inputs.sum() > 0 else -inputs, "its control flow depends on the data"),
        (lambda inputs: inputs * float(inputs.sum()), "its control flow depends on the data"),
        (lambda inputs: inputs * inputs.sum().item(), r"RuntimeError: .*meta"),
    ],
)
def test_control_flow_that_depends_on_the_data_is_named(forward, said):
    with pytest.raises(TooManyChoicesError, match=said):
        operators_of_space(Forward(forward), torch.zeros(1, 4))


class Ending(nn.Module):
    """A module that returns what a function makes of its input."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, inputs):
        return self.function(inputs)


def _filled(inputs):
    inputs = inputs * 1
    inputs[:, :1] = 0
    return inputs


@pytest.mark.parametrize(
    "forward",
    [
        lambda inputs: inputs if isinstance(inputs, torch.Tensor) else inputs["none"],
        lambda inputs: inputs * (inputs == 1),
        lambda inputs: inputs * ~(inputs != 1),
        _filled,
        lambda inputs: Ending(lambda value: {"one": value, "two": [-value]})(inputs)["two"][0],
    ],
    ids=["isinstance", "equal", "invert", "assign", "mapping"],
)
def test_forwards_run_on_symbolic_tensors_as_on_others(forward):
    _check(Forward(forward), torch.zeros(1, 4), 2)


def test_candidates_may_return_mappings():
    class Mappings(ModelSpace):
        def __init__(self):
            super().__init__()
            one = Ending(lambda value: {"one": value, "two": -value})
            self.ends = LayerChoice([one, Ending(lambda value: {"one": -value, "two": value})], label="ends")

        def forward(self, inputs):
            ends = self.ends(inputs)
            return ends["one"] + ends["two"]

    _check(Mappings(), torch.zeros(1, 4), 2)


def test_a_candidate_that_never_fits_is_an_error_of_its_networks_alone():
    class Unfit(ModelSpace):
        def __init__(self):
            super().__init__()
            self.layer = LayerChoice({"good": nn.Linear(4, 4), "bad": nn.Linear(3, 4)}, label="layer")

        def forward(self, inputs):
            return torch.relu(self.layer(inputs))

    found = operators_of_space(Unfit(), torch.zeros(1, 4))
    assert sorted(op.kind for op in found.operators_of({"layer": "good"})) == ["linear", "relu"]
    with pytest.raises(InvalidValueError, match="not a network of the space: RuntimeError: "):
        found.operators_of({"layer": "bad"})


def test_another_input_size_gives_other_operators():
    space = Widths()
    small, large = (operators_of_space(space, torch.zeros(1, 3, size, size)) for size in (8, 16))
    assert not set(small.distinct) & {op for op in large.distinct if op.kind == "conv2d"}


def test_a_sample_with_a_missing_label_is_refused():
    found = operators_of_space(Widths(), torch.zeros(1, 3, 8, 8))
    with pytest.raises(MissingEntryError, match=r"no choice for 'k'"):
        found.operators_of({"w": 8, "e": 1})
    with pytest.raises(MissingEntryError, match=r"choice of 'w' must be one of 8, 16, 24. Got 9"):
        found.operators_of({"w": 9, "e": 1, "k": 3})


def test_choices_that_do_not_go_together_are_refused_only_where_they_meet():
    class Clashing(ModelSpace):
        def __init__(self):
            super().__init__()
            self.one = MutableLinear(4, nni.choice("a", [2, 3]))
            self.two = MutableLinear(nni.choice("b", [2, 3]), 1)

        def forward(self, inputs):
            return self.two(self.one(inputs))

    found = operators_of_space(Clashing(), torch.zeros(1, 4))
    assert sum(found.operators_of({"a": 3, "b": 3}).values()) == 2
    with pytest.raises(InvalidValueError, match="is not a network of the space"):
        found.operators_of({"a": 2, "b": 3})


def test_a_choice_that_can_not_be_listed_is_named():
    with pytest.raises(TooManyChoicesError, match="'rate' is not a choice among values"):
        operators_of_space(Continuous(), torch.zeros(1, 4))


def test_nothing_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        operators_of_space(Depths(), torch.zeros(1, 4, 6, 6))
