# SPDX-License-Identifier: Apache-2.0
"""``nni-latency search`` of spaces without a measure plan: one of NNI's hub, and one of the user's own."""

from __future__ import annotations

import json
from pathlib import Path

import cloudpickle
import pytest
import torch
from matplotlib.image import imread
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import TensorDataset

from nni_latency.cli._search_report import FILES
from nni_latency.cli._searched import Searched, choose_strategy, searched_space
from nni_latency.cli._space_options import CLASSES, SpaceOptions
from nni_latency.estimators import ActsEstimator
from nni_latency.loading import load_estimator
from nni_latency.measurement import Protocol
from nni_latency.micro_benchmarks import draw_blocks, run_benchmarks
from nni_latency.nas import Dataset, LatencyProfiler, load_dataset
from nni_latency.operators import features_of, trace
from nni_latency.platforms import Platform
from nni_latency.spaces import (
    HUB_SPACES,
    example_inputs_of,
    make_space,
    network_of,
    operators_of_space,
    parameters_of,
    read_sample,
    reference_of,
)
from nni_latency.tables import Entry, LookupTable
from nni_latency.testing import FakeRuntime

OWN = f"{Path(__file__).parents[1] / 'spaces' / 'own_space.py'}:OwnSpace"
HELLO = Path(__file__).parents[2] / "examples" / "hello_nas_space.py"
SMALL = ["--space", "nasbench201", "--space-args", '{"stem_out_channels": 4, "num_modules_per_stack": 1}']
_ONE_CELL = '{"stem_out_channels": 8, "num_stacks": 1, "num_modules_per_stack": 1}'
#: As few rounds as a network that was found is measured in, however long they take where other processes are busy.
ROUNDS = ("--protocol", "rounds=4", "--protocol", "processes=1")
QUICK = [*ROUNDS, "--epochs", 1, "--training", "final_epochs=1,batch_size=32"]

#: Spaces of the hub that are made in a moment, as large as they are by default.
QUICKLY_MADE = ("proxylessnas", "mobilenetv3", "shufflenet", "autoformer", "nasbench201")

pytestmark = pytest.mark.usefixtures("_few_digits")


def _seconds(op):
    """Return the time of an operator on an invented device."""
    found = features_of(op)
    return 2e-6 + 1e-9 * found.inputs + 3e-11 * found.flops


@pytest.fixture(scope="module")
def acts(tmp_path_factory):
    """Fit a predictor to invented numbers of this device; return how the command line names it."""
    folder = tmp_path_factory.mktemp("acts")
    runtime = FakeRuntime(_seconds, platform=Platform.current("cpu"))
    protocol = Protocol(n_warmup=0, rounds=1, time_budget=600.0)
    series = [(block, (1,)) for block in draw_blocks(24)]
    points = run_benchmarks(runtime, protocol, folder / "points.json", series=series)
    estimator = ActsEstimator()
    estimator.fit(points.workloads, points.latencies, groups=points.blocks, platform=points.platform)
    estimator.save(folder / "acts.json")
    return f"acts:{folder / 'acts.json'}"


@pytest.fixture(scope="module")
def search(run, acts, tmp_path_factory):
    """Search; return what was printed, the folder and the record."""

    def invoke(*options, target=1000):
        out = tmp_path_factory.mktemp("searched")
        done = run("search", "--latency-estimator", acts, "--target", f"{target}ms", *QUICK, "--out", out, *options)
        return done, out, json.loads((out / "search.json").read_text())

    return invoke


@pytest.fixture(scope="module")
def own(search):
    return search("--space", OWN, target=0.5)


@pytest.fixture(scope="module")
def hub(search):
    return search(*SMALL, "--dataset", "digits", "--strategy", "enas", "--no-measure")


@pytest.fixture(scope="module")
def tried(search):
    return search("--space", OWN, "--strategy", "random", "--trials", 2, "--no-measure", target=0.5)


@pytest.mark.slow
def test_files_are_those_of_every_search(own, hub, tried):
    for _, out, _ in (own, hub, tried):
        assert sorted(path.name for path in out.iterdir()) == sorted(FILES)


@pytest.mark.slow
def test_space_is_made_for_the_classes_of_the_data_set(own, hub):
    assert own[2]["space_arguments"] == {"num_labels": 10}
    assert hub[2]["space_arguments"] == {"stem_out_channels": 4, "num_modules_per_stack": 1, "num_labels": 10}


def test_networks_of_a_file_can_be_sent_to_other_processes():
    made = Searched(OWN, {}, (1, 3, 16, 16)).make()
    assert type(made).__module__ in cloudpickle.list_registry_pickle_by_value()


@pytest.mark.slow
def test_input_is_that_of_the_space(own, hub):
    assert own[2]["input_shape"] == [1, 3, 16, 16]
    assert hub[2]["input_shape"] == [1, 3, 32, 32]


