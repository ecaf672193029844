from ._connection import Completed, Connection, DeviceError, PythonConnection
from ._device_bench import DeviceBench, DeviceBenches
from ._device_runtime import DeviceRuntime
from ._session import Session

__all__ = [
    "Completed",
    "Connection",
    "DeviceBench",
    "DeviceBenches",
    "DeviceError",
    "DeviceRuntime",
    "PythonConnection",
    "Session",
]
