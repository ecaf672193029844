# SPDX-License-Identifier: Apache-2.0
"""Run the notebook of the documentation and store what its cells print, which its page shows.

python docs/run_notebook.py        # about a minute on an idle machine
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from pathlib import Path

NOTEBOOK = Path(__file__).parent / "quickstart.ipynb"


def main() -> None:
    """Run all cells in one ``__main__`` and a temporary folder; write the notebook with their text."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    names = globals()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.environ["NNI_LATENCY_DATABASE"] = str(Path(folder) / "quickstart.sqlite")
        for cell in notebook["cells"]:
            if cell["cell_type"] != "code":
                continue
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec("".join(cell["source"]), names)
            text = printed.getvalue().splitlines(keepends=True)
            cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": text}] if text else []
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
