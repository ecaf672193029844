# SPDX-License-Identifier: Apache-2.0
"""A stand-in for TensorRT's Python package: what the adapter uses of it, as it is documented, by ONNX Runtime."""

from __future__ import annotations

import ctypes
import enum
import json
import os
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

__version__ = os.environ.get("STAND_IN_VERSION", "10.3.0")

_NAMES = ["TF32", "FP16"] if int(__version__.split(".")[0]) < 11 else ["TF32"]

BuilderFlag = enum.Enum("BuilderFlag", _NAMES)
NetworkDefinitionCreationFlag = enum.IntEnum("NetworkDefinitionCreationFlag", {"EXPLICIT_BATCH": 0})
ProfilingVerbosity = enum.Enum("ProfilingVerbosity", ["LAYER_NAMES_ONLY", "NONE", "DETAILED"])
TensorIOMode = enum.Enum("TensorIOMode", ["NONE", "INPUT", "OUTPUT"])


class ILogger:
    """Takes messages."""

    class Severity(enum.Enum):
        """How bad a message is."""

        INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    def __init__(self):
        self.made = True


class IProfiler:
    """Takes times of layers."""

    def __init__(self):
        self.made = True


class Builder:
    """Builds plans."""

    def __init__(self, logger):
        assert logger.made
        self.logger = logger

    def create_network(self, flags=0):
        """Return a network for a parser; before TensorRT 10, with an explicit batch dimension."""
        assert flags == (1 if int(__version__.split(".")[0]) < 10 else 0)
        return {}

    def create_builder_config(self):
        """Return the settings of a build."""
        return Config()

    def build_serialized_network(self, network, config):
        """Return a plan; None where it cannot be built, and a message says why."""
        with Path(os.environ.get("STAND_IN_BUILDS", os.devnull)).open("a") as file:
            file.write("built\n")
        if any(node.op_type == "Celu" for node in network["model"].graph.node):
            self.logger.log(ILogger.Severity.ERROR, "[stand-in] no implementation of Celu")
            return None
        flags = sorted(flag.name for flag in config.flags)
        assert config.profiling_verbosity == ProfilingVerbosity.DETAILED
        return memoryview(json.dumps(flags).encode() + b"\n" + network["model"].SerializeToString())


class Config:
    """The settings of a build."""

    def __init__(self):
        self.flags = {BuilderFlag.TF32}
        self.profiling_verbosity = ProfilingVerbosity.LAYER_NAMES_ONLY

    def set_flag(self, flag):
        """Switch something on."""
        self.flags.add(flag)

    def clear_flag(self, flag):
        """Switch something off."""
        self.flags.discard(flag)


class ParserError:
    """Why a network cannot be read."""

    def desc(self):
        """Return the reason."""
        return "[stand-in] no parser for EyeLike"


class OnnxParser:
    """Reads ONNX."""

    def __init__(self, network, logger):
        self.network, self.num_errors = network, 0

    def parse(self, data):
        """Read a network; False where that is impossible."""
        self.network["model"] = onnx.ModelProto.FromString(data)
        self.num_errors = sum(node.op_type == "EyeLike" for node in self.network["model"].graph.node)
        return not self.num_errors

    def get_error(self, index):
        """Return an error."""
        return ParserError()


class Runtime:
    """Loads plans."""

    def __init__(self, logger):
        assert logger.made

    def deserialize_cuda_engine(self, plan):
        """Return an engine."""
        flags, _, model = bytes(plan).partition(b"\n")
        assert json.loads(flags) in ([], ["FP16"])
        return Engine(onnx.ModelProto.FromString(model))


class Engine:
    """A plan that was loaded."""

    def __init__(self, model):
        self.model = model
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        self.session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        kinds = [(TensorIOMode.INPUT, model.graph.input), (TensorIOMode.OUTPUT, model.graph.output)]
        self.tensors = {item.name: (mode, item.type.tensor_type) for mode, items in kinds for item in items}
        self.num_io_tensors = len(self.tensors)

    def get_tensor_name(self, index):
        """Return the name of an input or output."""
        return list(self.tensors)[index]

    def get_tensor_mode(self, name):
        """Return whether it is an input."""
        return self.tensors[name][0]

    def get_tensor_shape(self, name):
        """Return its shape."""
        return [axis.dim_value for axis in self.tensors[name][1].shape.dim]

    def get_tensor_dtype(self, name):
        """Return its type."""
        return self.tensors[name][1].elem_type

    def create_execution_context(self):
        """Return what runs it."""
        return Context(self)


class Context:
    """Runs an engine on the memory that it is given."""

    def __init__(self, engine):
        self.engine, self.profiler, self._addresses = engine, None, {}

    def set_tensor_address(self, name, address):
        """Say where an input or output is."""
        self._addresses[name] = address
        return True

    def execute_async_v3(self, stream_handle):
        """Run it; a convolution and the activation behind it are one layer."""
        assert stream_handle
        engine, views = self.engine, {}
        for name, address in self._addresses.items():
            like = np.empty(engine.get_tensor_shape(name), nptype(engine.get_tensor_dtype(name)))
            views[name] = np.frombuffer((ctypes.c_char * like.nbytes).from_address(address), like.dtype)
            views[name] = views[name].reshape(like.shape)
        inputs = {name: view for name, view in views.items() if engine.get_tensor_mode(name) == TensorIOMode.INPUT}
        results = [name for name in views if name not in inputs]
        begin = time.perf_counter()
        for name, found in zip(results, engine.session.run(results, inputs), strict=True):
            views[name][...] = found
        if self.profiler is not None:
            layers = _layers(engine.model.graph)
            for name in layers:
                self.profiler.report_layer_time(name, 1e3 * (time.perf_counter() - begin) / len(layers))
        return True


def _layers(graph):
    found = ["Reformatting CopyNode for Input Tensor 0 to " + graph.node[0].name]
    for node in graph.node:
        if node.op_type == "Relu" and "Conv" in found[-1] and " + " not in found[-1]:
            found[-1] += " + " + node.name
        else:
            found.append(node.name)
    return found


def nptype(kind):
    """Return the type of numpy."""
    return onnx.helper.tensor_dtype_to_np_dtype(kind)
