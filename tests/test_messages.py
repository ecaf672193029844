# SPDX-License-Identifier: Apache-2.0
"""Messages that a Python caller sees: none advises an option of the command line."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import nni_latency

_ROOT = Path(nni_latency.__file__).parents[1]

#: The modules of the package, of the farm and of the service.
_FILES = [
    path
    for folder in ("nni_latency", "plugins/nni_latency_farm", "plugins/nni_latency_service")
    for path in (_ROOT / folder).rglob("*.py")
]

#: Folders of commands.
_COMMANDS = {"cli", "commands"}

#: An option, unless the text names a whole command that has it.
_OPTION = re.compile(r"(?<![\w-])--[a-z]")
_PROGRAMS = (
    "pip install",
    "nvidia-smi",
    "taskset",
    "nni-latency learn kernels",
    "nni-latency profile --measure",
)


def test_no_message_outside_of_the_command_line_advises_its_options():
    found = []
    for path in _FILES:
        if _COMMANDS & set(path.relative_to(_ROOT).parts):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Constant) and isinstance(node.value, str)) or id(node) in documented:
                continue
            # What begins with an option is a word of another program's command, and no advice.
            if node.value.startswith("--") and " " not in node.value:
                continue
            if _OPTION.search(node.value) and not any(name in node.value for name in _PROGRAMS):
                found.append(f"{path.name}:{node.lineno}: {node.value}")
    assert found == []


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (r"\{len\([^{}]*\)\} (?:(?!run)[a-z]+ )?(?!(?:series|as)\b)[a-z]+s\b", "number_of"),
        (r":[+.\d]*%\}|\} ?%(?![a-z(\"])", "format_percent"),
    ],
)
def test_counted_things_and_percentages_have_one_form(wrong, right):
    """One network, two networks; 4.1 %."""
    files = {path: path.read_text(encoding="utf-8") for path in _FILES if path.name != "units.py"}
    found = {path.name: match[0] for path, text in files.items() if (match := re.search(wrong, text))}
    assert found == {}, f"Use {right} of nni_latency.units."


def test_no_message_puts_an_article_before_a_metric_of_any_name():
    """An energy, a latency: `nni_latency.units.with_article` knows."""
    wrong = re.compile(r"\b[Aa]n? \{[a-z_.]*metric\}")
    files = {path.name: path.read_text(encoding="utf-8") for path in _FILES}
    assert [name for name, text in files.items() if wrong.search(text)] == []
