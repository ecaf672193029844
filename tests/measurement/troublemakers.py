# SPDX-License-Identifier: Apache-2.0
"""Candidates that crash, hang or raise, and a runtime that needs no torch, so that a worker starts at once."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from nni_latency.measurement import PerfClock
from nni_latency.measurement.runtimes import Runtime
from nni_latency.platforms import Platform


class PlainRuntime(Runtime):
    """Run functions of one number as they are."""

    name = "plain"
    platform = Platform("here", "plain")
    clock = PerfClock()

    def session(self):
        """Set nothing."""
        return contextlib.nullcontext()

    def prepare(self, subject, inputs):
        """Take it as it is built."""
        return subject.build()

    def inputs(self, like):
        """Return a number."""
        return like[0]

    def reference(self):
        """Return what does nothing."""
        return lambda value: value, 0


class BrokenRuntime(PlainRuntime):
    """A runtime that cannot begin."""

    def reference(self):
        """Fail, as a device that is not there does."""
        raise RuntimeError("no such device")


def fine():
    """Make a candidate that works."""
    return lambda value: value + 1


def raising():
    """Make a candidate that raises."""

    def run(value):
        raise ValueError(f"cannot take {value}\nand much more")

    return run


def crashing():
    """Make a candidate that crashes."""
    return lambda value: os.kill(os.getpid(), signal.SIGSEGV)


def killed():
    """Make a candidate that is killed, as the system does when memory runs out."""
    return lambda value: os.kill(os.getpid(), signal.SIGKILL)


def leaving():
    """Make a candidate that ends the process."""
    return lambda value: os._exit(3)


def hanging():
    """Make a candidate that never ends."""
    return lambda value: time.sleep(3600.0)


def worn_out(runs):
    """Return what makes candidates that crash after so many runs."""

    def build():
        left = [runs]

        def run(value):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGSEGV)
            return value

        return run

    return build
