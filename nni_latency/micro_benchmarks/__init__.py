"""Micro-benchmarks: 56 blocks that tell what a device is like."""

from nni_latency.micro_benchmarks._blocks import BATCHES, BLOCKS, KINDS, Block, draw_blocks
from nni_latency.micro_benchmarks._document import points_schema
from nni_latency.micro_benchmarks._point_schedule import PointSchedule
from nni_latency.micro_benchmarks._points import BenchmarkPoint, BenchmarkPoints
from nni_latency.micro_benchmarks._running import SERIES, run_benchmarks

__all__ = [
    "BATCHES",
    "BLOCKS",
    "KINDS",
    "SERIES",
    "BenchmarkPoint",
    "BenchmarkPoints",
    "Block",
    "PointSchedule",
    "draw_blocks",
    "points_schema",
    "run_benchmarks",
]
