# SPDX-License-Identifier: Apache-2.0
"""Code of the process that reads ONNX files. It imports little, so that the process starts fast."""

from __future__ import annotations

import json
import math
from typing import Any

from nni_latency.datasets import GraphDocument
from nni_latency.errors import InvalidValueError, LatencyError, listed
from nni_latency.graphs import light_onnx
from nni_latency.imports import require
from nni_latency.operators import (
    Graph,
    InputShape,
    count_operators,
    initializers_of,
    load_onnx,
    onnx_inputs,
    read_onnx,
)
from nni_latency.units import number_of
from nni_latency_service.query import as_file

#: External data location in files without weights.
_LEFT_OUT = "weights-left-out"


class Reading:
    """Task of the worker process."""

    def __init__(self, most: int) -> None:
        self._most = most

    def read(
        self, content: bytes, name: str, shapes: list[InputShape] | None, batch: int | None
    ) -> tuple[bytes, str, str]:
        """Return the file without weights, and its graph and inputs as JSON."""
        try:
            with as_file(content, name) as path:
                self._check(load_onnx(path, batch, shapes), name)
                light = light_onnx(path, shapes, batch)
            with as_file(light, name) as path:
                graph, inputs = read_onnx(path), onnx_inputs(path)
            self._check_sizes(graph, name)
            # A network whose work cannot be counted cannot be predicted.
            count_operators([item.op for item in graph.operators])
        except LatencyError:
            raise
        except (MemoryError, RecursionError) as error:
            raise InvalidValueError(f"{name!r} takes more memory to be read than the service allows.") from error
        except Exception as error:  # an untrusted file may raise any exception
            raise InvalidValueError(f"{name!r} is not a network that can be read ({type(error).__name__}).") from error
        described = [[list(tensor.shape), str(tensor.dtype).removeprefix("torch.")] for tensor in inputs.tensors]
        return light, GraphDocument.of(graph).model_dump_json(), json.dumps(described)

    def _check(self, model: Any, name: str) -> None:
        """Reject external weights, and more weights than the limit."""
        onnx = require("onnx", "Reading ONNX", "onnx")
        weights = list(initializers_of(model))
        elsewhere = [
            tensor.name
            for tensor in weights
            if tensor.data_location == onnx.TensorProto.EXTERNAL
            and [item.value for item in tensor.external_data if item.key == "location"] != [_LEFT_OUT]
        ]
        if elsewhere:
            raise InvalidValueError(
                f"{name!r} says that weights are in other files, which the service never opens: {listed(elsewhere)}. "
                "Send it without weights, as 'nni-latency query' and LatencyClient do."
            )
        numbers = sum(math.prod(tensor.dims) for tensor in weights)
        if numbers > self._most:
            raise InvalidValueError(
                f"{name!r} has {number_of(numbers, 'weight')}, and {self._most} are the most that are taken."
            )

    def _check_sizes(self, graph: Graph, name: str) -> None:
        shapes = [shape for item in graph.operators for shape in item.op.input_shapes]
        largest = max((math.prod(shape) for shape in (*shapes, *graph.inputs, *graph.outputs)), default=0)
        if largest > self._most:
            raise InvalidValueError(
                f"{name!r} has a tensor of {number_of(largest, 'number')}, and {self._most} are the most that are "
                "taken."
            )


def empty(shape: list[int], dtype: str) -> Any:
    """Return a tensor without values."""
    import torch

    return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
