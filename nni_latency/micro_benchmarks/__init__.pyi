# SPDX-License-Identifier: Apache-2.0
from ._blocks import BLOCKS, KINDS, Block, draw_blocks
from ._point_schedule import FEEDER, PointSchedule, fed_chain, inputs_of
from ._points import BenchmarkPoint, BenchmarkPoints, points_schema
from ._running import SERIES, run_benchmarks

__all__ = [
    "BLOCKS",
    "FEEDER",
    "KINDS",
    "SERIES",
    "BenchmarkPoint",
    "BenchmarkPoints",
    "Block",
    "PointSchedule",
    "draw_blocks",
    "fed_chain",
    "inputs_of",
    "points_schema",
    "run_benchmarks",
]
