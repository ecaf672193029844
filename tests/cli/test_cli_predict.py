# SPDX-License-Identifier: Apache-2.0
"""``nni-latency predict`` by a table, and ``plugins``."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from tiny import TINY_KWARGS

from nni_latency.estimators import TableEstimator
from nni_latency.platforms import Platform
from nni_latency.spaces import CANDIDATES, FBNetSpace
from nni_latency.tables import LookupTable

INDICES = (8, 0, 2, 3, 4, 5, 6)
SAMPLE = {f"layer{n}": CANDIDATES[index] for n, index in enumerate(INDICES)}
NAMES = ",".join(SAMPLE.values())

#: Multiply-adds and parameters [million] of the release page of arXiv:1812.03443.
PUBLISHED = {
    "fbnet-a": (249.4, 4.3),
    "fbnet-b": (295.6, 4.8),
    "fbnet-b1": (286.8, 4.1),
    "fbnet-c": (383.0, 5.5),
    "fbnet-c1": (374.2, 4.9),
}


@pytest.fixture
def answer(run, tables):
    """Predict with the tiny table; return the JSON."""

    def ask(architecture=NAMES, *options, table="tiny"):
        command = ["predict", f"fbnet@{architecture}", "--latency-estimator", tables[table], "--format", "json"]
        return json.loads(run(*command, *options).stdout)

    return ask


def test_json_has_its_fields(answer):
    content = answer()
    assert {"latency_s", "low_s", "high_s", "macs", "params", "layers"} <= set(content)
    assert all(set(layer) == {"name", "choice", "latency_s", "share"} for layer in content["layers"])


def test_json_adds_up(answer):
    content = answer()
    assert sum(layer["latency_s"] for layer in content["layers"]) == pytest.approx(content["latency_s"])
    assert sum(layer["share"] for layer in content["layers"]) == pytest.approx(1.0)
    for layer in content["layers"]:
        assert layer["share"] == pytest.approx(layer["latency_s"] / content["latency_s"])


def test_json_is_what_the_table_says(answer, tables):
    estimate = TableEstimator(LookupTable.load(tables["tiny"])).estimate_sample(SAMPLE)
    content = answer()
    assert content["latency_s"] == pytest.approx(estimate.value)
    assert (content["low_s"], content["high_s"]) == pytest.approx((estimate.low, estimate.high))


def test_json_of_a_measured_table_adds_up_as_well(run, built):
    """A measured table has a calibration and intervals, one made by hand has not."""
    command = ["predict", f"fbnet@{NAMES}", "--estimator", built[0], "--format", "json"]
    content = json.loads(run(*command).stdout)
    assert sum(layer["latency_s"] for layer in content["layers"]) == pytest.approx(content["latency_s"])
    assert content["low_s"] < content["latency_s"] < content["high_s"]


def test_json_lists_the_layers_in_order(answer):
    layers = {layer["name"]: layer["choice"] for layer in answer()["layers"]}
    assert layers == {"stem": "conv", **SAMPLE, "head": "1504"}
    assert list(layers) == ["stem", *SAMPLE, "head"]


def test_json_counts_the_work_of_the_network(answer):
    """The parameters are those of the frozen network itself."""
    network = FBNetSpace(num_classes=10, input_size=32, width=0.25, depth=0.25).freeze(SAMPLE)
    assert answer()["params"] == sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_networks_have_the_published_size(answer, name):
    content = answer(name, table="full")
    macs, params = PUBLISHED[name]
    assert content["macs"] == pytest.approx(macs * 1e6, rel=0.01)
    assert content["params"] == pytest.approx(params * 1e6, rel=0.02)


def test_architecture_may_be_indices(answer):
    assert answer(",".join(map(str, INDICES)))["layers"] == answer()["layers"]


def test_architecture_may_be_a_saved_sample(answer, tmp_path):
    (tmp_path / "result.json").write_text(json.dumps(SAMPLE))
    assert answer("result.json")["layers"] == answer()["layers"]


def test_table_of_layers_is_printed(run, tables):
    shown = run("predict", f"fbnet@{NAMES}", "-e", tables["tiny"]).stdout
    for label, choice in SAMPLE.items():
        assert re.search(rf"{label}\W+{choice}\W", shown)
    assert "multiply-adds" in shown
    assert Platform.current("cpu").id in shown


def test_options_that_agree_with_the_table_are_taken(answer):
    assert answer(NAMES, *TINY_KWARGS, "--batch-size", 1, "--device", "cpu") == answer()


def test_other_metrics_keep_their_name(answer):
    content = answer(table="energy")
    assert "energy" in content
    assert "latency_s" not in content


def test_missing_candidates_are_named(fails, tables):
    architecture = "k3_e1,k3_e1,skip,skip,skip,skip,skip"
    complaint = fails("predict", f"fbnet@{architecture}", "-e", tables["holes"])
    assert "'layer0'" in complaint
    assert "k3_e1" in complaint
    assert "nearest" in complaint


def test_missing_candidates_may_be_taken_from_the_nearest(run, tables):
    architecture = "k3_e1,k3_e1,skip,skip,skip,skip,skip"
    command = ["predict", f"fbnet@{architecture}", "-e", tables["holes"], "--format", "json"]
    result = run(*command, "--missing", "nearest")
    assert json.loads(result.stdout)["missing"] == ["layer0:k3_e1", "layer2:skip"]
    assert "taken from the nearest entry or left out: layer0:k3_e1, layer2:skip" in result.stderr


@pytest.mark.parametrize(
    ("space", "options", "both"),
    [
        ("fbnet", ["--kwargs", '{"width": 0.5}'], ("width=0.25", "width=0.5")),
        ("fbnet", ["--kwargs", '{"depth": 1.0}'], ("depth=0.25", "depth=1.0")),
        ("fbnet", ["--input", "3,64,64"], ("input_size=32", "input_size=64")),
        ("fbnet", ["--kwargs", '{"preset": "imagenet"}'], ("preset=cifar", "preset=imagenet")),
        ("nasnet", [], ("'fbnet'", "'nasnet'")),
        ("fbnet", ["--batch-size", "8"], ("batch size 1", "with 8")),
    ],
    ids=["width", "depth", "input", "preset", "space", "batch"],
)
def test_table_of_something_else_is_refused_with_both(fails, tables, space, options, both):
    complaint = fails("predict", f"{space}@{NAMES}", "--latency-estimator", tables["tiny"], *options)
    assert all(text in complaint for text in both)


def test_table_of_another_platform_is_refused_with_both(fails, tables):
    command = ["predict", f"fbnet@{NAMES}", "-e", tables["elsewhere"], "--device", "cpu"]
    complaint = fails(*command)
    assert "unknown.unknown.fp32.t1" in complaint
    assert Platform.current("cpu").device in complaint


def test_unknown_device_lists_what_there_is(fails, tables):
    complaint = fails("predict", f"fbnet@{NAMES}", "-e", tables["tiny"], "--device", "tpu")
    assert "Unknown device 'tpu'. Available: cpu" in complaint


def test_unknown_estimator_lists_what_there_is(fails):
    complaint = fails("predict", f"fbnet@{NAMES}", "-e", "crystal-ball")
    assert "Unknown estimator 'crystal-ball'. Available: " in complaint


@pytest.mark.parametrize(
    ("architecture", "complaint"),
    [
        ("fbnet-z", "must be a published network (fbnet-a, fbnet-b, fbnet-b1, fbnet-c, fbnet-c1)"),
        ("1,2,3", "7 indices or names separated by commas. Got '1,2,3'"),
        ("9,0,0,0,0,0,0", "The choice of 'layer0' must be one of k3_e1"),
        ("fbnet-c", "The network 'fbnet-c' has 22 layers of the full FBNet space"),
    ],
)
def test_unknown_architecture_is_refused(fails, tables, architecture, complaint):
    assert complaint in fails("predict", f"fbnet@{architecture}", "-e", tables["tiny"])


def test_saved_sample_that_is_cut_is_refused(fails, tables, tmp_path):
    (tmp_path / "result.json").write_text('{"layer0": "sk')
    complaint = fails("predict", "fbnet@result.json", "-e", tables["tiny"])
    assert "Cannot read 'result.json' as a saved sample: JSONDecodeError: Unterminated string" in complaint


def test_several_networks_are_compared_by_a_table(run, tables):
    other = ",".join(["skip"] * 7)
    command = ["predict", f"fbnet@{NAMES}", f"fbnet@{other}", "-e", tables["tiny"]]
    found = json.loads(run(*command, "--format", "json").stdout)
    first, second = found["networks"]
    assert {first["network"], second["network"]} == {f"fbnet@{other}", f"fbnet@{NAMES}"}
    assert first["latency_s"] < second["latency_s"]
    (row,) = found["platforms"]
    assert (row["best"], row["sure"]) == (first["network"], True)
    assert row["factor"] == pytest.approx(found["networks"][1]["latency_s"] / found["networks"][0]["latency_s"])
    assert f"Fastest: {first['network']} on " in run(*command).stdout
    energy = run(*command[:-1], tables["energy"]).stdout
    assert "Lowest: " in energy
    assert "Highest: " in energy


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["resnot"], "Unknown network 'resnot'. Available: resnet"),
        (["resnot"], "A network is an ONNX file (net.onnx), a class or function (net.py:Net, package.module:function)"),
        (["net.py"], "'net.py' is a Python file. Name the class or function in it, such as net.py:Net."),
        (["table.txt"], "'table.txt' is not an ONNX file, whose name ends with .onnx."),
        (["resnet18", "resnet18"], "'resnet18' is named twice."),
        (["resnet18", "--input", "3,8,8"], "'resnet18' has a fixed input: omit --input."),
        (["resnet18", "--kwargs", '{"a": 1}'], "--kwargs is for a class, a function or a space, such as net.py:Net."),
        (["nowhere@a"], "Unknown space 'nowhere'"),
        (["fbnet@fbnet-c", "--input", "3,32,30"], "must be a square picture"),
        (["operators@relu()@1x8:float32"], "nni-latency predict NET --estimator TABLE"),
        (["resnet18", "-e", "module"], "'module' measures. Measure the network with: nni-latency measure --by module"),
        (["fbnet@fbnet-c", "-e", "FULL", "--guess", "board"], "--guess needs a predictor of several platforms"),
        (
            ["fbnet@fbnet-c", "-e", "FULL", "--platform", "board"],
            "is for the platform unknown.unknown.fp32.t1, not for",
        ),
    ],
)
def test_what_is_no_network_or_does_not_fit_is_said(fails, tables, tmp_path, words, complaint):
    (tmp_path / "table.txt").write_text("1")
    assert complaint in fails("predict", *(tables["full"] if word == "FULL" else word for word in words))


def test_plugins_lists_what_is_registered(run):
    shown = run("plugins").stdout
    for text in ("estimator", "table", "runtime", "torch", "space", "fbnet", "builtin", "nni_latency"):
        assert text in shown
    rows = list(csv.DictReader(io.StringIO(run("plugins", "--format", "csv").stdout)))
    builtin = [row["plugin"] == "builtin" for row in rows]
    assert builtin == sorted(builtin, reverse=True)
    marks = {row["name"]: row["on_devices"] for row in rows if row["kind"] == "runtime"}
    assert (marks["torch"], marks["benchncnn"], marks["tool"]) == ("False", "True", "True")


def test_plugins_prints_json(run):
    plugins = {plugin["name"]: plugin for plugin in json.loads(run("plugins", "--format", "json").stdout)}
    runtimes = [name + layout for name in ("torch", "torchscript", "torch-compile") for layout in ("", "-nhwc")]
    assert {"table", "module", "graph", "network", *runtimes, "fbnet"} <= set(plugins["builtin"]["registered"])
    assert "serve" in plugins["service"]["registered"]
    assert {plugin["error"] for plugin in plugins.values()} == {None}
