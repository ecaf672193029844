# SPDX-License-Identifier: Apache-2.0
from ._runtime import OnnxRuntime, find_fallbacks

__all__ = ["OnnxRuntime", "find_fallbacks"]
