from ._adb import AdbConnection
from ._connection import Completed, Connection, DeviceError, PythonConnection
from ._device_bench import DeviceBench, DeviceBenches
from ._device_runtime import DeviceRuntime
from ._known_devices import KnownDevice, devices_file, read_devices
from ._session import Session
from ._ssh import SshConnection

__all__ = [
    "AdbConnection",
    "Completed",
    "Connection",
    "DeviceBench",
    "DeviceBenches",
    "DeviceError",
    "DeviceRuntime",
    "KnownDevice",
    "PythonConnection",
    "Session",
    "SshConnection",
    "devices_file",
    "read_devices",
]