@pytest.mark.slow
def test_report_and_record_name_what_was_chosen(own, hub, tried):
    for done, _, record in (own, hub, tried):
        assert list(record["choices"]) == list(record["sample"])
        lines = done.stdout.splitlines()
        for label, choice in record["choices"].items():
            assert any(label in line and choice in line for line in lines)


@pytest.mark.slow
def test_first_strategy_that_can_is_taken(own):
    assert own[2]["strategy"] == "fbnet"
    assert "with fbnet on digits" in own[0].stderr


@pytest.mark.slow
def test_result_meets_the_target_and_is_measured(own):
    done, _, record = own
    assert record["predicted"] <= record["aim"] == pytest.approx(0.95 * 0.5e-3)
    assert record["measured"] > 0
    assert record["validation"]["networks"][0]["selection"] == record["sample"]
    for text in ("predicted", "measured", "at the estimator's speed", "accuracy", "label"):
        assert text in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("found", ["own", "hub", "tried"])
def test_weights_fit_the_network_of_the_sample(found, request):
    _, out, record = request.getfixturevalue(found)
    space = make_space(record["space"], record["space_arguments"])
    network = network_of(space, read_sample(space, out / "result.json"))()
    network.load_state_dict(load_file(out / "weights.safetensors"), strict=True)
    assert network.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.slow
def test_network_found_can_be_estimated_from_its_file(own, run, acts):
    _, out, record = own
    command = ["predict", f"{OWN}@{out / 'result.json'}", "--kwargs", '{"num_labels": 10}']
    found = json.loads(run(*command, "--latency-estimator", acts, "--format", "json").stdout)
    assert found["latency_s"] == pytest.approx(record["predicted"], rel=1e-6)


@pytest.mark.slow
def test_trials_are_told_and_the_best_is_found(tried):
    done, _, record = tried
    assert [trial["index"] for trial in record["history"]] == [0, 1]
    assert all(trial["cost"] <= record["aim"] for trial in record["history"])
    best = max(record["history"], key=lambda trial: trial["accuracy"])
    assert record["sample"] == best["sample"]
    assert "trial 2: accuracy" in done.stderr


@pytest.mark.slow
def test_epochs_of_a_strategy_that_draws_have_no_temperature(hub):
    done, _, record = hub
    assert record["history"][0]["temperature"] is None
    assert record["history"][0]["cost"] <= record["aim"]
    assert "temperature" not in done.stderr


@pytest.mark.slow
def test_same_seed_finds_the_same(search, hub):
    again = search(*SMALL, "--strategy", "enas", "--no-measure")[2]
    for name in ("sample", "predicted", "accuracy"):
        assert again[name] == hub[2][name]


@pytest.fixture
def refused(fails, acts, tmp_path):
    """Search with options that must be refused before anything is learned or written; return the sentence."""

    def invoke(*options, target=1000):
        complaint = fails("search", "--latency-estimator", acts, "--target", f"{target}ms", "--out", "out", *options)
        assert not (tmp_path / "out").exists()
        return complaint

    return invoke


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "reason", "other"),
    [
        (["--space", "nasbench101", "--space-args", _ONE_CELL], "NNI can make no supernet for it", "evolution"),
        (["--space", "darts", "--space-args", '{"width": 4, "num_cells": 3}'], "no fitting architecture par", "enas"),
    ],
    ids=["nasbench101", "darts"],
)
def test_strategy_that_can_not_search_the_space_names_one_that_can(refused, options, reason, other):
    complaint = refused(*options, "--strategy", "fbnet")
    assert complaint.startswith(f"The strategy 'fbnet' cannot search '{options[1]}': ")
    assert reason in complaint
    assert complaint.endswith(f"Take --strategy {other}.")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--space", OWN, "--space-args", "num_labels=3"], "The data set digits has 10 classes, not 3."),
        (["--space", OWN, "--space-args", '{"num_labels": 4}'], "The data set digits has 10 classes, not 4."),
        (["--space", OWN, "--space-args", '{"colour": 4}'], "unexpected keyword argument 'colour'"),
        (["--space", OWN, "--strategy", "luck"], "'luck' is not one of 'fbnet'"),
        (["--space", OWN, "--trials", "0"], "0 is not in the range x>=1"),
        (["--space", f"{OWN.rpartition(':')[0]}:NeedsArguments"], "missing a required argument: 'width'"),
        (
            ["--space", f"{OWN.rpartition(':')[0]}:NeedsArguments", "--space-args", '{"width": 10}'],
            "must return a number for each of the data set's 10 classes and each image. Got a tensor of shape",
        ),
        (["--space", "autoformer", "--space-args", '{"img_size": 64}'], "do not take the data set's images, 3x32x32"),
    ],
    ids=["classes", "labels", "argument", "strategy", "trials", "without", "no logits", "pictures"],
)
def test_what_does_not_fit_is_refused(refused, options, complaint):
    assert complaint in refused(*options)


