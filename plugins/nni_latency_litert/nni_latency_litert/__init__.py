# SPDX-License-Identifier: Apache-2.0
"""LiteRT (TFLite with XNNPACK) as a runtime for nni_latency."""

from nni_latency_litert._conversion import convert, converter_version, weights_of
from nni_latency_litert._runtime import LiteRt

__all__ = ["LiteRt", "convert", "converter_version", "weights_of"]
