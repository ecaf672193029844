# SPDX-License-Identifier: Apache-2.0
"""README and docs: every command is one that exists, and those that measure nothing run as they are printed."""

from __future__ import annotations

import csv
import json
import re
import shutil
import warnings
from pathlib import Path

import click
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from documented import DOCUMENTS, ROOT, commands, commands_in
from measured_graphs import fitted, save_nodes, write_measured
from narrow import check_lines
from nni_latency_service import ApiKeys

from nni_latency import datasets
from nni_latency.cli import main
from nni_latency.cli._outputs import OutputFile
from nni_latency.database import DatabaseStore
from nni_latency.fusion import save_rules
from nni_latency.measurement import Protocol
from nni_latency.micro_benchmarks import BLOCKS, draw_blocks, run_benchmarks
from nni_latency.operators import FusionRule, FusionRules, features_of
from nni_latency.platforms import Platform
from nni_latency.profiling import own_model, profile_operators
from nni_latency.tables import LookupTable, shipped_tables
from nni_latency.testing import FakeMeter, FakeRuntime

_COMMANDS = commands()

#: Where every command is printed first.
_FIRST_PLACES = {words: place for place, words in reversed(_COMMANDS)}

#: Commands that measure, or need what was measured on this machine, or other devices.
_MEASURING = {
    *("build-lut", "validate", "search"),
    *("measure", "query", "serve", "farm", "devices"),
    *("dataset measure", "table rebuild", "learn device", "learn graph", "learn kernels"),
}

#: Estimators that measure on demand.
_ON_DEMAND = ("module", "graph", "network")

_NETWORK = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, width=8):
        super().__init__(nn.Conv2d(3, width, 3, stride=2), nn.BatchNorm2d(width), nn.ReLU())
