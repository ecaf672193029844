"""Operators: what is computed, described apart from what it costs."""

from nni_latency.operators._calls import describe_call
from nni_latency.operators._composites import parts_of
from nni_latency.operators._families import family_of, form_of, group_of, size_of_attribute, work_of
from nni_latency.operators._feature_table import Counted, count_operators, features_of, supported_kinds
from nni_latency.operators._features import Features, given_shapes, learned_shapes
from nni_latency.operators._inputs import Inputs, freeze_inputs, freeze_shapes
from nni_latency.operators._onnx import read_onnx
from nni_latency.operators._op_key import OP_KEY, parse_op_keys
from nni_latency.operators._op_spec import AttributeValue, OpSpec
from nni_latency.operators._rebuild import build_operator
from nni_latency.operators._tensors import Learned, is_parameter, shares_memory_of, tensors_in
from nni_latency.operators._trace import (
    By,
    Trace,
    TracedOperator,
    TracingWarning,
    capture_operators,
    run_traced,
    trace,
    trace_both,
)

__all__ = [
    "OP_KEY",
    "AttributeValue",
    "By",
    "Counted",
    "Features",
    "Inputs",
    "Learned",
    "OpSpec",
    "Trace",
    "TracedOperator",
    "TracingWarning",
    "build_operator",
    "capture_operators",
    "count_operators",
    "describe_call",
    "family_of",
    "features_of",
    "form_of",
    "freeze_inputs",
    "freeze_shapes",
    "given_shapes",
    "group_of",
    "is_parameter",
    "learned_shapes",
    "parse_op_keys",
    "parts_of",
    "read_onnx",
    "run_traced",
    "shares_memory_of",
    "size_of_attribute",
    "supported_kinds",
    "tensors_in",
    "trace",
    "trace_both",
    "work_of",
]
