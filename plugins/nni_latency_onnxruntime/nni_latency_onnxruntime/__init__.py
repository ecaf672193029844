# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime as a runtime for nni_latency, divided into layers and operators by its own profile."""

from __future__ import annotations

from typing import Any

from nni_latency import hookimpl
from nni_latency_onnxruntime._runtime import OnnxRuntime, find_fallbacks

__all__ = ["OnnxRuntime", "find_fallbacks"]


@hookimpl
def register_runtimes(register: Any) -> None:
    """Register the runtime."""
    register("onnxruntime", OnnxRuntime)
