# SPDX-License-Identifier: Apache-2.0
from ._base import ConstantMeter, CounterMeter, PowerLog, SampledMeter, update_period
from ._external import LOAD_PATTERN, CsvMeter, HttpMeter, clock_offset
from ._on_board import NvmlMeter, RaplMeter, ZeusMeter

__all__ = [
    "LOAD_PATTERN",
    "ConstantMeter",
    "CounterMeter",
    "CsvMeter",
    "HttpMeter",
    "NvmlMeter",
    "PowerLog",
    "RaplMeter",
    "SampledMeter",
    "ZeusMeter",
    "clock_offset",
    "update_period",
]
