from ._family import Family, families, find_families
from ._generating import generate_onnx, generated_files, onnx_name, save_onnx
from ._network_latencies import GROUND_TRUTH, NNLQP, NetworkLatency, read_nnlqp, write_nnlqp
from ._variation import Variation

__all__ = [
    "GROUND_TRUTH",
    "NNLQP",
    "Family",
    "NetworkLatency",
    "Variation",
    "families",
    "find_families",
    "generate_onnx",
    "generated_files",
    "onnx_name",
    "read_nnlqp",
    "save_onnx",
    "write_nnlqp",
]
