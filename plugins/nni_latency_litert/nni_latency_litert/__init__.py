"""LiteRT (TFLite with XNNPACK) as a runtime for nni_latency."""

from nni_latency_litert._environment import converter_python
from nni_latency_litert._runtime import LiteRt, convert

__all__ = ["LiteRt", "convert", "converter_python"]
