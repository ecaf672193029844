# SPDX-License-Identifier: Apache-2.0
"""No output of any command destroys anything: one rule, tried on every option of type output."""

from __future__ import annotations

import click
import pytest

from nni_latency.cli import main
from nni_latency.cli._outputs import OutputFile, OutputFolder


def _commands():
    """Return every command with its words, those of groups too."""

    def walk(words, command):
        if isinstance(command, click.Group):
            for name, inner in command.commands.items():
                yield from walk([*words, name], inner)
        else:
            yield words, command

    context = click.Context(main)
    for name in main.list_commands(context):
        yield from walk([name], main.get_command(context, name))


_COMMANDS = list(_commands())
_OUTPUTS = [
    pytest.param(words, command, item, id=f"{'-'.join(words)}:{item.name}")
    for words, command in _COMMANDS
    for item in command.params
    if isinstance(item.type, OutputFile) and not isinstance(item.type, OutputFolder)
]


def _minimal(command, given, file):
    """Return arguments for everything that a command requires; what is read is `file`."""
    arguments = []
    for item in command.params:
        if item is given or not item.required:
            continue
        choices = getattr(item.type, "choices", None)
        if choices:
            value = next(iter(choices))
        elif isinstance(item.type, OutputFile):
            value = f"other-{item.name}.out"
        elif item.type.name == "quantity":
            value = "1ms"
        else:
            value = "1" if item.type.name in ("float", "integer") else str(file)
        arguments += [value] if isinstance(item, click.Argument) else [item.opts[0], value]
    return arguments


def _naming(item, path):
    return [str(path)] if isinstance(item, click.Argument) else [item.opts[0], str(path)]


def _reading(words, command, given, file):
    """Return a call that reads a file: by a parameter that is required, or by any that may."""
    arguments = [*words, *_minimal(command, given, file)]
    if str(file) in arguments:
        return arguments
    names = ("database", "file", "latency_estimator", "source", "table")
    item = next(item for item in command.params if item.name in names and not isinstance(item.type, OutputFile))
    return [*arguments, *([] if isinstance(item, click.Argument) else [item.opts[0]]), str(file)]


def test_every_path_that_a_command_takes_says_what_it_is():
    """A new option of a file is either one that is read, listed here, or an output."""
    read = {"file", "points", "tests", "architectures", "sources", "target", "data", "data_folder", "prior"}
    read |= {"files", "folder", "model", "models", "campaign", "source"}
    read |= {"keys", "token_file", "tls_cert", "tls_key", "tls_ca"}
    for words, command in _COMMANDS:
        for item in command.params:
            if isinstance(item.type, click.Path) and not isinstance(item.type, OutputFile):
                assert item.name in read, f"{words}: {item.name}"
            if item.name in ("out", "plot", "save"):
                assert isinstance(item.type, OutputFile), f"{words}: {item.name}"


@pytest.mark.parametrize(("words", "command", "item"), _OUTPUTS)
def test_existing_file_needs_overwrite(fails, tmp_path, words, command, item):
    old = tmp_path / "old"
    old.write_text("precious")
    source = tmp_path / "source"
    source.write_text("{}")
    complaint = fails(*words, *_minimal(command, item, source), *_naming(item, old))
    assert "exists. Choose another file, or replace it with --overwrite." in complaint
    assert old.read_text() == "precious"


@pytest.mark.parametrize(("words", "command", "item"), _OUTPUTS)
@pytest.mark.parametrize("through", ["itself", "link"])
def test_input_is_never_an_output(fails, tmp_path, words, command, item, through):
    source = tmp_path / "source"
    source.write_text("precious")
    out = source
    if through == "link":
        out = tmp_path / "link"
        out.symlink_to(source)
    complaint = fails(*_reading(words, command, item, source), *_naming(item, out), "--overwrite")
    assert "is an input of this command, too. Name another file for the output." in complaint
    assert source.read_text() == "precious"


@pytest.mark.parametrize(
    ("words", "command", "item"),
    [value for value in _OUTPUTS if sum(isinstance(other.type, OutputFile) for other in value.values[1].params) > 1],
)
def test_two_outputs_are_two_files(fails, tmp_path, words, command, item):
    other = next(one for one in command.params if isinstance(one.type, OutputFile) and one is not item)
    named = _naming(item, "same.out") + _naming(other, "./same.out")
    source = tmp_path / "source"
    source.write_text("{}")
    rest = _minimal(command, item, source)
    if other.required:
        place = rest.index(other.opts[0])
        del rest[place : place + 2]
    assert "Two outputs cannot both be 'same.out'" in fails(*words, *rest, *named).replace("./", "")


def test_folder_of_results_is_not_mixed_with_an_older_one(fails, tmp_path, tables):
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / "result.json").write_text("precious")
    complaint = fails("search", "--latency-estimator", tables["tiny"], "--target", "1000ms", "--out", "found")
    assert (
        "The folder 'found' is not empty. Choose another folder, or replace its results with --overwrite." in complaint
    )
    assert (tmp_path / "found" / "result.json").read_text() == "precious"


def test_every_command_with_an_output_offers_overwrite():
    for words, command in _COMMANDS:
        if any(isinstance(item.type, OutputFile) for item in command.params):
            assert "--overwrite" in command.get_help(click.Context(command)), words
