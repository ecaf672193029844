# SPDX-License-Identifier: Apache-2.0
"""Tables of memory, which is counted without a device."""

from __future__ import annotations

import contextlib
import copy
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
        If the metric is not one of these, or the precision of the platform is none that torch runs modules in.
    MeasurementError
        If a candidate cannot be built or executed.
    """
    if metric not in COUNTED_METRICS:
        raise InvalidValueError(f"Counted are {' and '.join(COUNTED_METRICS)}. Got {metric!r}.")
    import torch

    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    if platform.precision not in dtypes:
        raise InvalidValueError(f"Memory is counted in {', '.join(dtypes)}. The platform is {platform.id}.")
    dtype = dtypes[platform.precision]
    inputs: Any = torch.empty(plan.input_shape, dtype=dtype, device="meta")
    layers = []
    for layer in plan.layers:
        entries, outputs = {}, None
        for name, candidate in layer.candidates.items():
            with _naming("make", layer.name, name):
                module = candidate.build().eval().to(dtype)
            with _naming("run", layer.name, name):
                # Accessed through the package and not imported from it, so that torch is loaded only here.
                if metric == "parameter_memory":
                    count = float(measurement.parameter_memory(module))
                else:
                    count = float(measurement.activation_memory(module, inputs))
                if outputs is None:
                    with torch.inference_mode():
                        outputs = copy.deepcopy(module).to("meta")(inputs)
            entries[name] = Entry(count, count, count, op=candidate.op)
        layers.append(TableLayer.of_plan(layer, entries))
        inputs = outputs
    return LookupTable(
        space=plan.space, platform=platform, layers=tuple(layers), input_shape=plan.input_shape, metric=metric
    )


@contextlib.contextmanager
def _naming(what: str, layer: str, name: str) -> Iterator[None]:
    """Name the candidate in any error that it raises."""
    try:
        yield
    except Exception as error:  # third-party code may raise anything
        raise MeasurementError(f"Cannot {what} {layer}:{name}: {type(error).__name__}: {error}") from error
