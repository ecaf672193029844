from ._constant import ConstantMeter
from ._counter import CounterMeter, update_period
from ._csv import CsvMeter, clock_offset
from ._http import HttpMeter
from ._nvml import NvmlMeter
from ._power_log import PowerLog
from ._rapl import RaplMeter
from ._sampled import SampledMeter
from ._zeus import ZeusMeter

__all__ = [
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
