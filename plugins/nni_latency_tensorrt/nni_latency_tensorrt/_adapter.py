# SPDX-License-Identifier: Apache-2.0
"""TensorRT as an adapter: it runs in this process, or is sent to a device. Imports numpy and tensorrt alone.

Python 3.8 and TensorRT 8.5 or later. Memory and streams of the GPU come from the CUDA runtime library, which TensorRT
itself needs, so that no other package of Python is needed there.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import glob
import hashlib
import os
import sys
import tempfile
import time
from typing import Any, Callable, Sequence

import numpy as np
import tensorrt

#: Where engines are kept: the folder of the agent, which removes it. In this process they are not kept.
_CACHE = tempfile.gettempdir() if __name__ == "nni_latency_adapter" else ""

#: Size of all engines that are kept; those that were not used for the longest time go [byte].
_LARGEST_CACHE = 2**30

#: Runs whose profile is thrown away.
_COLD = 2

#: ``cudaMemcpyKind``.
_TO_GPU, _FROM_GPU = 1, 2

#: Larger than ``cudaDeviceProp`` in any version [byte]; the name of the GPU, of 256 bytes, is its first member.
_PROPERTIES = 2**14


class Cuda:
    """The CUDA runtime library."""

    def __init__(self) -> None:
        self._library = _load()
        self._library.cudaGetErrorString.restype = ctypes.c_char_p

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that returns ``cudaError_t``; `OSError` if that is not ``cudaSuccess``."""
        code = getattr(self._library, name)(*arguments)
        if code:
            text = self._library.cudaGetErrorString(code) or b"error %d" % code
            raise OSError("%s: %s" % (name, text.decode(errors="replace")))

    def allocate(self, size: int) -> int:
        """Return the address of new memory of the GPU."""
        address = ctypes.c_void_p()
        self.call("cudaMalloc", ctypes.byref(address), ctypes.c_size_t(max(1, size)))
        return address.value or 0

    def free(self, address: int) -> None:
        """Give memory back."""
        self.call("cudaFree", ctypes.c_void_p(address))

    def stream(self) -> int:
        """Return a new stream."""
        stream = ctypes.c_void_p()
        self.call("cudaStreamCreate", ctypes.byref(stream))
        return stream.value or 0

    def copy(self, to: int, source: int, size: int, kind: int, stream: int) -> None:
        """Copy bytes in a stream."""
        pointers = ctypes.c_void_p(to), ctypes.c_void_p(source)
        self.call("cudaMemcpyAsync", *pointers, ctypes.c_size_t(size), ctypes.c_int(kind), ctypes.c_void_p(stream))

    def synchronise(self, stream: int) -> None:
        """Wait until a stream has done what was put into it."""
        self.call("cudaStreamSynchronize", ctypes.c_void_p(stream))

    def facts(self) -> dict[str, Any]:
        """Return name and memory of the GPU, and the version of CUDA; `OSError` if there is no GPU."""
        count, version = ctypes.c_int(), ctypes.c_int()
        self.call("cudaGetDeviceCount", ctypes.byref(count))
        if not count.value:
            raise OSError("there is no GPU")
        properties = ctypes.create_string_buffer(_PROPERTIES)
        self.call("cudaGetDeviceProperties", properties, ctypes.c_int(0))
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        self.call("cudaRuntimeGetVersion", ctypes.byref(version))
        name = properties.value[:256].decode(errors="replace")
        return {
            "device_kind": "cuda",
            "device_name": name,
            "gpu_memory": total.value,
            "cuda": "%d.%d" % (version.value // 1000, version.value % 1000 // 10),
        }


def _load() -> Any:
    """Load the library from where the system, the CUDA toolkit, or the wheels of NVIDIA have it."""
    known = ["libcudart.so", ctypes.util.find_library("cudart") or "libcudart.so.13", "libcudart.so.12"]
    known += sorted(glob.glob("/usr/local/cuda/lib64/libcudart.so*"))
    for folder in sys.path:
        known += sorted(glob.glob(os.path.join(folder, "nvidia", "*", "lib", "libcudart.so*")))
    for path in known:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise ImportError("the CUDA runtime library libcudart.so was not found", name="libcudart")


class Log(tensorrt.ILogger):
    """Keeps the last error that TensorRT has written."""

    def __init__(self) -> None:
        tensorrt.ILogger.__init__(self)
        self.last = ""

    def log(self, severity: Any, message: str) -> None:
        """Take a message."""
        if severity in (tensorrt.ILogger.Severity.INTERNAL_ERROR, tensorrt.ILogger.Severity.ERROR):
            self.last = message.strip()


class Times(tensorrt.IProfiler):
    """Collects the times of layers."""

    def __init__(self) -> None:
        tensorrt.IProfiler.__init__(self)
        self.found: list[tuple[str, float]] = []

    def report_layer_time(self, layer_name: str, ms: float) -> None:
        """Take the time of a layer."""
        self.found.append((layer_name, ms / 1e3))


class Adapter:
    """Loads networks in ONNX, of which it builds engines.

    Parameters
    ----------
    settings : dict
        ``precision``.
    """

    name = "TensorRT"

    def __init__(self, settings: dict[str, Any]) -> None:
        self.half = settings["precision"] == "fp16"
        self.log, self.cuda = Log(), Cuda()
        self.device = self.cuda.facts()
        self.runtime = tensorrt.Runtime(self.log)

    def facts(self) -> dict[str, Any]:
        """Return its version, the precisions that it can be switched to, and the GPU."""
        # TensorRT 11 takes the precision from the types in the network alone.
        switch = hasattr(tensorrt.BuilderFlag, "FP16")
        precisions = ["fp32", "fp16"] if switch else ["fp32"]
        return {"version": str(tensorrt.__version__), "precisions": precisions, "device": self.device}

    def load(self, data: bytes) -> Network:
        """Load a network; its engine is built where it is not kept."""
        path = ""
        if _CACHE:
            path = os.path.join(_CACHE, "engine." + hashlib.sha256(data).hexdigest())
        if path and os.path.exists(path):
            os.utime(path)
            with open(path, "rb") as file:
                plan = file.read()
        else:
            plan = self._built(data)
            if path:
                _keep(path, plan)
        engine = self.runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise RuntimeError("it cannot load the engine that it has built: " + self.log.last)
        return Network(engine, self.cuda)

    def _built(self, data: bytes) -> bytes:
        """Build an engine."""
        builder = tensorrt.Builder(self.log)
        # Networks have no other batch dimension since TensorRT 10.
        old = int(str(tensorrt.__version__).split(".")[0]) < 10
        flags = 1 << int(tensorrt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH) if old else 0
        network = builder.create_network(flags)
        parser = tensorrt.OnnxParser(network, self.log)
        if not parser.parse(data):
            errors = [parser.get_error(index).desc() for index in range(parser.num_errors)]
            raise RuntimeError("it cannot read the network: " + (errors or [self.log.last])[0])
        config = builder.create_builder_config()
        config.profiling_verbosity = tensorrt.ProfilingVerbosity.DETAILED
        # On by default, it rounds what is multiplied to 10 bits.
        config.clear_flag(tensorrt.BuilderFlag.TF32)
        if self.half:
            config.set_flag(tensorrt.BuilderFlag.FP16)
        plan = builder.build_serialized_network(network, config)
        if plan is None:
            raise RuntimeError("it cannot build an engine: " + self.log.last)
        return bytes(memoryview(plan))


class Network:
    """A network that TensorRT has built; a run includes the copies of inputs and results."""

    def __init__(self, engine: Any, cuda: Cuda) -> None:
        self._engine, self._cuda = engine, cuda
        self._context, self._stream = engine.create_execution_context(), cuda.stream()
        self._memory: list[int] = []
        self._inputs: list[tuple[Any, int]] = []
        self._results: list[tuple[Any, int]] = []
        for index in range(engine.num_io_tensors):
            name = engine.get_tensor_name(index)
            like = np.empty(tuple(engine.get_tensor_shape(name)), tensorrt.nptype(engine.get_tensor_dtype(name)))
            address = cuda.allocate(like.nbytes)
            self._memory.append(address)
            self._context.set_tensor_address(name, address)
            is_input = engine.get_tensor_mode(name) == tensorrt.TensorIOMode.INPUT
            (self._inputs if is_input else self._results).append((like, address))

    def __del__(self) -> None:
        """Give the memory of the GPU back."""
        try:
            for address in self._memory:
                self._cuda.free(address)
            self._cuda.call("cudaStreamDestroy", ctypes.c_void_p(self._stream))
        except (AttributeError, OSError):
            # Where the process ends, or the GPU has failed.
            pass

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """Run it once, and wait for its end."""
        kept = []
        for (like, address), array in zip(self._inputs, arrays):
            if array.shape != like.shape:
                raise RuntimeError("it takes the shape %s, and was given %s" % (like.shape, array.shape))
            given = np.ascontiguousarray(array, like.dtype)
            kept.append(given)
            self._cuda.copy(address, given.ctypes.data, given.nbytes, _TO_GPU, self._stream)
        if not self._context.execute_async_v3(self._stream):
            raise RuntimeError("it cannot run the network")
        found = []
        for like, address in self._results:
            result = np.empty_like(like)
            found.append(result)
            self._cuda.copy(result.ctypes.data, address, result.nbytes, _FROM_GPU, self._stream)
        self._cuda.synchronise(self._stream)
        return found

    def profile(self, feed: Callable[[], Sequence[Any]], runs: int) -> dict[str, Any]:
        """Run it several times with a profile.

        Returns
        -------
        dict
            ``runs``: of every run its time [s], and its layers, each with its name and time [s].
        """
        times, found = Times(), []
        self._context.profiler = times
        try:
            for _ in range(_COLD + runs):
                arrays = feed()
                times.found = []
                begin = time.perf_counter()
                self.run(arrays)
                found.append({"seconds": time.perf_counter() - begin, "layers": times.found})
        finally:
            self._context.profiler = None
        return {"runs": found[_COLD:]}


def _keep(path: str, plan: bytes) -> None:
    """Write an engine, and remove those that were not used for the longest time where there are too many."""
    known = sorted(glob.glob(os.path.join(_CACHE, "engine.*")), key=os.path.getmtime)
    sizes = [os.path.getsize(item) for item in known]
    while known and sum(sizes) + len(plan) > _LARGEST_CACHE:
        os.remove(known.pop(0))
        del sizes[0]
    with open(path + ".part", "wb") as file:
        file.write(plan)
    os.rename(path + ".part", path)
