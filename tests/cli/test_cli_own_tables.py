# SPDX-License-Identifier: Apache-2.0
"""Tables by hand of a space that a user wrote in a file, whose networks take images of one channel."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from nni_latency.errors import InvalidValueError, MismatchError
from nni_latency.nas import LatencyProfiler
from nni_latency.platforms import Platform
from nni_latency.spaces import example_inputs_of, make_space
from nni_latency.tables import LookupTable

_SOURCE = """
import torch
from nni.nas.nn.pytorch import LayerChoice, ModelSpace
from torch import nn


class {name}(ModelSpace):
    def __init__(self, width: int = 4, num_labels: int = 2) -> None:
        super().__init__()
        large = nn.Conv2d(1, width, 3, padding=1)
        self.first = LayerChoice({{"small": nn.Conv2d(1, width, 1), "large": large}}, label="first")
        self.second = LayerChoice({{"relu": nn.ReLU(), "tanh": nn.Tanh()}}, label="second")
        self.head = nn.Linear(width, num_labels)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(inputs)).mean((2, 3)))
"""

_INPUTS = """
    def example_inputs(self, batch_size: int = 1) -> torch.Tensor:
        return torch.zeros(batch_size, 1, 28, 28)
"""

_COSTS = {"first": {"small": 1e-3, "large": 2e-3}, "second": {"relu": 1e-4, "tanh": 3e-4}}
_CHOICES = {layer: list(costs) for layer, costs in _COSTS.items()}
_NETWORK = '{"first": "large", "second": "tanh"}'
_SHAPE = (1, 1, 28, 28)


@pytest.fixture
def space(tmp_path, monkeypatch):
    """Write a file of two spaces in another folder than the current one, and return the name of the first."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "written.py").write_text(_SOURCE.format(name="Sized") + _INPUTS + _SOURCE.format(name="Bare"))
    return f"{folder / 'written.py'}:Sized"


@pytest.fixture
def table(space, tmp_path):
    """Save a table of this machine for the space with a width of 8, and return its path."""
    made = make_space(space, {"width": 8})
    return LookupTable.from_latencies(made, _COSTS, platform=Platform.current()).save(tmp_path / "mine.json")


def _bare(space):
    return space.replace(":Sized", ":Bare")


def test_example_input_of_one_channel_keeps_it_at_another_size(space):
    made = make_space(space)
    assert example_inputs_of(made, 3).shape == (3, 1, 28, 28)
    assert example_inputs_of(made, 3, 32).shape == (3, 1, 32, 32)


def test_table_names_the_file_the_arguments_and_the_input_of_its_space(space, table):
    found = LookupTable.load(table)
    assert (found.space.name, dict(found.space.arguments)) == (space, {"width": 8, "num_labels": 2})
    assert found.input_shape == _SHAPE


@pytest.mark.parametrize(
    ("options", "shape"),
    [({}, (1,)), ({"batch_size": 4}, (4,)), ({"input_shape": [2, 1, 28, 28]}, (2, 1, 28, 28))],
    ids=["nothing", "batch", "shape"],
)
def test_input_of_a_space_that_does_not_say_it_is_given(space, options, shape):
    assert LookupTable.from_latencies(make_space(_bare(space)), _COSTS, **options).input_shape == shape
    assert LookupTable.from_latencies(_CHOICES, _COSTS, **options).input_shape == shape


@pytest.mark.parametrize("shape", [(), (0, 3), (1, -1), ("1", 3), (1.5,)])
def test_input_shape_that_is_none_is_refused(shape):
    with pytest.raises(InvalidValueError, match="'input_shape' must be whole numbers of at least 1"):
        LookupTable.from_latencies(_CHOICES, _COSTS, input_shape=shape)


def test_input_shape_of_a_space_with_a_plan_is_its_own():
    fbnet = make_space("fbnet", {"depth": 0.25})
    with pytest.raises(InvalidValueError, match=r"must be \(1, 3, 224, 224\). Got \(1, 3, 32, 32\)"):
        LookupTable.from_latencies(fbnet, {}, input_shape=(1, 3, 32, 32))


