# SPDX-License-Identifier: Apache-2.0
"""The notebook of the documentation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "docs" / "quickstart.ipynb"


def _code_cells() -> list[dict[str, object]]:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_notebook_is_stored_with_nothing_but_the_text_that_it_printed():
    cells = _code_cells()
    assert len(cells) > 3
    assert all(cell["execution_count"] is None for cell in cells)
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"stream"}
    printed = "".join(line for output in outputs for line in output["text"])
    # Warnings and errors would name folders of the machine.
    assert "/" not in printed


@pytest.mark.slow
def test_notebook_runs_from_top_to_bottom(tmp_path):
    """In a fresh process, all cells in one ``__main__``, as a kernel runs them."""
    code = "\n\n".join("".join(cell["source"]) for cell in _code_cells())
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout
    assert "measured" in done.stdout
