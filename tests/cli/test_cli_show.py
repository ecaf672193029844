"""``show`` reads every kind of file that the package writes; a new kind fails here until it does."""

from __future__ import annotations

import importlib
import json
import pkgutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from measured_graphs import fitted
from narrow import WIDTHS, check_lines
from PIL import Image
from torch import nn

import nni_latency
from nni_latency.cli._saved_files import SAVED_FILES
from nni_latency.cli._search_document import SEARCH, search_schema
from nni_latency.datasets import load_networks
from nni_latency.documents import DocumentFormat, format_of
from nni_latency.energy import DeviceFacts, MeasuredOperator, PortableModel, cross_validate
from nni_latency.errors import LatencyError
from nni_latency.fusion import save_rules
from nni_latency.kernels import Kernel, KernelPredictor, KernelPredictors, MeasuredKernel, shipped_prior
from nni_latency.loading import load_estimator
from nni_latency.measurement import MemoryStore
from nni_latency.operators import FusionRule, FusionRules, FusionTimes, OpSpec
from nni_latency.platforms import Platform
from nni_latency.profiling import PROFILE_PROTOCOL, own_model, profile_operators
from nni_latency.testing import FakeMeter, FakeRuntime

_DATA = Path(__file__).parents[1] / "tables" / "data"

#: Read by ``database import`` alone: an earlier version of the package wrote it.
_NO_LONGER_WRITTEN = {"nni_latency.operator_memo"}

#: What lies in a file of the tests, with something that a person looks for in it.
_KEPT = {
    "nni_latency.lookup_table": ("lookup_table_2.json", "latency [us]"),
    "nni_latency.operator_table": ("operator_table_1.json", "Families of operators"),
    "nni_latency.validation": ("validation_1.json", "within 10 %"),
    "nni_latency.benchmark_points": ("benchmark_points_1.json", "batch sizes"),
    "nni_latency.acts": ("acts_1_refined.json", "latency = "),
    "nni_latency.transfer": ("transfer_1.json", "TransferEstimator(device 0"),
}


def _write_energy(path):
    ops = [MeasuredOperator(OpSpec.of("relu", [(1, 2**power)]), 1e-6 + 2**power * 1e-9, 1e-4) for power in range(8, 20)]
    facts = {"mine": DeviceFacts(1e12, 8e9, 100.0, 20.0, 1e-6)}
    model = PortableModel(n_trees=3).fit({"mine": ops}, facts)
    model.bounds_ = {"latency": 0.05, "energy": 0.07}
    model.held_out_ = cross_validate(ops, model=model, name="mine").held_out
    return model.save(path)


def _write_profile(path):
    runtime = FakeRuntime(lambda op: {"linear": 0.004}.get(op.kind, 0.001))
    protocol = replace(PROFILE_PROTOCOL, n_warmup=1, n_run=2, time_budget=1e6, half_width=0.0, processes=1)
    models = [own_model("mine", nn.Sequential(nn.Flatten(), nn.Linear(192, 8)).eval(), torch.zeros(1, 3, 8, 8))]
    how = {"protocol": protocol, "store": MemoryStore(), "timer": lambda: runtime.clock.now}
    return profile_operators(models, runtime, meters=(FakeMeter(runtime.clock),), **how).save(path)


def _write_search(path):
    content = {
        **SEARCH.head, "space": "fbnet", "dataset": "digits", "strategy": "fbnet", "estimator": "energy.json",
        "platform": "pi.torch.fp32.t1", "metric": "energy", "unit": "J", "target": 0.05, "predicted": 0.04,
        "measured": 0.042, "measured_at_speed": 0.041, "meets_target": True, "not_measured": None, "accuracy": 0.9,
        "choices": {"layer0": "k3_e1"}, "history": [],
    }  # fmt: skip
    path.write_text(json.dumps(content))
    return path


def _write_kernels(path):
    kernels = [Kernel.of("relu_block", HW=8, CIN=count) for count in range(4, 64, 4)]
    seconds = [1e-8 * kernel["CIN"] for kernel in kernels]
    predictor = KernelPredictor(candidates=("process",)).fit(kernels, seconds)
    measured = [MeasuredKernel(value, value, value, kernel) for kernel, value in zip(kernels, seconds, strict=True)]
    return KernelPredictors(
        predictors={"relu": predictor}, kernels=tuple(measured), platform=Platform("pi", "torch")
    ).save(path)


def _write_rules(path):
    rule = FusionRule(("conv2d", "relu"), True, times=FusionTimes(4e-4, 1e-4, 4e-4, 0.1))
    return save_rules(FusionRules(Platform("cpu", "onnxruntime"), (rule,)), path)


