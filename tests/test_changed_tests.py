# SPDX-License-Identifier: Apache-2.0
"""``make check``: the tests that belong to a changed file."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]

_tests_of = runpy.run_path(str(_ROOT / ".ci" / "changed_tests.py"))["tests_of"]


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("tests/test_units.py", ["tests/test_units.py"]),
        ("tests/test_that_was_removed.py", []),
        ("nni_latency/units.py", ["nni_latency/units.py", "tests/test_units.py"]),
        ("lut/table.json", ["tests/test_packaging.py"]),
        ("README.md", ["tests/cli/test_documented_commands.py"]),
        ("CHANGELOG.md", []),
    ],
)
def test_tests_of_a_file(changed, tests):
    assert _tests_of([changed]) == tests


@pytest.mark.parametrize(
    ("changed", "test"),
    [
        ("plugins/nni_latency_openvino/setup.cfg", "tests/test_deployment_runtimes.py"),
        ("tests/cli/tiny.py", "tests/cli/test_cli_build_lut.py"),
        ("examples/demo_service.py", "tests/service/test_demo.py"),
    ],
)
def test_a_file_that_tests_name_has_those_tests(changed, test):
    assert test in _tests_of([changed])


def test_a_module_without_tests_of_its_name_has_those_of_its_room():
    found = _tests_of(["nni_latency/platforms/__init__.py"])
    assert found == sorted(
        [
            "nni_latency/platforms/__init__.py",
            *(f"tests/platforms/{path.name}" for path in _ROOT.glob("tests/platforms/test_*.py")),
        ]
    )


def test_what_all_rooms_share_has_the_tests_that_belong_to_no_room():
    found = _tests_of(["nni_latency/errors.py"])
    assert "tests/test_messages.py" in found
    assert not [path for path in found if path.count("/") > 1]
