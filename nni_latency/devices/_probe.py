# SPDX-License-Identifier: Apache-2.0
"""What is looked at on a device before anything is measured there. Standard library alone, Python 3.8 or later.

The program is sent behind the agent's source, whose readers of facts and conditions it uses.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import sysconfig
import time
from importlib import metadata
from typing import Any, Iterable

#: Readings of the clock.
_READINGS = 2000


def clock() -> dict[str, Any]:
    """Return the resolution of the clock by which runs are timed [s], and whether it ever went back."""
    info = time.get_clock_info("perf_counter")
    readings = [time.perf_counter() for _ in range(_READINGS)]
    steps = [after - before for before, after in zip(readings, readings[1:])]
    # A system may announce a finer clock than it has.
    smallest = min([step for step in steps if step > 0] or [readings[-1] - readings[0]])
    return {
        "resolution": max(info.resolution, smallest),
        "is_monotonic": bool(info.monotonic) and all(step >= 0 for step in steps),
    }


def installed(modules: Iterable[str]) -> dict[str, str]:
    """Return the versions of those modules that are installed, without importing them; empty for an unknown one."""
    return {module: _version(module) for module in modules if importlib.util.find_spec(module) is not None}


def _version(module: str) -> str:
    try:
        return metadata.version(module)
    except metadata.PackageNotFoundError:
        pass
    # Such as onnxruntime-gpu and tensorrt-cu12.
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"] or ""
        if name.lower().replace("-", "_").startswith(module + "_"):
            return distribution.version
    return ""


def is_managed() -> bool:
    """Whether packages of this Python belong to the system, so that pip refuses to install any (PEP 668)."""
    marker = os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
    return sys.prefix == sys.base_prefix and os.path.exists(marker)


def main(agent: str, modules: Iterable[str]) -> None:
    """Print what was found as one line of JSON."""
    space: dict[str, Any] = {"__name__": "agent"}
    exec(compile(agent, "agent", "exec"), space)
    found = {
        "facts": space["facts"](),
        "conditions": space["conditions"](),
        "clock": clock(),
        "packages": installed(modules),
        "is_managed": is_managed(),
        "home": os.path.expanduser("~"),
    }
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "nni_latency_probe":
    main(AGENT, MODULES)  # type: ignore[name-defined]  # noqa: F821
