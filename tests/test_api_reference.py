# SPDX-License-Identifier: Apache-2.0
"""docs/api: the names that the reference takes from docstrings are public, and those of the package are all there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import nni_latency

_DOCS = Path(__file__).parents[1] / "docs"

_MODULE = re.compile(r"^\.\. automodule:: (\S+)\n   :members: ((?:.+\n)+?)   :show-inheritance:", re.MULTILINE)

_DATA = re.compile(r"^\.\. py:data:: (\S+)\.(\w+)$", re.MULTILINE)


def _documented():
    """Return the names that the pages show, by module."""
    found = {}
    for path in (_DOCS / "api.rst", *sorted((_DOCS / "api").glob("*.rst"))):
        text = path.read_text(encoding="utf-8")
        for module, names in _MODULE.findall(text):
            found.setdefault(module, set()).update(name.strip() for name in names.replace("\n", " ").split(","))
        for module, name in _DATA.findall(text):
            found.setdefault(module, set()).add(name)
    return found


_DOCUMENTED = _documented()


def test_reference_has_every_name_of_the_package():
    assert _DOCUMENTED["nni_latency"] == set(nni_latency.__all__)


@pytest.mark.parametrize("name", _DOCUMENTED)
def test_names_in_the_reference_are_public(name):
    module = importlib.import_module(name)
    assert _DOCUMENTED[name] <= set(getattr(module, "__all__", dir(module)))
