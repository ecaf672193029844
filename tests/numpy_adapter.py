# SPDX-License-Identifier: Apache-2.0
"""An adapter for tests: its networks compute nothing and have the times that their nodes name. numpy alone."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import time
from pathlib import Path

import numpy as np

#: A network that returns so much late was stopped with its device, or else waited for another process [s].
_STOPPED = 0.1


class _Clock:
    """The clock of a device on which nothing else runs: it stands still while a network waits for other processes."""

    def __init__(self):
        self.real, self.waited = time.perf_counter, 0.0

    def __call__(self):
        return self.real() - self.waited

    def pass_by(self, seconds):
        """Let time pass."""
        until = self.real() + seconds
        while (late := self.real() - until) < 0:
            pass
        self.waited += late if late < _STOPPED else 0.0


_CLOCK = _Clock()
if __name__ == "nni_latency_adapter":
    # In the process of an agent, which measures by this clock.
    time.perf_counter = _CLOCK


class Adapter:
    """Loads networks that are written as JSON; see `numpy_runtime`."""

    name = "the test"

    def __init__(self, settings):
        self.settings = settings

    def facts(self):
        """Return its version, and where it runs."""
        return {"version": "1.0", "threads": self.settings["threads"]}

    def load(self, data):
        """Load a network."""
        return Network(json.loads(data[data.rindex(b'{"nodes"') :]))


class Network:
    """Returns zeros, after the time that its nodes take."""

    def __init__(self, described):
        self.nodes, self.outputs = described["nodes"], described["outputs"]
        self.mischief = described["mischief"]
        if self.mischief == "refuse":
            raise ValueError("the test refuses to load this")

    def run(self, arrays):
        """Do mischief, or run."""
        if self.mischief == "crash":
            ctypes.string_at(0)
        if self.mischief == "abort":
            os.write(1, b"a remark of the runtime\n")
            os.write(2, b"conv.cpp:3: Assertion `size > 0' failed." + 300 * b"!" + b"\n\n")
            os.abort()
        if self.mischief == "hang":
            time.sleep(1e6)
        if self.mischief == "exit":
            os._exit(7)
        if self.mischief == "print":
            os.write(1, b"a runtime that prints\n")
        if self.mischief == "chatter":
            for _ in range(40):
                os.write(2, 2**13 * b"x")
        if self.mischief == "fail":
            raise RuntimeError("the test refuses to run this\nfor no reason")
        if self.mischief == "garbage":
            for line in range(3, 16):
                with contextlib.suppress(OSError):
                    os.write(line, b"\xff" * 64)
        _CLOCK.pass_by(sum(seconds for _, seconds in self._slowed()))
        return [np.zeros(shape, np.float32) for shape in self.outputs]

    def _slowed(self):
        slow = 3 if Path(os.environ.get("NUMPY_ADAPTER_SLOW", "absent")).exists() else 1
        return [(name, slow * seconds) for name, seconds in self.nodes]

    def profile(self, feed, runs):
        """Return the times that the nodes have."""
        took = []
        for _ in range(runs):
            begin = time.perf_counter()
            self.run(feed())
            took.append(time.perf_counter() - begin)
        return {"nodes": self._slowed(), "seconds": took}

    def size(self):
        """Return how many nodes there are."""
        return len(self.nodes)
