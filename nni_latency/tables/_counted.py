# SPDX-License-Identifier: Apache-2.0
"""Tables of memory, which is counted without a device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import nni_latency.measurement as measurement
from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.platforms import Platform
from nni_latency.tables._entries import Entry, TableLayer
from nni_latency.tables._lookup_table import LookupTable
from nni_latency.tables._plan import MeasurePlan
from nni_latency.units import COUNTED_METRICS


def count_table(plan: MeasurePlan, metric: str, platform: Platform) -> LookupTable:
    """Count the memory of every candidate of a plan, without a device.

    Parameters
    ----------
    plan : MeasurePlan
        Candidates to count.
    metric : {"parameter_memory", "activation_memory"}
        Bytes of parameters and buffers; or the peak bytes of a candidate's live tensors, its input and output included.
    platform : Platform
        Determines the precision, and is recorded in the table.

    Returns
    -------
    LookupTable

    Raises
    ------
    InvalidValueError
        If the metric is not one of these.
    MeasurementError
        If a candidate cannot be built or executed.
    """
    if metric not in COUNTED_METRICS:
        raise InvalidValueError(f"Counted are {' and '.join(COUNTED_METRICS)}. Got {metric!r}.")
    layers, inputs = [], _zeros(plan.input_shape, platform.precision)
    for layer in plan.layers:
        entries, outputs = {}, None
        for name, candidate in layer.candidates.items():
            with _naming("make", layer.name, name):
                module = candidate.build().eval().to(_dtype(platform.precision))
            with _naming("run", layer.name, name):
                count = float(_count(metric, module, inputs))
                outputs = _run(module, inputs) if outputs is None else outputs
            entries[name] = Entry(count, count, count, op=candidate.op)
        layers.append(TableLayer.of_plan(layer, entries))
        inputs = outputs
    return LookupTable(
        space=plan.space, platform=platform, layers=tuple(layers), input_shape=plan.input_shape, metric=metric
    )


def _count(metric: str, module: Any, inputs: Any) -> int:
    # Accessed through the package and not imported from it, so that torch is loaded only here.
    if metric == "parameter_memory":
        return measurement.parameter_memory(module)
    return measurement.activation_memory(module, inputs)


@contextlib.contextmanager
def _naming(what: str, layer: str, name: str) -> Iterator[None]:
    """Name the candidate in any error that it raises."""
    try:
        yield
    except Exception as error:  # third-party code may raise anything
        raise MeasurementError(f"Cannot {what} {layer}:{name}: {type(error).__name__}: {error}") from error


def _zeros(shape: tuple[int, ...], precision: str) -> Any:
    import torch

    return torch.empty(shape, dtype=_dtype(precision), device="meta")


def _dtype(precision: str) -> Any:
    import torch

    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def _run(module: Any, inputs: Any) -> Any:
    import copy

    import torch

    with torch.inference_mode():
        return copy.deepcopy(module).to("meta")(inputs)
