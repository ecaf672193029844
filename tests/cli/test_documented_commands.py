# SPDX-License-Identifier: Apache-2.0
"""README and docs: commands exist and print what is shown, and code runs, where nothing is measured or trained."""

from __future__ import annotations

import ast
import importlib
import re
import shutil
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from documented import DEVICE, DOCUMENTS, ROOT, check_printed, codes, commands, shown
from documented_files import names_of_code, write_files
from narrow import check_lines

from nni_latency import datasets, learning
from nni_latency.cli import main
from nni_latency.cli._outputs import OutputFile
from nni_latency.micro_benchmarks import BLOCKS
from nni_latency.platforms import Platform

_COMMANDS = commands()

#: Where every command is shown first.
_FIRST_PLACES = {words: place for place, words, _ in reversed(_COMMANDS)}

_CODES = codes()

#: Commands that measure, or need what was measured on this machine, or other devices.
_MEASURING = {
    *("build-lut", "validate", "search"),
    *("measure", "query", "serve", "farm", "devices"),
    *("dataset measure", "table rebuild", "learn device", "learn graph", "learn kernels"),
}

#: Packages whose names the code imports.
_OURS = {"nni", "nni_latency", "nni_latency_farm", "nni_latency_service"}

#: What code measures with, trains by, or needs from elsewhere.
_ELSEWHERE = {
    *("build_table(", "measure_machine(", "ModuleEstimator(", "MeasuredNetworkEstimator(", 'load_estimator("module")'),
    *("NasExperiment(", "experiment.run()", "run_search(", "n_samples=200"),
    *("optuna.", "pruned(", "scaled:", "my_engine", "ToolDevice(", "KernelEstimator("),
    *("Farm(", "LatencyClient(", "service:http"),
    # The files of the tests are made by it.
    "from_latencies",
}

#: Estimators that measure on demand.
_ON_DEMAND = ("module", "graph", "network")


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
        place.partition(":")[0] for place, _, _ in _COMMANDS
    }


def test_no_command_of_a_document_is_missed():
    printed = (re.findall(r"\$ nni-latency (?!COMMAND\b)", path.read_text(encoding="utf-8")) for path in DOCUMENTS)
    assert len(_COMMANDS) == sum(map(len, printed))


@pytest.mark.parametrize("words", [pytest.param(words, id=place) for place, words, _ in _COMMANDS])
def test_every_command_parses(words):
    """All options exist, and everything that is required is there; whether the files are is another matter."""
    try:
        _contexts(words)
    except click.exceptions.Exit as end:
        assert end.exit_code == 0


_TABLE = """
┃ platform                   ┃ latency ┃
┃                            ┃    [ms] ┃
│ epyc-25-1-1.torch.fp32.t1  │    42.3 │
│ xeon-6-167-1.torch.fp32.t1 │    20.3 │
torch 2.13.0 on epyc-25-1-1.torch.fp32.t1, 100.0 %, 2026-11-28
"""


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        (_TABLE, _TABLE.replace("42.3", "42.2")),
        (_TABLE, _TABLE.replace("│", "│   ")),
        (_TABLE, _TABLE.replace("2.13.0", "2.9.1")),
        (_TABLE, _TABLE.replace("2026-11-28", "2027-01-03")),
        (_TABLE, _TABLE.replace("on epyc-25-1-1", "on here")),
        ("...\nxeon-6-167-1.torch.fp32.t1 20.3\n...", _TABLE),
        ("platform ... 100.0 %, 2026-11-28", _TABLE),
    ],
)
def test_output_that_a_document_shows_is_recognised(text, printed):
    check_printed(text, printed, here="here", numbers=True)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        (_TABLE, _TABLE.replace("42.3", "44.3")),
        (_TABLE, _TABLE.replace("[ms]", "[us]")),
        (_TABLE, _TABLE.replace("latency", "energy")),
        (_TABLE, f"{_TABLE}\nmore"),
        (_TABLE, "\n".join(reversed(_TABLE.splitlines()))),
        (_TABLE, _TABLE.replace("on epyc-25-1-1", "on there")),
        ("xeon-6-167-1.torch.fp32.t1 20.3\n...", _TABLE),
    ],
)
def test_other_output_than_a_document_shows_is_an_error(text, printed):
    with pytest.raises(AssertionError):
        check_printed(text, printed, here="here", numbers=True)


