# SPDX-License-Identifier: Apache-2.0
"""Commands that plugins add, and what is said of those that break."""

from __future__ import annotations

import sys
from importlib import metadata
from types import ModuleType

import click
import pytest
from click.shell_completion import ShellComplete

from nni_latency.cli import COMMANDS, main
from nni_latency.errors import InvalidValueError
from nni_latency.plugins import GROUP, collect, hookimpl


@click.group("board", help="Look after boards.")
def _board():
    pass


@_board.command("reset")
@click.argument("name")
def _reset(name):
    if name == "none":
        raise InvalidValueError("The board 'none' does not answer.")
    click.echo(f"{name} was reset")


def _lazily():
    """Make it late."""
    raise ZeroDivisionError("on purpose")


@pytest.fixture
def adds(monkeypatch):
    """Have a plugin of the name ``theirs`` add commands."""

    def add(**factories):
        @hookimpl
        def register_commands(register):
            for name, factory in factories.items():
                register(name, factory)

        module = ModuleType("theirs")
        module.register_commands = register_commands
        monkeypatch.setitem(sys.modules, "theirs", module)
        points = [metadata.EntryPoint("theirs", "theirs", GROUP), metadata.EntryPoint("gone", "no_such_module", GROUP)]
        monkeypatch.setattr("nni_latency.cli._added.load_registry", lambda: collect(points))

    return add


def test_added_group_is_listed_and_runs(run, adds):
    adds(board=_board)
    assert "Commands of plugins:\n  board  Look after boards." in run("--help").stdout
    assert "board [OPTIONS] COMMAND" in run("board", "--help").stdout
    assert run("board", "reset", "pi").stdout == "pi was reset\n"


def test_error_of_an_added_command_is_one_sentence(fails, adds):
    adds(board=_board)
    assert fails("board", "reset", "none") == "The board 'none' does not answer."


def test_added_command_is_made_when_it_is_called(run, adds):
    adds(late=_lazily)
    assert "late  Make it late." in run("--help").stdout
    said = "Error: The plugin 'theirs' failed to make 'late': ZeroDivisionError: on purpose\n"
    assert run("late", code=2).stderr == said


def test_what_is_no_command_names_the_plugin(fails, adds):
    adds(odd=dict)
    assert fails("odd") == "The plugin 'theirs' must make a click.Command for 'odd'. Got dict."


def test_name_of_a_built_in_command_names_the_plugin_and_the_built_in_one_runs(run, adds):
    adds(show=_board, board=_board)
    shown = " ".join(run("--help").stdout.split())
    assert "The plugin 'theirs' registers the command 'show', which nni-latency has already." in shown
    assert "show [OPTIONS] [FILE]" in run("show", "--help").stdout
    assert "Look after boards." in shown


def test_unknown_command_is_looked_for_in_plugins_and_those_that_broke_are_named(run, adds):
    adds(board=_board)
    said = run("bord", code=2).stderr
    assert "No such command 'bord'. Did you mean 'board'? The plugin 'gone' did not load: ModuleNotFoundError" in said
    assert "The plugin 'gone' did not load" in run("--help").stdout


def test_clash_of_two_plugins_leaves_the_built_in_commands(run, monkeypatch):
    def collides():
        raise InvalidValueError("Two plugins register the command 'board': 'one' and 'two'.")

    monkeypatch.setattr("nni_latency.cli._added.load_registry", collides)
    shown = run("--help").stdout
    assert all(f"  {name} " in shown for name in COMMANDS)
    assert "Two plugins register the command 'board'" in shown


def test_added_commands_are_completed(adds):
    adds(board=_board)
    found = ShellComplete(main, {}, "nni-latency", "_COMPLETE").get_completions([], "bo")
    assert [(item.value, item.help) for item in found] == [("board", "Look after boards.")]
