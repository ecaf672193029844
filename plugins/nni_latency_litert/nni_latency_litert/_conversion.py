# SPDX-License-Identifier: Apache-2.0
"""Conversion of networks to TFLite in another Python, by the agent that also runs networks on devices."""

from __future__ import annotations

import io
import math
import os
from functools import cache
from typing import Any

import torch
from numpy.typing import NDArray

from nni_latency.devices import DeviceError, DevicePlace, PythonConnection
from nni_latency.errors import InvalidValueError
from nni_latency.measurement import CandidateError
from nni_latency_litert._environment import PYTHON_VARIABLE, own_python, torch_version

#: Longest time that a conversion may take, that of loading litert-torch included [s].
_TIMEOUT = 300.0

#: Operators that compute more or less by values.
_BY_VALUE = ("CALL_ONCE", "IF", "NON_MAX_SUPPRESSION", "UNIQUE", "WHERE", "WHILE", "STABLEHLO_WHILE")

#: Operators whose third input is a bias.
_BIASED = ("CONV_2D", "CONV_3D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")

#: Numbers from which on a weight is large.
_LARGE = 256


@cache
def converter() -> DevicePlace:
    """Return the Python that converts networks; its environment is made if there is none.

    It is started once for this process, and again if it dies.

    Raises
    ------
    MissingDependencyError
        If the environment cannot be made.
    InvalidValueError
        If the Python that `PYTHON_VARIABLE` names cannot convert networks.
    OutputError
        If the cache cannot be written.
    BusyError
        If another process is making the environment and does not end.
    """
    named = os.environ.get(PYTHON_VARIABLE)
    try:
        place = DevicePlace(
            PythonConnection(named or str(own_python())),
            "nni_latency_litert._converter",
            {"threads": os.cpu_count() or 1},
        )
        version = place.facts["torch"].partition("+")[0]
    except (InvalidValueError, DeviceError) as error:
        if not named:
            raise
        raise InvalidValueError(
            f"{PYTHON_VARIABLE} must name a Python with the packages litert-torch and torch. Got {named!r}."
        ) from error
    if version != torch_version():
        raise InvalidValueError(
            f"The Python that converts networks for LiteRT has torch {version}, and this one {torch.__version__}. "
            f"They must have the same version to pass on networks. {PYTHON_VARIABLE} names another one."
        )
    place.session.timeout = _TIMEOUT
    return place


def converter_version() -> str:
    """Return the version of litert-torch; raises as `converter`."""
    return str(converter().facts["litert-torch"])


def convert(program: torch.export.ExportedProgram) -> bytes:
    """Convert a network with litert-torch, and return it as a file of TFLite holds it.

    Raises
    ------
    CandidateError
        If it cannot be converted; the message gives the reason.
    LatencyError
        As `converter`.
    """
    written = io.BytesIO()
    torch.export.save(program, written)
    try:
        found: bytes = converter().load(written.getvalue()).call("tflite")
    except CandidateError as error:
        raise CandidateError(f"litert-torch cannot convert the network: {error}") from error
    return found


def weights_of(model: bytes) -> list[NDArray[Any]]:
    """Return the weights of a network whose values do not change its latency: large filters, matrices and biases.

    Parameters
    ----------
    model : bytes
        As a file of TFLite holds it. There are no such weights where an operator computes more or less by values.
    """
    # Here and not above: a network is prepared for a device without it.
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    plain = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = Interpreter(model_content=model, experimental_op_resolver_type=plain)
    nodes = interpreter._get_ops_details()
    if any(node["op_name"].startswith(_BY_VALUE) for node in nodes):
        return []
    described = {item["index"]: item for item in interpreter.get_tensor_details()}
    variable = {int(tensor) for node in nodes for tensor in node["outputs"]}
    variable |= {item["index"] for item in interpreter.get_input_details()}
    found: dict[int, NDArray[Any]] = {}
    for node in nodes:
        for place, tensor in enumerate(map(int, node["inputs"])):
            if tensor < 0 or tensor in variable:
                continue
            item = described[tensor]
            is_bias = place == 2 and node["op_name"] in _BIASED
            is_large = math.prod(item["shape"]) >= _LARGE and (len(item["shape"]) > 1 or is_bias)
            if is_large and item["dtype"].__name__ == "float32":
                found[tensor] = interpreter.get_tensor(tensor)
    return [values for values in found.values() if 0 < float(values.std()) < math.inf]
