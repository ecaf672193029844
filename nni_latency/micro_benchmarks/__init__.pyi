from ._blocks import BATCHES, BLOCKS, KINDS, Block, draw_blocks
from ._document import points_schema
from ._feeding import FEEDER, fed_chain, inputs_of
from ._point_schedule import PointSchedule
from ._points import BenchmarkPoint, BenchmarkPoints
from ._running import SERIES, run_benchmarks

__all__ = [
    "BATCHES",
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
