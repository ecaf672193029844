# SPDX-License-Identifier: Apache-2.0
"""``nni-latency table rebuild`` on a table that was measured for real."""

from __future__ import annotations

import pytest
from tiny import TINY_OPTIONS

from nni_latency.tables import LookupTable


@pytest.mark.slow
def test_rebuilt_table_is_the_one_that_was_built(run, fails):
    run(
        "build-lut",
        *TINY_OPTIONS,
        "--protocol",
        "rounds=2",
        "--protocol",
        "processes=1",
        "--database",
        "d.sqlite",
        "--out",
        "t.json",
    )
    shown = run("table", "rebuild", "t.json", "--database", "d.sqlite", "--out", "again.json").stdout
    assert "Wrote again.json, coverage 100.0 %" in shown
    assert LookupTable.load("again.json") == LookupTable.load("t.json")
    assert "is an input of this command" in fails(
        "table", "rebuild", "t.json", "--database", "d.sqlite", "--out", "t.json"
    )
    assert "does not have the campaign" in fails(
        "table", "rebuild", "t.json", "--database", "memory", "--out", "x.json"
    )
    run("table", "rebuild", "t.json", "--database", "d.sqlite")
    assert "'t.rebuilt.json' exists" in fails("table", "rebuild", "t.json", "--database", "d.sqlite")
    run("table", "rebuild", "t.json", "--database", "d.sqlite", "--overwrite")
