# SPDX-License-Identifier: Apache-2.0
"""OpenVINO as an adapter: it runs in this process, or is sent to a device. Imports numpy and openvino alone.

Python 3.8 or later. OpenVINO is told the precision: by itself it computes in bf16 where the processor can.
"""

from __future__ import annotations

import math
import re
import struct
import time
from typing import Any, Callable, Sequence

import numpy as np
import openvino

_LENGTH = struct.Struct(">Q")

#: What OpenVINO calls the precisions. What is quantised to int8 computes the rest in f32.
_HINTS = {"fp32": "f32", "bf16": "bf16", "int8": "f32"}

#: Runs before those that are asked for, as many times as these, from which on the network is compiled anew.
_MOST_BEFORE = 2

#: Runs whose profile is thrown away: the first ones of a network are slower.
_COLD = 2

#: How lines of an error begin that do not say what is wrong.
_WHERE = ("While validating node", "Model wasn't fully converted")

#: What is cut off a node's time on average [s]; and the time of a node that is reported not to have run, which took
#: less than a microsecond.
_CUT, _SHORTEST = 1e-6, 5e-7

#: How the names begin that OpenVINO gives to its own nodes, such as recurrent layers: with the type and a number.
_WRITTEN = re.compile(r"[A-Z][A-Za-z]*_\d")

#: How the names of kernels begin in nodes that compute nothing: they were fused with others, or are read in place.
_NO_KERNELS = ("undef", "unknown", "unspecified")


class Adapter:
    """Loads networks: the length of a network in OpenVINO's own form in 8 bytes, it and its weights; or 0, and ONNX.

    Parameters
    ----------
    settings : dict
        ``threads`` and ``precision``.
    """

    name = "OpenVINO"

    def __init__(self, settings: dict[str, Any]) -> None:
        self.threads, self.precision = settings["threads"], settings["precision"]

    def facts(self) -> dict[str, Any]:
        """Return its version, and the precisions in which the processor computes."""
        able = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        return {"version": str(openvino.__version__), "capabilities": list(able)}

    def load(self, data: bytes) -> Network:
        """Load a network; raise `RuntimeError` with the reason in one line if OpenVINO refuses it."""
        (length,) = _LENGTH.unpack_from(data)
        first, rest = data[_LENGTH.size : _LENGTH.size + length], data[_LENGTH.size + length :]
        core = openvino.Core()
        try:
            model = core.read_model(first, rest) if length else core.read_model(rest)
            return Network(model, self.threads, self.precision)
        except RuntimeError as error:
            raise RuntimeError(reason_of(str(error))) from error


def reason_of(text: str) -> str:
    """Return the first line of an error of OpenVINO that says what is wrong; those before it say where it was found."""
    lines = [line.strip("- ") for line in text.splitlines()]
    return next((line for line in lines if line and not line.endswith(":") and not line.startswith(_WHERE)), text)