def test_network_is_estimated_by_its_choices_with_its_work(run, space, table):
    found = json.loads(run("predict", f"{space}@{_NETWORK}", "--latency-estimator", table, "--format", "json").stdout)
    assert found["latency_s"] == pytest.approx(2.3e-3)
    assert [(row["name"], row["choice"]) for row in found["layers"]] == [("first", "large"), ("second", "tanh")]
    assert (found["macs"], found["params"]) == (28 * 28 * 9 * 8 + 8 * 2, 9 * 8 + 8 + 8 * 2 + 2)


@pytest.mark.parametrize(
    ("make", "known"),
    [
        (lambda space: LookupTable.from_latencies(make_space(space), _COSTS), False),
        (lambda space: LookupTable.from_latencies(make_space(space), _COSTS, input_shape=_SHAPE), True),
        (lambda space: LookupTable.from_latencies(_CHOICES, _COSTS), False),
        (lambda space: LookupTable.from_latencies(_CHOICES, _COSTS, input_shape=_SHAPE), True),
    ],
    ids=["space", "space and input", "labels", "labels and input"],
)
def test_work_is_told_where_the_input_is_known(run, space, tmp_path, make, known):
    path = make(_bare(space)).save(tmp_path / "bare.json")
    how = (f"{_bare(space)}@{_NETWORK}", "--estimator", path)
    found = json.loads(run("predict", *how, "--format", "json").stdout)
    assert found["latency_s"] == pytest.approx(2.3e-3)
    assert (found["macs"] is not None) is known
    assert ("multiply-adds" in run("predict", *how).stdout) is known


def test_space_may_be_written_by_its_module_or_by_any_path(run, space, tmp_path, monkeypatch):
    folder = tmp_path / "elsewhere"
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "written", raising=False)
    by_module = LookupTable.from_latencies(make_space("written:Sized"), _COSTS)
    assert by_module.space.name == "written:Sized"
    path = by_module.save(tmp_path / "table.json")
    for name in ("written:Sized", "elsewhere/written.py:Sized", space):
        run("predict", f"{name}@{_NETWORK}", "-e", path)
    monkeypatch.delitem(sys.modules, "written", raising=False)


def test_table_from_another_machine_is_known_by_the_name_of_the_file(run, fails, space, table):
    content = json.loads(table.read_text())
    asked = ("predict", f"{space}@{_NETWORK}", "-e", table)
    content["space"]["name"] = "/home/another/written.py:Sized"
    table.write_text(json.dumps(content))
    run(*asked)
    content["space"]["name"] = "/home/another/other.py:Sized"
    table.write_text(json.dumps(content))
    assert "belongs to the space '/home/another/other.py:Sized', not to" in fails(*asked)


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("OTHER", [], "The table belongs to the space"),
        ("OWN", ["--kwargs", '{"width": 16}'], "width=8 in the table, width=16 requested"),
        ("OWN", ["--input", "1,32,32"], "input_size=28 in the table, input_size=32 requested"),
        ("OWN", ["--input", "3,28,28"], "takes inputs of the shape 1,28,28. Got --input 3,28,28"),
        ("OWN", ["--batch-size", 2], "batch size 1, not with 2"),
        ("fbnet", [], "The table belongs to the space"),
    ],
    ids=["another class", "arguments", "size", "channels", "batch", "registered"],
)
def test_what_does_not_fit_the_table_is_refused(fails, space, table, name, options, reason):
    named = {"OWN": space, "OTHER": _bare(space)}.get(name, name)
    assert reason in fails("predict", f"{named}@{_NETWORK}", "-e", table, *options)


def test_table_of_labels_alone_needs_the_space(fails, space, tmp_path):
    path = LookupTable.from_latencies(_CHOICES, _COSTS).save(tmp_path / "labels.json")
    complaint = fails("validate", path)
    assert "does not say which space they belong to. Name it with --space" in complaint


