# SPDX-License-Identifier: Apache-2.0
"""TensorRT as a runtime for nni_latency, divided into layers and operators by its own profile."""

from __future__ import annotations

from typing import Any

from nni_latency import hookimpl
from nni_latency_tensorrt._runtime import TensorRt

__all__ = ["TensorRt"]


@hookimpl
def register_runtimes(register: Any) -> None:
    """Register the runtime."""
    register("tensorrt", TensorRt)