class Network:
    """A network that OpenVINO has compiled for the least latency."""

    def __init__(self, model: Any, threads: int, precision: str) -> None:
        self._model, self._threads, self._precision = model, threads, precision
        self._named = _named(model.get_ordered_ops())
        # What was handed over and returned last.
        self._given: list[Any] = []
        self._made: list[Any] = []
        self._open()

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """Run it once; the results are valid until the next run.

        Arrays are handed over when they change: Python takes six microseconds for each, which a program that is
        deployed does not. Those that OpenVINO copies, such as transposed ones, are handed over in every run.
        """
        is_new = len(arrays) != len(self._given) or any(one is not other for one, other in zip(arrays, self._given))
        given = {place: self._apart(array) for place, array in enumerate(arrays)} if is_new else None
        # If the run fails, it may have taken some of the arrays.
        self._given = []
        found = self._request.infer(given, share_inputs=True, share_outputs=True)
        if not is_new or all(map(self._is_shared, range(len(arrays)), arrays)):
            self._given = list(arrays)
        self._made = [np.asarray(item) for item in found.values()]
        self._runs += 1
        return self._made

    def profile(self, feed: Callable[[], Sequence[Any]], runs: int) -> dict[str, Any]:
        """Run it several times; every node has its share of each run's time, the same in all.

        OpenVINO reports the mean over all runs since the network was compiled, in whole microseconds. The sum of the
        runs asked for is the difference of two such sums, which are the less exact the more runs there were before.

        Returns
        -------
        dict
            ``nodes``: of every node the names of what it was made of, whether it only changes the layout, and its
            share;
            ``seconds``: the time of every run [s].
        """
        if self._runs > _MOST_BEFORE * runs:
            self._open()
            for _ in range(_COLD):
                self.run(feed())
        before, took = self._sums(), [self._timed(feed()) for _ in range(runs)]
        sums, whole = self._sums(), math.fsum(took)
        least = runs * _SHORTEST
        shares = {name: max(least, seconds - before.get(name, 0.0)) / whole for name, seconds in sums.items()}
        nodes = [[self._originals.get(name, [name]), name in self._reorders, share] for name, share in shares.items()]
        return {"nodes": nodes, "seconds": took}

    def precisions(self) -> list[Any]:
        """Return kind and precision of every node of the network as it is run."""
        return [[_info(node, "layerType"), _info(node, "runtimePrecision").lower()] for node in self._nodes]

    def _apart(self, array: Any) -> Any:
        """Return an array, or a copy of one in the memory to which results are written."""
        return array.copy() if any(np.may_share_memory(array, made) for made in self._made) else array

    def _is_shared(self, place: int, array: Any) -> bool:
        """Whether OpenVINO reads an array where it is."""
        return bool(np.may_share_memory(self._request.get_input_tensor(place).data, array))

    def _open(self) -> None:
        settings = {
            "INFERENCE_PRECISION_HINT": _HINTS[self._precision],
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": self._threads,
            "NUM_STREAMS": 1,
            "PERF_COUNT": True,
            # The thread has been put where it must stay.
            "ENABLE_CPU_PINNING": False,
        }
        compiled = openvino.Core().compile_model(self._model, "CPU", settings)
        self._request, self._runs = compiled.create_infer_request(), 0
        self._given, self._made = [], []
        self._nodes = compiled.get_runtime_model().get_ordered_ops()
        self._check_precision()
        self._originals = _originals(self._nodes, self._named)
        self._reorders = {node.get_friendly_name() for node in self._nodes if _info(node, "layerType") == "Reorder"}

    def _check_precision(self) -> None:
        """Raise `RuntimeError` if a node of a network that was to run in fp32 does not."""
        lower = [
            node.get_friendly_name()
            for node in self._nodes
            if _info(node, "runtimePrecision").lower() in ("bf16", "f16")
        ]
        if lower and self._precision != "bf16":
            raise RuntimeError("it computes in less than f32 although it was told f32: " + ", ".join(lower[:5]))

    def _timed(self, arrays: Sequence[Any]) -> float:
        begin = time.perf_counter()
        self.run(arrays)
        return time.perf_counter() - begin

    def _sums(self) -> dict[str, float]:
        """Return the time of every node over all runs so far [s], in the order in which they run.

        Each run's time and their mean are cut to whole microseconds, so both are half of one longer on average. A node
        whose mean is cut to 0 is reported not to have run.
        """
        return {
            item.node_name: self._runs * (item.real_time.total_seconds() + _CUT if item.real_time else _SHORTEST)
            for item in self._request.profiling_info
            if item.real_time or not item.exec_type.startswith(_NO_KERNELS)
        }


def _originals(nodes: Sequence[Any], named: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the names of what every node was made of, by its own name, which is the first of them.

    Nodes that OpenVINO added when it compiled the network have the names of the first one that reads their results.
    """
    found: dict[str, list[str]] = {}
    for node in reversed(nodes):
        own = node.get_friendly_name()
        found[own] = [own, *filter(None, _info(node, "originalLayersNames").split(","))]
        if all(map(_WRITTEN.match, found[own])):
            after = (reader for reader in _readers(node) if _info(reader, "layerType") != "Output")
            found[own] += named.get(own) or next((found[reader.get_friendly_name()] for reader in after), [])
    return found


def _named(nodes: Sequence[Any]) -> dict[str, list[str]]:
    """Return the names of the operators that nodes stand for, by the names of the nodes as the network was read.

    An operator such as a recurrent layer is read as several nodes, of which only the last, which read the results of
    the others, have its name and those of its tensors.
    """
    found: dict[str, list[str]] = {}
    for node in reversed(nodes):
        own = node.get_friendly_name()
        if not _WRITTEN.match(own):
            found[own] = [own, *(name for result in node.outputs() for name in result.get_names())]
        else:
            found[own] = next(filter(None, (found.get(reader.get_friendly_name()) for reader in _readers(node))), [])
    return found


def _readers(node: Any) -> list[Any]:
    return [item.get_node() for result in node.outputs() for item in result.get_target_inputs()]


def _info(node: Any, name: str) -> str:
    info = node.get_rt_info()
    return str(info[name].value) if name in info else ""
