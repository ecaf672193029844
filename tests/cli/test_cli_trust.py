# SPDX-License-Identifier: Apache-2.0
"""A file from a stranger runs no code, does not control the terminal, and holds no absurd numbers."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def hostile(tables, tmp_path):
    """Write a table with a field changed; return its path."""

    def write(change, table="tiny"):
        content = json.loads(tables[table].read_text())
        change(content)
        path = tmp_path / "hostile.json"
        path.write_text(json.dumps(content))
        return path

    return write


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """Write a module that leaves a trace when it is imported; return the name of a class in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('trace', 'w').close()\n")
    yield "evil.py:Space"
    assert not (tmp_path / "trace").exists()


_READERS = [
    ("validate",),
    ("build-lut", "--samples", "3", "--from"),
    ("search", "--target", "5ms", "--latency-estimator"),
]


@pytest.mark.parametrize("words", _READERS, ids=lambda words: words[0])
def test_class_that_only_a_file_names_is_not_imported(fails, hostile, evil, words):
    path = hostile(lambda content: content["space"].update(name=evil))
    complaint = fails(*words, path)
    assert f"names the class '{evil}' as its space. Code is not run because a file names it" in complaint
    assert f"name it yourself with --space {evil}" in complaint


def test_control_characters_of_a_file_are_not_printed(run, hostile):
    remark = "before \x1b[2J\x07\x9b31m\u202e after"
    printed = run("show", hostile(lambda content: content["remarks"].append(remark))).output
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(printed)
    assert "before \ufffd[2J" in printed


def test_control_characters_in_a_complaint_are_not_printed(fails, hostile):
    complaint = fails("show", hostile(lambda content: content.update(metric="\x1b[2J")))
    assert "\x1b" not in complaint


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: content.update(input_shape=[1, 3, 10**9, 10**9]), "has more than 2^40 numbers"),
        (lambda content: content.update(input_shape=[1] * 99), "input_shape"),
        (lambda content: content.update(calibration=1e308), "calibration"),
    ],
    ids=["shape", "dimensions", "calibration"],
)
def test_absurd_sizes_are_refused(fails, hostile, change, reason):
    assert reason in fails("show", hostile(change))


@pytest.mark.parametrize("factor", ["1e308", "1e-320", "-1", "nan", "inf", "0"])
def test_absurd_factors_are_refused(fails, tables, tmp_path, factor):
    complaint = fails("table", "scale", tables["tiny"], "--factor", factor, "--out", tmp_path / "out.json")
    assert any(word in complaint for word in ("number", "positive", "must be at most 1e+18"))
    assert not (tmp_path / "out.json").exists()