"""


def _contexts(words, command=main, name="nni-latency", parent=None):
    """Parse a command line; return the context of every command in it, from the group to the last."""
    context = command.make_context(name, list(words), parent=parent)
    if not isinstance(command, click.Group):
        return [context]
    # Since click 8.2 the public name is deprecated.
    protected = context._protected_args if hasattr(context, "_protected_args") else context.protected_args
    rest = [*protected, *context.args]
    if not rest:
        # A group that runs without a command.
        return [context]
    inner, found, left = command.resolve_command(context, rest)
    return [context, *_contexts(left, found, inner, context)]


def _measures(words):
    context = _contexts(words)[-1]
    asked = str(context.params.get("latency_estimator", ""))
    tabulated = context.params.get("sources") and not context.params.get("samples")
    learned_from = words[0] == "learn" and (context.params.get("files") or context.params.get("data"))
    return (
        (({words[0], " ".join(words[:2])} & _MEASURING) and not (tabulated or learned_from))
        or context.params.get("from_database", False)
        or (words[0] == "profile" and context.params["measure"])
        or asked.partition(":")[0] in _ON_DEMAND
        or any("://" in word for word in words)
    )


def test_documents_have_commands():
    assert len(_COMMANDS) > 50
    assert {"README.md", "commands/learn.rst", "getting_started.rst"} <= {
        place.partition(":")[0] for place, _ in _COMMANDS
    }


def test_commands_of_a_list_item_that_goes_on_are_found():
    block = "  .. code-block:: console\n\n     $ nni-latency show a.json \\\n         --quiet\n\n"
    text = f"* A list:\n\n{block}  And more.\n"
    assert list(commands_in(text, ".rst")) == [(5, ("show", "a.json", "--quiet"))]


def test_no_command_of_a_document_is_missed():
    printed = (re.findall(r"\$ nni-latency (?!COMMAND\b)", path.read_text(encoding="utf-8")) for path in DOCUMENTS)
    assert len(_COMMANDS) == sum(map(len, printed))


@pytest.mark.parametrize("words", [pytest.param(words, id=place) for place, words in _COMMANDS])
def test_every_command_parses(words):
    """All options exist, and everything that is required is there; whether the files are is another matter."""
    try:
        _contexts(words)
    except click.exceptions.Exit as end:
        assert end.exit_code == 0


@pytest.fixture(scope="module")
def files(run, tmp_path_factory):
    """Make a folder with every file that the commands read."""
    folder = tmp_path_factory.mktemp("documented")
    table = shipped_tables()["fbnet-224-b1.epyc-25-17-1.torch.fp32.t1"]
    (folder / "demo").mkdir()
    for name in ("TABLE", "table.json", "old.json", "new.json", "nhwc.json", "demo/table.json"):
        shutil.copy(table, folder / name)
    for name in ("cells.json", "my_space.json"):
        shutil.copy(ROOT / "tests" / "tables" / "data" / "operators_1.json", folder / name)
    layers = [f"layer{place}" for place in range(22)]
    run("table", "subset", table, "--layers", ",".join(layers[:2]), "--out", folder / "part.json")
    run("table", "subset", table, "--layers", ",".join(layers[2:]), "--out", folder / "rest.json")
    for name, unit in (("fbnet-cpu.txt", "us"), ("lut.txt", "ms")):
        run("table", "export", table, "--format", "text", "--unit", unit, "--out", folder / name)
    runtime = FakeRuntime(lambda op: 2e-6 + 3e-11 * features_of(op).flops)
    protocol, series = Protocol(n_warmup=0, rounds=1, time_budget=600.0), [(block, (1,)) for block in draw_blocks(24)]
    run_benchmarks(runtime, protocol, folder / "others.json", series=series)
    for name in ("points.<platform>.json", "points.json"):
        shutil.copy(folder / "others.json", folder / name)
    run("learn", "device", folder / "others.json", "--out", folder / "acts.json")
    save_rules(FusionRules(Platform("epyc-7763"), (FusionRule(("conv2d", "relu"), True),)), folder / "rules.json")
    (folder / "net.py").write_text(_NETWORK)
    with warnings.catch_warnings():
        # The exporter that needs no further package is on its way out.
        warnings.simplefilter("ignore")
        network = torch.nn.Conv2d(3, 8, 3).eval()
        torch.onnx.export(network, torch.zeros(1, 3, 224, 224), str(folder / "net.onnx"), dynamo=False)
    graph_platform = Platform("epyc-7763", "onnxruntime")
    fitted(2, [(graph_platform, 1.0)]).save(folder / "graph.safetensors")
    for name in ("measured", "mine"):
        write_measured(folder / name, [(graph_platform, 1.0)])
    save_nodes(folder / "mixed.zip", {graph_platform: True})
    for name, platform in (("xeon", "xeon"), ("epyc", "epyc"), ("monday", "epyc"), ("tuesday", "epyc")):
        save_nodes(folder / f"{name}.zip", {Platform(platform, "onnxruntime"): True}, count=10)
    shutil.copytree(folder / "measured" / "onnx", folder / "networks")
    for name, number in (("a.onnx", 1), ("b.onnx", 2)):
        shutil.copy(folder / "networks" / f"n{number}.onnx", folder / name)
    (folder / "nnlqp" / "onnx").mkdir(parents=True)
    shutil.copy(folder / "net.onnx", folder / "nnlqp" / "onnx" / "net.onnx")
    (folder / "nnlqp" / "gt.txt").write_text("1 onnx/net.onnx 1 3.5 net laptop\n")
    run("dataset", "merge", folder / "measured" / "gt.txt", "--out", folder / "networks.zip")
    keys = {"Conv-input:224x224x3-output:112x112x24": 1.5, "Logits-input:1x1x1536-output:1000": 0.9}
    (folder / "jetson.json").write_text(json.dumps(keys))
    elsewhere = ("--space", "none", "--unit", "ms", "--platform", "jetson", "--out", folder / "jetson-table.json")
    run("table", "import", folder / "jetson.json", *elsewhere)
    _write_latencies(folder, layers)
    _write_operators(folder)
    _write_own_space(folder)
    run("learn", "energy", f"a30={folder}/a30_operators.csv", "--training", "trees=5", "--out", folder / "energy.json")
    for name in ("mine.sqlite", "theirs.sqlite", "colleague.sqlite"):
        DatabaseStore(str(folder / name)).close()
    keys = ApiKeys([])
    keys.add("alice", "read")
    keys.save(folder / "keys.json")
    return folder


def _write_operators(folder):
    """Write measured operators as a table and as a profile."""
    rows = [f'ReLU(),"(1, {2**power})",{1e-6 + 2**power * 1e-9},{power}' for power in range(6, 18)]
    header = "operator,input_shape,latency_s,energy_mj"
    (folder / "a30_operators.csv").write_text("\n".join([header, *rows]) + "\n")
    network = torch.nn.Sequential(*(torch.nn.Linear(size, 2 * size) for size in (4, 8, 16, 32, 64, 128)))
    runtime = FakeRuntime(lambda op: 1e-6 * op.input_shapes[0][-1])
    profile = profile_operators(
        [own_model("net", network, torch.zeros(1, 4))],
        runtime,
        protocol=Protocol(n_warmup=0, rounds=1, time_budget=1e9),
        target=1.0,
        store="memory",
        timer=lambda: runtime.clock.now,
        meters=(FakeMeter(runtime.clock),),
    )
    for name in ("here", "a", "b"):
        profile.save(folder / f"operators.{name}.b32.json")


_OWN_SPACE = """
from nni.nas.nn.pytorch import LayerChoice, ModelSpace
from torch import nn