def test_numbers_and_units_are_not_compared_unless_that_is_asked():
    check_printed(_TABLE, _TABLE.replace("42.3", "7").replace("[ms]", "[us]"))


@pytest.fixture(scope="module")
def files(run, tmp_path_factory):
    """Make a folder with every file that the commands read."""
    folder = tmp_path_factory.mktemp("documented")
    write_files(folder, run)
    return folder


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
    # No command reads what another one learned of this machine, whose platforms come first, with a mark.
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(learning, "devices_here", lambda: {DEVICE: "cpu"})
    texts = shown(*words)
    words = list(_typed(words))
    reads_files = any(Path(word).exists() for word in words)
    context = _contexts(words)[-1]
    for item in context.command.params:
        if isinstance(item.type, OutputFile):
            by_default = re.findall(r"\[default: ([^\s;\]]+)[;\]]", item.help or "") or [""]
            written = Path(context.params.get(item.name) or by_default[0])
            if written.is_file():
                written.unlink()
    # Documents show what a screen of 88 letters shows, as their code does.
    width = 88 if texts else 80
    monkeypatch.setenv("COLUMNS", str(width))
    printed = run(*words).stdout
    if not {"--help", "--format", "json"} & set(words):
        check_lines(printed, width)
    for text in texts:
        check_printed(text, printed, here=Platform.current().device, numbers=not reads_files)


@pytest.mark.parametrize("code", [pytest.param(code.text, id=code.place) for code in _CODES])
def test_code_imports_what_exists(code):
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in _OURS:
            module = importlib.import_module(str(node.module))
            assert {name.name for name in node.names} <= {*dir(module), *getattr(module, "__all__", ())}


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({code.place.partition(":")[0] for code in _CODES}))
def test_code_that_measures_nothing_runs(files, monkeypatch, tmp_path, page):
    """The blocks of a page run one after another."""
    running = [
        code
        for code in _CODES
        if code.place.startswith(f"{page}:") and not any(name in code.text for name in _ELSEWHERE)
    ]
    if not running:
        pytest.skip("it measures, trains, or needs what is elsewhere")
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("NNI_LATENCY_DATABASE", "mine.sqlite")
    # The targets of the page on NNI are those of smaller networks.
    shutil.copy("faster.json", "table.json")
    names = names_of_code()
    for code in running:
        exec(compile(code.text, code.place, "exec"), names)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_that_of_the_documentation(shell):
    variable = "_NNI_LATENCY_COMPLETE"
    assert f"{variable}={shell}_source nni-latency" in (ROOT / "docs" / "cli.rst").read_text(encoding="utf-8")
    made = CliRunner().invoke(main, [], prog_name="nni-latency", env={variable: f"{shell}_source"})
    assert f"{variable}={shell}_complete" in made.output
    typed = {"COMP_WORDS": "nni-latency da", "COMP_CWORD": "da" if shell == "fish" else "1"}
    completed = CliRunner().invoke(main, [], prog_name="nni-latency", env={variable: f"{shell}_complete", **typed})
    assert "dataset" in completed.output


@pytest.mark.parametrize("path", ["README.md", "docs/acts.rst", "docs/benchmarks.rst"])
def test_number_of_blocks_is_the_same_everywhere(run, path):
    number = f"{len(BLOCKS)} blocks"
    assert number in (ROOT / path).read_text(encoding="utf-8")
    assert number in run("learn", "--help").stdout
    assert number in run("learn", "device", "--help").stdout
