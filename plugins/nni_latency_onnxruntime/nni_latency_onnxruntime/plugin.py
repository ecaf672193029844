# SPDX-License-Identifier: Apache-2.0
"""Hooks of this plugin, named by its entry point."""

from __future__ import annotations

import nni_latency.measurement.runtimes as runtimes
import nni_latency_onnxruntime
from nni_latency import hookimpl
from nni_latency.plugins import Register


@hookimpl
def register_runtimes(register: Register) -> None:
    """Register the runtime."""
    register("onnxruntime", _make)


def _make(
    device: str = "cpu",
    *,
    threads: int = 1,
    precision: str = "fp32",
    provider: str | None = None,
    place: runtimes.MakePlace | None = None,
) -> runtimes.Runtime:
    """Run networks in ONNX Runtime, with all of its optimisations."""
    return nni_latency_onnxruntime.OnnxRuntime(
        device, threads=threads, precision=precision, provider=provider, place=place or runtimes.Here
    )
