# SPDX-License-Identifier: Apache-2.0
"""A user's own space by the name of its class or file."""

from __future__ import annotations

import sys
from pathlib import Path

import cloudpickle
import pytest
import torch
from own_space import OwnSpace

from nni_latency.errors import InvalidValueError
from nni_latency.imports import quiet_nni
from nni_latency.operators import trace
from nni_latency.spaces import example_inputs_of, make_space, network_of, reference_of

with quiet_nni():
    from nni.nas.nn.pytorch import LayerChoice, ModelSpace

FILE = Path(__file__).parent / "own_space.py"


def test_a_class_is_found_by_module_and_by_file():
    by_module = make_space("own_space:OwnSpace", {"widths": [8, 16]})
    by_file = make_space(f"{FILE}:OwnSpace", {"widths": [8, 16]})
    assert list(by_module.simplify()) == list(by_file.simplify()) == ["width", "act", "depth"]
    assert reference_of(by_module).arguments == {"widths": (8, 16), "num_labels": 3}
    assert reference_of(by_file).name == f"{FILE}:OwnSpace"
    assert reference_of(OwnSpace()).name == "own_space:OwnSpace"
    assert example_inputs_of(by_file, 2).shape == (2, 3, 16, 16)


def test_a_module_in_the_current_folder_is_found(tmp_path, monkeypatch):
    (tmp_path / "space_of_mine.py").write_text(FILE.read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert type(make_space("space_of_mine:OwnSpace")).__name__ == "OwnSpace"


def test_a_class_without_an_importable_name_is_sent_along():
    class Local(ModelSpace):
        def __init__(self, channels: int = 4) -> None:
            super().__init__()
            self.layer = LayerChoice([torch.nn.Conv2d(3, channels, 1), torch.nn.Conv2d(3, channels, 3)], label="layer")

        def forward(self, inputs):
            return self.layer(inputs)

    build = network_of(Local(channels=5), {"layer": 1})
    assert build.kind is Local
    again = cloudpickle.loads(cloudpickle.dumps(build))
    assert [item.op["kernel_size"] for item in trace(again(), torch.zeros(1, 3, 8, 8)).operators] == [3]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("own_space:NeedsArguments", {}, r"missing a required argument: 'width'. It takes: width"),
        ("own_space:NoSpace", {}, "must be a class derived from nni.nas.nn.pytorch.ModelSpace"),
        ("own_space:Nothing", {}, "'own_space' has no class 'Nothing'"),
        ("no_such_module:Space", {}, "Cannot import the space 'no_such_module:Space': ModuleNotFoundError"),
        ("no_such_file.py:Space", {}, r"^There is no file 'no_such_file\.py'\.$"),
        ("own_space:", {}, "must be written as package.module:Class or path/to/file.py:Class"),
        ("own_space:OwnSpace", {"widths": {"a": 1}}, "'widths' of the space 'own_space:OwnSpace' must be a number"),
    ],
)
def test_a_bad_name_or_argument_is_told_in_one_sentence(name, arguments, message):
    with pytest.raises(InvalidValueError, match=message):
        make_space(name, arguments)


def test_an_unknown_input_size_has_to_be_given():
    space = make_space("own_space:NeedsArguments", {"width": 4})
    with pytest.raises(InvalidValueError, match="Give the input image size"):
        example_inputs_of(space)
    assert example_inputs_of(space, 1, 8).shape == (1, 3, 8, 8)


def test_arguments_that_are_no_plain_values_can_not_be_named():
    with pytest.raises(InvalidValueError, match=r"argument 'widths' .* Got range"):
        reference_of(OwnSpace(widths=range(1, 3)))


def test_networks_of_a_space_have_weights_of_their_own():
    build = network_of(make_space("own_space:OwnSpace"), {"width": 8, "act": "relu", "depth": 2})
    first, second = build(), build()
    assert not {id(weight) for weight in first.parameters()} & {id(weight) for weight in second.parameters()}


@pytest.mark.parametrize(
    ("name", "sample"),
    [
        ("own_space:OwnSpace", {"width": 8, "act": "relu", "depth": 2}),
        ("nasbench201", {f"cell/{place}": "conv_1x1" for place in ("0_1", "0_2", "1_2", "0_3", "1_3", "2_3")}),
    ],
)
def test_weights_drawn_anew_are_decided_by_the_seed(name, sample):
    build, drawn = network_of(make_space(name), sample), []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(torch.cat([weight.detach().flatten() for weight in build.anew().parameters()]))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
