# SPDX-License-Identifier: Apache-2.0
from ._document import ValidationSummary, read_summary, validation_content
from ._drawing import DrawsNetworks, draw_networks
from ._reading import read_validation, save_validation
from ._requirement import Requirement
from ._validation import KeptScores, NetworkResult, Validation, predict_networks, predict_references, validate

__all__ = [
    "DrawsNetworks",
    "KeptScores",
    "NetworkResult",
    "Requirement",
    "Validation",
    "ValidationSummary",
    "draw_networks",
    "predict_networks",
    "predict_references",
    "read_summary",
    "read_validation",
    "save_validation",
    "validate",
    "validation_content",
]
