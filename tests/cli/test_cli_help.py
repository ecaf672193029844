"""Help, and the documentation of the commands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import nni_latency
from nni_latency.cli import COMMANDS as BUILT_IN
from nni_latency.cli import ReportingCommand, main
from nni_latency.cli._outputs import WritingCommand

DOCUMENT = Path(__file__).parents[2] / "docs" / "cli.rst"

#: Options of every command, and of every command that prints a table, which are documented once.
COMMON, REPORTING = {"--quiet", "--verbose"}, {"--format"}

#: Short forms, which are documented once, too.
SHORT = {"-o"}


#: Built-in commands, and those of plugins that are installed.
COMMANDS = main.list_commands(click.Context(main))


def _command(name):
    return main.get_command(click.Context(main), name)


def _parameters(name):
    """Return the parameters of a command, or of all commands of a group."""
    return [parameter for command in _with_inner(_command(name)) for parameter in _own(command)]


def _with_inner(command):
    """Return a command and, of a group, all that it holds."""
    inner = command.commands.values() if isinstance(command, click.Group) else []
    return [command, *(found for item in inner for found in _with_inner(item))]


def _own(command):
    """Return the parameters that are documented with the command."""
    shared = COMMON | (REPORTING if isinstance(command, ReportingCommand) else set())
    return [parameter for parameter in command.params if not shared & set(parameter.opts)]


def _section(name):
    """Return what the documentation says about one command."""
    text = DOCUMENT.read_text(encoding="utf-8")
    match = re.search(rf"^``{name}``\n-+\n(.*?)(?=^``[\w-]+``\n-+\n|\Z)", text, re.DOTALL | re.MULTILINE)
    assert match, f"docs/cli.rst has no section about {name}"
    return match[1]


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


def test_quiet_and_verbose_stand_anywhere(run, fails):
    assert run("plugins", "--verbose").stdout == run("--verbose", "plugins").stdout
    assert "exclude each other" in fails("plugins", "--quiet", "--verbose")


def test_common_options_are_documented_once():
    before, _, _ = DOCUMENT.read_text(encoding="utf-8").partition("``measure``\n---")
    assert all(f"``{name}" in before for name in COMMON | REPORTING | SHORT)


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


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_documented(name):
    section = _section(name)
    options = [
        text
        for parameter in _parameters(name)
        if isinstance(parameter, click.Option)
        for text in (*parameter.opts, *parameter.secondary_opts)
        if text not in SHORT
    ]
    missing = [text for text in options if not re.search(rf"(?<![\w-]){re.escape(text)}(?![\w-])", section)]
    assert not missing


def test_built_in_commands_have_at_most_300_options():
    """What few people change is a field of one option, such as ``--protocol`` or ``--training``."""
    leaves = [item for name in BUILT_IN for item in _with_inner(_command(name)) if not isinstance(item, click.Group)]
    assert sum(isinstance(parameter, click.Option) for item in leaves for parameter in item.params) <= 300


@pytest.mark.parametrize("name", COMMANDS)
def test_documentation_names_no_option_that_is_not_there(name):
    known = (
        COMMON
        | REPORTING
        | {text for parameter in _parameters(name) for text in (*parameter.opts, *parameter.secondary_opts)}
    )
    assert not set(re.findall(r"(?<![\w-])--[a-z][\w-]*", _section(name))) - known