class MySpace(ModelSpace):
    def __init__(self):
        super().__init__()
        self.first = LayerChoice({"small": nn.Conv2d(1, 2, 1), "large": nn.Conv2d(1, 2, 3, padding=1)}, label="first")

    def forward(self, x):
        return self.first(x)
"""


def _write_own_space(folder):
    """Write a space of a user, a table of it by hand, and a sample."""
    (folder / "path" / "to").mkdir(parents=True, exist_ok=True)
    (folder / "path" / "to" / "my_space.py").write_text(_OWN_SPACE)
    costs = {"first": {"small": 0.001, "large": 0.002}}
    # Of labels alone, because every test has a copy of the folder.
    LookupTable.from_latencies({"first": ["small", "large"]}, costs, input_shape=(1, 1, 28, 28)).save(
        folder / "my_table.json"
    )
    (folder / "found.json").write_text('{"first": "large"}')


def _write_latencies(folder, layers):
    """Write 60 networks, two known devices and a new one, as ``transfer`` reads them."""
    draw = np.random.default_rng(0)
    networks, base = draw.integers(0, 9, (60, len(layers))), draw.uniform(1, 5, (len(layers), 9))
    known, other, new = (2 + (base**power)[np.arange(len(layers)), networks].sum(axis=1) for power in (1.0, 0.6, 0.8))
    for name, header, rows in (
        ("A.csv", layers, networks),
        ("L.csv", ["laptop", "phone"], np.stack([known, other], axis=1)),
        ("T.csv", ["board"], new[:, None]),
    ):
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows(
                [["index", *header], *([place, *row] for place, row in enumerate(rows.tolist()))]
            )


def _typed(words):
    """Return the words as a shell hands them over: files in place of patterns, the home in place of its sign."""
    for word in words:
        yield from sorted(map(str, Path().glob(word))) if "*" in word else [str(Path(word).expanduser())]


@pytest.fixture
def _few_networks_ship(monkeypatch):
    """Let commands learn from a few of the networks that ship; all of them take up to 20 minutes of a processor."""
    read, load = datasets.measured_networks, datasets.load_networks

    def few(source):
        networks = read(source)
        if str(source) != "shipped":
            return networks
        platforms = sorted({item.platform.id for item in networks})[:2]
        return [item for item in networks if item.platform.id in platforms][::40]

    monkeypatch.setattr(datasets, "measured_networks", few)
    monkeypatch.setattr(datasets, "load_networks", lambda path=None: load(path) if path else load()[::10])


@pytest.mark.usefixtures("_few_networks_ship")
@pytest.mark.slow
@pytest.mark.parametrize("words", [pytest.param(words, id=place) for words, place in _FIRST_PLACES.items()])
def test_commands_that_measure_nothing_run(run, files, monkeypatch, tmp_path, words):
    if _measures(words):
        pytest.skip("it measures, or needs a server")
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("NNI_LATENCY_DATABASE", "mine.sqlite")
    words = list(_typed(words))
    context = _contexts(words)[-1]
    for item in context.command.params:
        if isinstance(item.type, OutputFile):
            by_default = re.findall(r"\[default: ([^\s;\]]+)[;\]]", item.help or "") or [""]
            written = Path(context.params.get(item.name) or by_default[0])
            if written.is_file():
                written.unlink()
    monkeypatch.setenv("COLUMNS", "80")
    printed = run(*words).stdout
    if not {"--help", "--format", "json"} & set(words):
        check_lines(printed, 80)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_that_of_the_documentation(shell):
    variable = "_NNI_LATENCY_COMPLETE"
    assert f"{variable}={shell}_source nni-latency" in (ROOT / "docs" / "cli.rst").read_text(encoding="utf-8")
    made = CliRunner().invoke(main, [], prog_name="nni-latency", env={variable: f"{shell}_source"})
    assert f"{variable}={shell}_complete" in made.output
    typed = {"COMP_WORDS": "nni-latency da", "COMP_CWORD": "da" if shell == "fish" else "1"}
    shown = CliRunner().invoke(main, [], prog_name="nni-latency", env={variable: f"{shell}_complete", **typed})
    assert "dataset" in shown.output


@pytest.mark.parametrize("path", ["README.md", "docs/acts.rst", "docs/benchmarks.rst"])
def test_number_of_blocks_is_the_same_everywhere(run, path):
    number = f"{len(BLOCKS)} blocks"
    assert number in (ROOT / path).read_text(encoding="utf-8")
    assert number in run("learn", "--help").stdout
    assert number in run("learn", "device", "--help").stdout
