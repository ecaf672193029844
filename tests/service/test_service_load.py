# SPDX-License-Identifier: Apache-2.0
"""Mixed requests of many clients while workers are killed: ``examples/service_load.py`` with fewer requests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).parents[2] / "examples" / "service_load.py"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_nothing_is_lost_under_load():
    command = [sys.executable, str(_SCRIPT), "--requests", "600", "--kill-every", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=840)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "Nothing was lost, and nothing failed but by a stated refusal."
    assert "Traceback" not in done.stdout + done.stderr
