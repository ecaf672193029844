"""How kernels are run, by runtime and by what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from nni_latency.measurement import Record
from nni_latency.measurement.runtimes import Runtime
from nni_latency.micro_benchmarks import FEEDER

#: How a kernel is run: behind what feeds it, side by side with others in one network, or as a network of its own.
Way = Literal["fed", "beside", "alone"]


def way_of(runtime: Runtime) -> Way:
    """Return how a runtime runs kernels."""
    if runtime.divides:
        return "beside"
    return "fed" if runtime.supports_layer_timing else "alone"


def way_of_records(records: Sequence[Record]) -> Way:
    """Return how kernels were run whose records these are."""
    keys = {key for record in records for key in record.subjects}
    if any(key.startswith(FEEDER) for key in keys):
        return "fed"
    return "beside" if any(record.parts for record in records) else "alone"
