# SPDX-License-Identifier: Apache-2.0
"""Small ONNX files, built by hand."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

FLOAT, INT64, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
UINT8, FLOAT16 = onnx.TensorProto.UINT8, onnx.TensorProto.FLOAT16


def value(name, *shape, kind=FLOAT):
    """Describe a tensor."""
    return helper.make_tensor_value_info(name, kind, list(shape))


def constant(name, values, dtype=np.float32):
    """Return weights, or another constant."""
    return onnx.numpy_helper.from_array(np.asarray(values, dtype), name)


def save(path, nodes, inputs, outputs, weights=(), functions=(), opset=21, **options):
    """Write a file; options are those of the model, such as its version."""
    graph = helper.make_graph(list(nodes), "g", inputs, outputs, list(weights))
    imports = [helper.make_opsetid(domain, version) for domain, version in (("", opset), ("com.example", 1))]
    imports.append(helper.make_opsetid("com.microsoft", 1))
    model = helper.make_model(graph, opset_imports=imports, functions=list(functions), **options)
    path.write_bytes(model.SerializeToString())
    return path
