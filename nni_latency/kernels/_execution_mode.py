"""How kernels are run, by runtime and by what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from nni_latency.measurement import Record
from nni_latency.measurement.runtimes import Runtime
from nni_latency.micro_benchmarks import FEEDER

#: How a kernel is run: after layers that produce its input, side by side with others in one network, or as a network.
ExecutionMode = Literal["chained", "parallel", "standalone"]


def execution_mode_of(runtime: Runtime) -> ExecutionMode:
    """Return how a runtime runs kernels."""
    if runtime.divides:
        return "parallel"
    return "chained" if runtime.supports_layer_timing else "standalone"


def execution_mode_of_records(records: Sequence[Record]) -> ExecutionMode:
    """Return how kernels were run whose records these are."""
    keys = {key for record in records for key in record.subjects}
    if any(key.startswith(FEEDER) for key in keys):
        return "chained"
    return "parallel" if any(record.parts for record in records) else "standalone"
