# SPDX-License-Identifier: Apache-2.0
"""`run_benchmarks`: measures blocks and writes a file of points."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Unpack

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.measurement import Protocol
from nni_latency.measurement.runtimes import Runtime
from nni_latency.micro_benchmarks._blocks import BATCHES, BLOCKS
from nni_latency.micro_benchmarks._point_schedule import PointSchedule, Series
from nni_latency.micro_benchmarks._points import BenchmarkPoint, BenchmarkPoints
from nni_latency.platforms import Platform
from nni_latency.tables import Measuring, MeasuringOptions, new_file

#: The predefined set at all batch sizes.
SERIES: tuple[Series, ...] = tuple((block, BATCHES) for block in BLOCKS)


def run_benchmarks(
    runtime: Runtime,
    protocol: Protocol,
    out: str | Path,
    *,
    series: Sequence[Series] = SERIES,
    overwrite: bool = False,
    **how: Unpack[MeasuringOptions],
) -> BenchmarkPoints:
    """Measure blocks individually, with caches in the state of a network, and write the points.

    Every block is tried at increasing batch sizes, until memory or the time budget end its series. Then rounds over all
    points follow. Every visit is stored before the next begins: the same call resumes.

    Parameters
    ----------
    runtime : Runtime
        Runtime that executes the blocks; its platform is written to the file.
    protocol : Protocol
        Measuring protocol; each point takes at most about a thousandth of its `time_budget`.
    out : str or Path
        File of the points.
    series : sequence of (Block, tuple of int)
        Blocks, each with its batch sizes, smallest first; the predefined set by default.
    overwrite : bool, default=False
        Replace a finished file.
    **how
        As for `nni_latency.tables.build_table`.

    Returns
    -------
    BenchmarkPoints
        The points of the file.

    Raises
    ------
    OutputError
        If the file or a record cannot be written.
    InvalidValueError
        If the file exists and `overwrite` is false, or there is no block.
    BusyError
        If another process is measuring for this file.
    MismatchError
        If runtime and protocol differ in the number of threads.
    MeasurementError
        If no block can be executed, or the runtime cannot time a block behind its feeder.
    """
    _check(series, runtime, protocol)
    measuring = Measuring(runtime, protocol, **how)
    with new_file(out, overwrite=overwrite) as target:
        schedule = PointSchedule(series, protocol, partial(_free_memory, runtime))
        content = {"blocks": [[block.name, *batches] for block, batches in series]}
        points = measuring.run(schedule, content).mark(_summarise(schedule, runtime.platform))
        points.save(target)
    return points


def _free_memory(runtime: Runtime) -> int:
    """Return the memory of the GPU, or the free memory of the machine [byte]; 0 if unknown."""
    whole = runtime.platform.facts.get("gpu_memory")
    return int(whole) if whole else runtime.conditions().memory_available or 0


def _check(series: Sequence[Series], runtime: Runtime, protocol: Protocol) -> None:
    if not runtime.supports_layer_timing:
        raise MeasurementError(
            f"The runtime {runtime.name!r} compiles whole networks and cannot be timed behind a feeder. "
            "Measure micro-benchmarks with 'torch'."
        )
    protocol.check_threads(runtime.platform.threads)
    names = [block.name for block, _ in series]
    if not names or len(set(names)) != len(names):
        raise InvalidValueError("The 'series' must be blocks that are all different, at least one.")
    for block, batches in series:
        if not batches or list(batches) != sorted(set(batches)) or batches[0] < 1:
            raise InvalidValueError(f"The batch sizes of {block.name!r} must be >= 1 and rise. Got {batches!r}.")


def _summarise(schedule: PointSchedule, platform: Platform) -> BenchmarkPoints:
    points = tuple(
        BenchmarkPoint(
            block=point.block.name,
            kind=point.block.kind,
            input_shape=point.block.input_shape(point.batch),
            ops=point.ops,
            value=found.value,
            low=found.low,
            high=found.high,
            n_samples=found.n_samples,
        )
        for point, found in schedule.summaries()
    )
    return BenchmarkPoints(
        points=points,
        platform=platform,
        protocol=schedule.protocol,
        failures=schedule.reasons,
        rounds=len(schedule.drift),
        duration=round(schedule.spent, 3),
        drift=tuple(schedule.drift),
    )
