# SPDX-License-Identifier: Apache-2.0
"""ncnn as a runtime for nni_latency, by way of ONNX and pnnx."""

from __future__ import annotations

from typing import Any

from nni_latency import hookimpl
from nni_latency_ncnn._runtime import Ncnn, convert

__all__ = ["Ncnn", "convert"]


@hookimpl
def register_runtimes(register: Any) -> None:
    """Register the runtime."""
    register("ncnn", Ncnn)
