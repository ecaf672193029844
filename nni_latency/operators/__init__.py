"""Operators: what is computed, described apart from what it costs."""

from nni_latency.operators._capture import capture_operators, freeze_shapes
from nni_latency.operators._features import Features, features_of, supported_kinds
from nni_latency.operators._op_spec import AttributeValue, OpSpec

__all__ = [
    "AttributeValue",
    "Features",
    "OpSpec",
    "capture_operators",
    "features_of",
    "freeze_shapes",
    "supported_kinds",
]
