# SPDX-License-Identifier: Apache-2.0
"""Help, and the pages of the commands, whose options are those of click when the documentation is built."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import nni_latency
from nni_latency.cli import COMMANDS as BUILT_IN
from nni_latency.cli import main
from nni_latency.cli._outputs import WritingCommand

DOCS = Path(__file__).parents[2] / "docs"
README = DOCS.parent / "README.md"

#: What all commands share.
DOCUMENT = DOCS / "cli.rst"

#: A page for each command, or group with its commands.
PAGES = DOCS / "commands"

#: Options of every command, and of every command that prints a table, which are documented once.
COMMON, REPORTING = {"--quiet", "--verbose"}, {"--format"}

#: Short forms, which are documented once, too.
SHORT = {"-o"}


#: Built-in commands, and those of plugins that are installed.
COMMANDS = main.list_commands(click.Context(main))


def _command(name):
    return main.get_command(click.Context(main), name)


def _flags(name):
    """Return the flags of a command, or of all commands of a group."""
    parameters = [item for command in _with_inner(_command(name)) for item in command.params]
    return {text for item in parameters for text in (*item.opts, *item.secondary_opts)}


def _with_inner(command):
    """Return a command and, of a group, all that it holds."""
    inner = command.commands.values() if isinstance(command, click.Group) else []
    return [command, *(found for item in inner for found in _with_inner(item))]


def _paths(name, command):
    """Return the names of a command and, of a group, of all that it holds, each after that of its group."""
    inner = command.commands if isinstance(command, click.Group) else {}
    return [name, *(path for word, item in inner.items() for path in _paths(f"{name} {word}", item))]


def _page(name):
    """Return the page of a command."""
    return (PAGES / f"{name}.rst").read_text(encoding="utf-8")


def _options_in(text):
    """Return the options that a text names."""
    return set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_lists_every_option(run, name):
    command = _command(name)
    shown = run(name, "--help-all" if isinstance(command, WritingCommand) else "--help").stdout
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.opts[0] in shown


def test_help_lists_what_most_people_need_and_the_rest_is_listed_in_sections(run):
    shown, everything = run("build-lut", "--help").stdout, run("build-lut", "--help-all").stdout
    assert "--budget" in shown
    assert "--protocol" not in shown
    assert "--help-all" in shown
    assert "Where measurements are kept" in everything
    assert "--protocol" in everything


def test_help_lists_the_options_of_the_first_page(run):
    lines = re.findall(r"^\$ nni-latency (.+)$", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert lines
    for line in lines:
        words = line.split()
        words = words[: 2 if isinstance(_command(words[0]), click.Group) else 1]
        assert not _options_in(line) - _options_in(run(*words, "--help").stdout), line


def test_quiet_and_verbose_stand_anywhere(run, fails):
    assert run("plugins", "--verbose").stdout == run("--verbose", "plugins").stdout
    assert "exclude each other" in fails("plugins", "--quiet", "--verbose")


def test_common_options_are_documented_once():
    shared = DOCUMENT.read_text(encoding="utf-8")
    assert all(f"``{name}" in shared for name in COMMON | REPORTING | SHORT)


def test_help_lists_every_command(run):
    shown = run("--help").stdout
    assert all(f"  {name} " in shown for name in COMMANDS)


#: What takes longer to load than a wrong option may take to answer.
_SLOW = {"torch", "nni", "sklearn", "scipy.stats", "scipy.optimize", "matplotlib", "sqlalchemy", "pandas", "fastapi"}


def _loaded_by(*commands):
    """Run commands in one process; return their exit codes, and which slow packages it has loaded then."""
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom nni_latency.cli import main\n"
        f"codes = [CliRunner().invoke(main, command).exit_code for command in {commands!r}]\n"
        f"print(codes, sorted({_SLOW!r} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_wrong_options_are_refused_before_anything_slow_is_loaded():
    codes = [2] * len(COMMANDS)
    assert _loaded_by(*([name, "--no-such-option"] for name in COMMANDS)) == f"{codes} []"


def test_help_loads_nothing_slow():
    codes = [0] * (len(COMMANDS) + 1)
    assert _loaded_by(["--help"], *([name, "--help"] for name in COMMANDS)) == f"{codes} []"


def test_tables_and_plugins_are_shown_without_anything_slow():
    table = "fbnet-224-b1.epyc-25-17-1.torch.fp32.t1"
    assert _loaded_by(["plugins"], ["show", table], ["show", "no-such-table"], ["show", "no.json"]) == "[0, 0, 2, 2] []"


def test_version_is_that_of_the_distribution(run):
    from importlib.metadata import version

    assert version("nni_latency") in run("--version").stdout
    assert version("nni_latency") == nni_latency.__version__


def test_unknown_command_is_refused(fails):
    assert "No such command 'datset'. Did you mean 'dataset'?" in fails("datset")
    assert fails("xyzzy").endswith("No such command 'xyzzy'.")


def test_every_command_has_a_page():
    assert set(COMMANDS) <= {path.stem for path in PAGES.glob("*.rst")}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_of_a_command_has_a_reference_of_each_of_its_commands(name):
    shown = re.findall(r"^\.\. command:: (.+)$", _page(name), re.MULTILINE)
    assert sorted(shown) == sorted(_paths(name, _command(name)))


def test_built_in_commands_have_at_most_300_options():
    """What few people change is a field of one option, such as ``--protocol`` or ``--training``."""
    leaves = [item for name in BUILT_IN for item in _with_inner(_command(name)) if not isinstance(item, click.Group)]
    assert sum(isinstance(parameter, click.Option) for item in leaves for parameter in item.params) <= 300


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_of_a_command_names_no_option_that_it_does_not_have(name):
    assert not _options_in(_page(name)) - _flags(name) - COMMON - REPORTING


def test_what_all_commands_share_names_no_option_that_none_has():
    known = {flag for name in COMMANDS for flag in _flags(name)}
    assert not _options_in(DOCUMENT.read_text(encoding="utf-8")) - known - COMMON - {"--help", "--help-all"}
