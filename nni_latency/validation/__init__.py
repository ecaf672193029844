"""Validation: an estimator against whole networks that nobody measured before."""

from nni_latency.validation._document import ValidationSummary, read_summary, validation_content
from nni_latency.validation._drawing import DrawsNetworks, draw_networks
from nni_latency.validation._requirement import Requirement
from nni_latency.validation._validation import NetworkResult, Validation, predict_networks, predict_references, validate

__all__ = [
    "DrawsNetworks",
    "NetworkResult",
    "Requirement",
    "Validation",
    "ValidationSummary",
    "draw_networks",
    "predict_networks",
    "predict_references",
    "read_summary",
    "validate",
    "validation_content",
]
