# SPDX-License-Identifier: Apache-2.0
"""What tests of runtimes share: a module that a runtime has prepared, and its input."""

from __future__ import annotations

from nni_latency.measurement import Subject


def prepare(runtime, module, shape):
    """Return what runs a module, and an input of that shape."""
    inputs = runtime.inputs(shape)
    return runtime.prepare(Subject("module", lambda: module, shape), inputs), inputs
