# SPDX-License-Identifier: Apache-2.0
"""Hooks of this plugin, named by its entry point."""

from __future__ import annotations

import nni_latency.measurement.runtimes as runtimes
import nni_latency_ncnn
from nni_latency import hookimpl
from nni_latency.plugins import Register


@hookimpl
def register_runtimes(register: Register) -> None:
    """Register the runtime."""
    register("ncnn", _make)


def _make(
    device: str = "cpu", *, threads: int = 1, precision: str = "fp32", place: runtimes.MakePlace | None = None
) -> runtimes.Runtime:
    """Run networks in ncnn, on the CPU."""
    return nni_latency_ncnn.Ncnn(device, threads=threads, precision=precision, place=place or runtimes.Here)
