# SPDX-License-Identifier: Apache-2.0
"""What the entry point names: the hooks of this plugin."""

from __future__ import annotations

from nni_latency import hookimpl
from nni_latency.plugins import Register
from nni_latency_litert._runtime import LiteRt


@hookimpl
def register_runtimes(register: Register) -> None:
    """Register the runtime."""
    register("litert", LiteRt)
