"""Tables of memory: counted, not measured, so they are exact and need no device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import nni_latency.measurement as measurement
from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.platforms import Platform
from nni_latency.tables._entry import Entry
from nni_latency.tables._lookup_table import LookupTable
from nni_latency.tables._plan import MeasurePlan
from nni_latency.tables._table_layer import TableLayer
from nni_latency.units import COUNTED_METRICS


def count_table(plan: MeasurePlan, metric: str, platform: Platform) -> LookupTable:
    """Count the memory of every candidate of a plan.

    Parameters
    ----------
    plan : MeasurePlan
        What to count.
    metric : {"parameter_memory", "activation_memory"}
        Bytes of parameters and buffers; or the most that the tensors of a candidate take at the same time, its input
        and output included.
    platform : Platform
        For which precision, and what the table says where it is from.

    Returns
    -------
    LookupTable

    Raises
    ------
    InvalidValueError
        If the metric is neither.
    MeasurementError
        If a candidate cannot be made or run.
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
        layers.append(TableLayer(layer.name, tuple(layer.candidates), entries, layer.searched, layer.default))
        inputs = outputs
    return LookupTable(
        space=plan.space, platform=platform, layers=tuple(layers), input_shape=plan.input_shape, metric=metric
    )


def as_throughput(table: LookupTable) -> LookupTable:
    """Turn a table of latencies into one of throughput: the batch size over the latency [1/s].

    Raises
    ------
    InvalidValueError
        If it is a table of another metric.
    """
    if table.metric != "latency":
        raise InvalidValueError(f"Only latencies become throughput. The table is one of {table.metric}.")
    batch = table.batch_size
    residency = table.residency and table.residency.scaled(1 / batch)
    return table.with_entries(lambda entry: entry.inverted(batch), metric="throughput", residency=residency)


def _count(metric: str, module: Any, inputs: Any) -> int:
    # Asked of the room and not imported from it: only then does it load torch.
    if metric == "parameter_memory":
        return measurement.parameter_memory(module)
    return measurement.activation_memory(module, inputs)


@contextlib.contextmanager
def _naming(what: str, layer: str, name: str) -> Iterator[None]:
    """Say which candidate it was that failed."""
    try:
        yield
    except Exception as error:  # a stranger's module may raise anything
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
