# SPDX-License-Identifier: Apache-2.0
"""Two invented platforms: one that knows nodes, one that knows calls."""

from __future__ import annotations

from nni_latency.platforms import Platform

FAST, SLOW = Platform("toy", "onnxruntime"), Platform("toy", "torch", threads=2)