def test_space_of_other_inputs_than_the_table_is_refused(fails, space, tmp_path):
    made = make_space(space)
    path = LookupTable.from_latencies(made, _COSTS, input_shape=(1, 3, 28, 28)).save(tmp_path / "three.json")
    asked = ("predict", f"{space}@{_NETWORK}", "-e", path)
    assert "The table is for inputs of the shape (1, 3, 28, 28)" in fails(*asked)


@pytest.mark.slow
def test_networks_of_the_space_are_validated(run, space, table):
    how = ("--networks", 2, "--budget", "10min", "--protocol", "rounds=2", "--out", "found.json")
    run("validate", table, "--space", space, *how)
    predicted = [network["predicted"] for network in json.loads(Path("found.json").read_text())["networks"]]
    assert len(predicted) == 2
    assert {round(value, 6) for value in predicted} <= {1.1e-3, 1.3e-3, 2.1e-3, 2.3e-3}


def test_table_of_no_platform_can_not_be_validated(fails, space, tmp_path):
    path = LookupTable.from_latencies(make_space(space), _COSTS).save(tmp_path / "nowhere.json")
    assert "does not say on which device and runtime its numbers hold" in fails("validate", path, "--space", space)


def test_space_is_searched_by_the_table(run, space, table):
    generator = np.random.default_rng(0)
    np.savez("grey.npz", images=generator.random((40, 28, 28), np.float32), labels=np.arange(40) % 2)
    run(
        *("search", "--space", space, "--latency-estimator", table, "--target", "1.2ms", "--margin", 0, "--no-measure"),
        *("--dataset", "grey.npz", "--strategy", "random", "--trials", 2, "--epochs", 1),
        *("--training", "final_epochs=1,batch_size=8", "--out", "found"),
    )
    assert json.loads(Path("found/result.json").read_text()) == {"first": "small", "second": "relu"}


def test_changed_tables_still_belong_to_the_space(run, space, table):
    run("table", "scale", table, "--factor", 2, "--out", "scaled.json")
    run("table", "merge", table, table, "--out", "merged.json")
    run("table", "subset", table, "--layers", "first", "--out", "part.json")
    for path, expected in (("scaled.json", 4.6e-3), ("merged.json", 2.3e-3)):
        found = run("predict", f"{space}@{_NETWORK}", "-e", path, "--format", "json")
        assert json.loads(found.stdout)["latency_s"] == pytest.approx(expected)
    assert "28x28" in run("show", "part.json").stdout
    assert "ratio" in run("diff", table, "scaled.json").stdout


def test_command_that_needs_a_plan_says_so(fails, space, table):
    assert "has no measure plan" in fails("build-lut", "--samples", 3, "--from", table, "--space", space)


def test_table_by_hand_knows_no_operators(run, space, table):
    result = run("build-lut", "--from", table, "--space", space, "--out", "other.json", code=2)
    assert "made by hand, of costs by choice. It estimates samples of its space" in result.stderr


def test_profiler_holds_the_space_to_the_table(space, table):
    made = make_space(space, {"width": 8, "num_labels": 5})
    profiler = LatencyProfiler(made, example_inputs_of(made), latency_estimator=table)
    assert profiler.profile({"first": "small", "second": "relu"}) == pytest.approx(1.1e-3)
    with pytest.raises(MismatchError, match=r"inputs of \(1, 1, 28, 28\), not of \(1, 1, 32, 32\)"):
        LatencyProfiler(made, example_inputs_of(made, 1, 32), latency_estimator=table)
    with pytest.raises(MismatchError, match="belongs to another space than asked"):
        LatencyProfiler(make_space(space, {"width": 16}), latency_estimator=table)


def test_arguments_that_no_file_holds_are_refused():
    made = type(make_space(f"{Path(__file__).parents[1] / 'spaces' / 'own_space.py'}:OwnSpace"))(widths=range(1, 3))
    with pytest.raises(InvalidValueError, match=r"argument 'widths' .* Got range"):
        LookupTable.from_latencies(made, {})
