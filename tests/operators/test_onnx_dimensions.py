# SPDX-License-Identifier: Apache-2.0
"""The dimensions along which operators of an ONNX file work, and the exponents of powers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from nni_latency.operators import OpSpec, read_onnx

SHAPE = (2, 6, 4, 8)


def _read(
    folder: Path, kind: str, out: tuple[int, ...], *constants: np.ndarray, opset: int = 18, **how: object
) -> OpSpec:
    inputs = [numpy_helper.from_array(value, f"c{number}") for number, value in enumerate(constants)]
    node = helper.make_node(kind, ["x", *(item.name for item in inputs)], ["y"], **how)
    code = TensorProto.INT64 if kind == "ArgMax" else TensorProto.FLOAT
    values = helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE), helper.make_tensor_value_info("y", code, out)
    graph = helper.make_graph([node], "g", [values[0]], [values[1]], inputs)
    path = folder / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    (operator,) = read_onnx(path).operators
    return operator.op


@pytest.mark.parametrize(
    ("kind", "out", "how", "found"),
    [
        ("Softmax", SHAPE, {"axis": 1}, {"dim": 1}),
        ("Softmax", SHAPE, {}, {"dim": 3}),
        ("LogSoftmax", SHAPE, {"axis": -2}, {"dim": 2}),
        ("ArgMax", (2, 1, 4, 8), {"axis": 1}, {"dim": 1}),
        ("LpNormalization", SHAPE, {"axis": 1}, {"dim": 1}),
        ("Transpose", (2, 4, 8, 6), {"perm": [0, 2, 3, 1]}, {"dims": (0, 2, 3, 1)}),
        ("Transpose", SHAPE[::-1], {}, {"dims": (3, 2, 1, 0)}),
    ],
)
def test_attributes(
    tmp_path: Path, kind: str, out: tuple[int, ...], how: dict[str, object], found: dict[str, object]
) -> None:
    op = _read(tmp_path, kind, out, **how)
    assert {name: op.get(name) for name in found} == found


def test_inputs(tmp_path: Path) -> None:
    op = _read(tmp_path, "ReduceMean", (2, 6, 1, 1), np.array([2, -1]))
    assert op.get("dim") == (2, 3)
    assert _read(tmp_path, "ReduceSum", (1, 1, 1, 1)).get("dim") == (0, 1, 2, 3)
    assert _read(tmp_path, "ReduceMax", (2, 1, 4, 8), opset=13, axes=[1]).get("dim") == (1,)
    pads = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    assert _read(tmp_path, "Pad", (2, 6, 6, 10), pads, mode="reflect").get("mode") == "reflect"
    assert _read(tmp_path, "Pad", (2, 6, 6, 10), pads).get("mode") == "constant"
    assert _read(tmp_path, "CumSum", SHAPE, np.array(-1)).get("dim") == 3
    assert _read(tmp_path, "Pow", SHAPE, np.array(2, np.float32)).get("exponent") == 2.0
    assert _read(tmp_path, "Pow", SHAPE, np.ones(8, np.float32)).get("exponent") is None
