from ._connection import Completed, Connection, DeviceError, PythonConnection

__all__ = ["Completed", "Connection", "DeviceError", "PythonConnection"]
