from ._document import read_validation, save_validation, validation_content
from ._drawing import DrawsNetworks, draw_networks
from ._validation import NetworkResult, Requirement, Validation, predict_networks, predict_references, validate

__all__ = [
    "DrawsNetworks",
    "NetworkResult",
    "Requirement",
    "Validation",
    "draw_networks",
    "predict_networks",
    "predict_references",
    "read_validation",
    "save_validation",
    "validate",
    "validation_content",
]
