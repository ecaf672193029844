from ._adb import AdbConnection
from ._connection import Completed, Connection, DeviceError, PythonConnection
from ._device_bench import DeviceBench, DeviceBenches
from ._device_runtime import DeviceRuntime
from ._known_devices import KnownDevice, devices_file, read_devices
from ._lock import DeviceLock, locked
from ._session import Session
from ._ssh import SshConnection

__all__ = [
    "AdbConnection",
    "Completed",
    "Connection",
    "DeviceBench",
    "DeviceBenches",
    "DeviceError",
    "DeviceLock",
    "DeviceRuntime",
    "KnownDevice",
    "PythonConnection",
    "Session",
    "SshConnection",
    "devices_file",
    "locked",
    "read_devices",
]
