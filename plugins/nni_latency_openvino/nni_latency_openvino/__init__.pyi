# SPDX-License-Identifier: Apache-2.0
from ._runtime import OpenVino, find_fallbacks

__all__ = ["OpenVino", "find_fallbacks"]
