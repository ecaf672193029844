# SPDX-License-Identifier: Apache-2.0
"""The schemas of the documentation are those of the code, as the pydantic of constraints.txt writes them."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

_DOCS = Path(__file__).parents[1] / "docs"

_PUBLISHED = {path.name.partition(".")[0]: path for path in sorted((_DOCS / "reference").glob("*.schema.json"))}


@pytest.fixture(scope="module")
def schemas():
    """Return what makes each schema, as ``docs/export_schema.py`` has it."""
    return runpy.run_path(str(_DOCS / "export_schema.py"))["SCHEMAS"]


def test_every_schema_is_published(schemas):
    assert set(_PUBLISHED) == set(schemas)


@pytest.mark.parametrize("name", _PUBLISHED)
def test_published_schema_is_that_of_the_code(schemas, name):
    assert json.loads(_PUBLISHED[name].read_text(encoding="utf-8")) == schemas[name](), "run docs/export_schema.py"
