from ._answerable import precision_remarks, require_operators
from ._calls import describe_call
from ._composites import parts_of
from ._export import OnnxNetwork, export_onnx
from ._families import family_of, form_of, group_of, size_of_attribute
from ._feature_table import Counted, count_graph, count_operators, features_of, supported_kinds, work_of
from ._features import Features, given_shapes, learned_shapes
from ._fusing import chained, divide, fuse
from ._fusion_rules import FusionRule, FusionRules, FusionTimes
from ._graph_key import graph_key
from ._inputs import Inputs, InputShape, freeze_inputs, freeze_shapes
from ._joining import beside_onnx, consumed_onnx, fed_onnx, join_onnx
from ._layouts import layout_changes
from ._lazy import initialised
from ._onnx import read_onnx
from ._onnx_inputs import load_onnx
from ._onnx_weights import OnnxBuild, onnx_inputs, onnx_network, without_weights
from ._op_key import OP_KEY, parse_op_keys
from ._op_spec import LARGEST_TENSOR, AttributeValue, OpSpec
from ._rebuild import build_operator
from ._shuffle import ChannelShuffle, shuffle_channels
from ._tensors import Learned, is_parameter, packed_weights, shares_memory_of, tensors_in
from ._trace import By, Graph, Trace, TracedOperator, TracingWarning
from ._tracing import capture_operators, run_traced, trace, trace_both

__all__ = [
    "LARGEST_TENSOR",
    "OP_KEY",
    "AttributeValue",
    "By",
    "ChannelShuffle",
    "Counted",
    "Features",
    "FusionRule",
    "FusionRules",
    "FusionTimes",
    "Graph",
    "InputShape",
    "Inputs",
    "Learned",
    "OnnxBuild",
    "OnnxNetwork",
    "OpSpec",
    "Trace",
    "TracedOperator",
    "TracingWarning",
    "beside_onnx",
    "build_operator",
    "capture_operators",
    "chained",
    "consumed_onnx",
    "count_graph",
    "count_operators",
    "describe_call",
    "divide",
    "export_onnx",
    "family_of",
    "features_of",
    "fed_onnx",
    "form_of",
    "freeze_inputs",
    "freeze_shapes",
    "fuse",
    "given_shapes",
    "graph_key",
    "group_of",
    "initialised",
    "is_parameter",
    "join_onnx",
    "layout_changes",
    "learned_shapes",
    "load_onnx",
    "onnx_inputs",
    "onnx_network",
    "packed_weights",
    "parse_op_keys",
    "parts_of",
    "precision_remarks",
    "read_onnx",
    "require_operators",
    "run_traced",
    "shares_memory_of",
    "shuffle_channels",
    "size_of_attribute",
    "supported_kinds",
    "tensors_in",
    "trace",
    "trace_both",
    "without_weights",
    "work_of",
]