#: What is written anew, with something that a person looks for in it.
_WRITTEN = {
    "nni_latency.energy": (_write_energy, "mine"),
    "nni_latency.kernels": (_write_kernels, "relu"),
    "nni_latency.operator_profile": (_write_profile, "linear"),
    "nni_latency.search": (_write_search, "40 mJ"),
    "nni_latency.fusion": (_write_rules, "one kernel"),
    "nni_latency.kernel_prior": (lambda path: shipped_prior().save(path), "conv_bn"),
    "nni_latency.graph_predictor": (lambda path: fitted(5).save(path), "device-fast"),
    "nni_latency.networks": (lambda _: Path(nni_latency.__file__).parent / "datasets" / "networks.zip", "families"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a file of every kind, by its format."""
    folder = tmp_path_factory.mktemp("files")
    kept = {name: _DATA / file for name, (file, _) in _KEPT.items()}
    return {**kept, **{name: write(folder / name) for name, (write, _) in _WRITTEN.items()}}


def _formats():
    """Return the name of every format that a module of the package defines."""
    names = (item.name for item in pkgutil.walk_packages(nni_latency.__path__, "nni_latency."))
    modules = [importlib.import_module(name) for name in names if not name.endswith("__main__")]
    return {value.name for module in modules for value in vars(module).values() if isinstance(value, DocumentFormat)}


def test_every_kind_of_file_is_known():
    assert _formats() - _NO_LONGER_WRITTEN == set(SAVED_FILES) == {*_KEPT, *_WRITTEN}


@pytest.mark.parametrize("name", [*_KEPT, *_WRITTEN])
def test_every_kind_of_file_is_shown(run, files, name, monkeypatch):
    expected = {**_KEPT, **_WRITTEN}[name][1]
    assert format_of(files[name]) == name
    assert expected in run("show", files[name]).stdout
    for width in WIDTHS:
        monkeypatch.setenv("COLUMNS", str(width))
        check_lines(run("show", files[name], "--verbose").stdout, width)
    assert json.loads(run("show", files[name], "--json").stdout)
    assert run("show", files[name], "--format", "csv").stdout.strip()


@pytest.mark.parametrize(
    ("name", "title"),
    [("nni_latency.lookup_table", "latency [us]"), ("nni_latency.operator_table", "The costliest operators")],
)
def test_a_table_begins_with_its_latencies(run, files, name, title):
    shown, everything = (run("show", files[name], *more).stdout for more in ((), ("--verbose",)))
    assert shown.startswith(title)
    assert shown.index("Table") > shown.index("layer" if "lookup" in name else "Families of operators")
    assert "Protocol" not in shown
    assert "device_kind" not in shown
    assert everything.startswith(title)
    assert everything.index("Platform") < everything.index("Protocol")


@pytest.mark.parametrize("name", [*_KEPT, *_WRITTEN])
def test_every_kind_of_file_is_drawn_or_says_where_a_picture_is(run, fails, files, name):
    if SAVED_FILES[name].draw is None:
        assert SAVED_FILES[name].undrawn in fails("show", files[name], "--plot", "picture.png")
        return
    run("show", files[name], "--plot", "picture.png")
    with Image.open("picture.png") as picture:
        assert min(picture.size) > 300


@pytest.mark.parametrize("name", [*_KEPT, *_WRITTEN])
def test_a_file_that_is_damaged_is_named(fails, files, name, tmp_path):
    content = Path(files[name]).read_bytes()
    damaged = tmp_path / "damaged"
    damaged.write_bytes(content[: len(content) // 2] if name != "nni_latency.networks" else content[:2000])
    assert "damaged" in fails("show", damaged)


def test_kernels_of_an_earlier_version_are_shown_and_not_drawn(run, fails):
    assert "relu_block" in run("show", _DATA / "kernels_1.json").stdout
    assert "Build them again" in fails("show", _DATA / "kernels_1.json", "--plot", "picture.png")


def test_a_search_of_the_first_version_is_shown_in_its_own_unit(run, tmp_path):
    content = json.loads(_write_search(tmp_path / "new.json").read_text())
    fields = ("target", "predicted", "measured", "measured_at_speed")
    first = {(f"{name}_s" if name in fields else name): value for name, value in content.items() if name != "unit"}
    (tmp_path / "old.json").write_text(json.dumps({**first, "version": 1, "history": [{"index": 0, "latency": 0.04}]}))
    assert run("show", "old.json").stdout == run("show", "new.json").stdout
    read = json.loads(run("show", "old.json", "--json").stdout)
    assert (read["unit"], read["target"], read["history"]) == ("J", 0.05, [{"index": 0, "cost": 0.04}])


def test_the_schema_of_a_search_is_that_of_the_documentation():
    path = Path(__file__).parents[2] / "docs" / "reference" / "search.schema.json"
    assert json.loads(path.read_text()) == search_schema(), "run docs/export_schema.py"


def test_a_network_needs_rules(fails, files):
    message = fails("show", files["nni_latency.energy"], "--network", "net.py:Net")
    assert "is no file of fusion rules" in message


def test_a_predictor_is_an_estimator_by_its_file_where_it_needs_no_argument(fails, files):
    assert load_estimator(files["nni_latency.energy"]).metric == "energy"
    with pytest.raises(LatencyError, match="device-fast"):
        load_estimator(files["nni_latency.graph_predictor"])


def test_a_data_set_that_is_shown_says_what_it_holds(run, files):
    found = load_networks(files["nni_latency.networks"])
    content = json.loads(run("show", files["nni_latency.networks"], "--json").stdout)
    assert sum(row["networks"] for row in content["platforms"]) == len(found)
    assert content["families"] == list(found.families)