def test_target_out_of_reach_is_refused(refused):
    assert "No network of the space meets a latency of 1.00 us" in refused("--space", OWN, target=0.001)


@pytest.mark.slow
def test_tutorial_space_of_nni_is_searched_with_pictures_of_one_channel(search):
    quick = ["--strategy", "random", "--trials", 1, "--epochs", 1, "--training", "final_epochs=0", "--no-measure"]
    done, out, record = search("--space", f"{HELLO}:HelloSpace", "--dataset", f"{HELLO}:pictures", *quick)
    assert record["input_shape"] == [1, 1, 28, 28]
    assert set(record["choices"]) == {"conv2", "dropout", "feature"}
    assert record["choices"]["conv2"] in ("0 (Conv2d)", "1 (DepthwiseSeparableConv)")
    assert record["choices"]["conv2"] in done.stdout
    assert imread(out / "search.png").shape[0] > 400


def test_tutorial_space_of_nni_is_searched_by_trials_unless_asked(acts):
    """NNI makes no supernet of a dropout rate that is searched."""
    dataset = load_dataset(f"{HELLO}:pictures")
    searched = Searched(f"{HELLO}:HelloSpace", {}, (1, 1, 28, 28))
    profiler = LatencyProfiler(searched.make(), torch.zeros(1, 1, 28, 28), latency_estimator=acts)
    assert choose_strategy(None, searched, profiler.cost, dataset) == "evolution"


@pytest.fixture(scope="module")
def operators(tmp_path_factory):
    """Save a table of operators of invented numbers."""
    space = make_space("nasbench201", json.loads(SMALL[3]))
    inputs = torch.zeros(1, 3, 32, 32)
    costs = {op: _seconds(op) for op in operators_of_space(space, inputs).distinct}
    entries = tuple(Entry(cost, 0.9 * cost, 1.1 * cost, op=op) for op, cost in costs.items())
    table = LookupTable(
        space=reference_of(space), platform=Platform.current("cpu"), input_shape=tuple(inputs.shape), operators=entries
    )
    return table.save(tmp_path_factory.mktemp("operators") / "table.json")


@pytest.mark.slow
def test_table_of_operators_brings_its_space(run, operators, tmp_path):
    """Space, arguments and input are those of the table; its classes are those of the data set."""
    quick = [*QUICK, "--strategy", "random", "--trials", 1, "--no-measure", "--out", "out"]
    run("search", "--latency-estimator", operators, "--target", "1000ms", *quick)
    record = json.loads((tmp_path / "out" / "search.json").read_text())
    assert record["space"] == "nasbench201"
    assert record["space_arguments"] == {"stem_out_channels": 4, "num_modules_per_stack": 1, "num_labels": 10}
    assert record["input_shape"] == [1, 3, 32, 32]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICKLY_MADE else pytest.mark.slow) for name in HUB_SPACES]
)
def test_table_of_a_space_of_the_hub_is_searched_without_further_options(name):
    """As `build-lut --space NAME` makes it, for the classes of another data set."""
    made = make_space(name, {})
    shape = tuple(example_inputs_of(made).shape)
    entry = Entry(1e-3, 1e-3, 1e-3, op=trace(nn.Conv2d(3, 4, 1), torch.zeros(1, 3, 8, 8)).operators[0].op)
    table = LookupTable(
        space=reference_of(made), platform=Platform.current("cpu"), input_shape=shape, operators=(entry,)
    )
    asked = SpaceOptions(None, (), None)
    pair = TensorDataset(torch.zeros(2, 3, 32, 32), torch.zeros(2).long())
    found = searched_space(load_estimator(table), asked, None, Dataset("made up", pair, pair, 7, 32))
    assert found.name == name
    assert found.input_shape == shape
    labels = {parameter: value for parameter, value in found.arguments.items() if parameter in CLASSES}
    assert set(labels.values()) == {7} or not set(CLASSES) & set(parameters_of(name))
    assert {**found.arguments, **labels, **dict.fromkeys(labels)} == {
        **reference_of(made).arguments, **dict.fromkeys(labels)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            ["--space", "nasbench201", "--space-args", '{"stem_out_channels": 8}'],
            "stem_out_channels=4 in the table, stem_out_channels=8 requested",
        ),
        (["--batch-size", "2"], "measured with batch size 1, not with 2"),
        (["--input-size", "64"], "input_size=32 in the table, input_size=64 requested"),
    ],
    ids=["arguments", "batch size", "input size"],
)
def test_what_is_not_that_of_the_table_is_refused(fails, operators, options, complaint):
    assert complaint in fails("search", "--latency-estimator", operators, "--target", "1000ms", *options)
