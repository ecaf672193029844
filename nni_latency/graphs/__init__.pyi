from ._family import Family, families, find_families
from ._generating import generate_onnx, generated_files, onnx_name, save_onnx
from ._variation import Variation

__all__ = [
    "Family",
    "Variation",
    "families",
    "find_families",
    "generate_onnx",
    "generated_files",
    "onnx_name",
    "save_onnx",
]
