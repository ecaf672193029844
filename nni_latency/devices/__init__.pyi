from ._adb import AdbConnection
from ._connection import Completed, Connection, DeviceError, PythonConnection
from ._known_devices import KnownDevice, devices_file, read_devices
from ._lock import DeviceLock, locked
from ._ssh import SshConnection

__all__ = [
    "AdbConnection",
    "Completed",
    "Connection",
    "DeviceError",
    "DeviceLock",
    "KnownDevice",
    "PythonConnection",
    "SshConnection",
    "devices_file",
    "locked",
    "read_devices",
]
