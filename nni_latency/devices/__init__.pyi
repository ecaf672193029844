# SPDX-License-Identifier: Apache-2.0
from ._adb import AdbConnection
from ._check import DeviceCheck, check_device, check_devices
from ._connection import Completed, Connection, DeviceError, PythonConnection
from ._device_bench import DeviceBench, DeviceBenches
from ._device_runtime import DeviceRuntime
from ._known_devices import KnownDevice, devices_file, read_devices
from ._place import DevicePlace
from ._session import Session
from ._shell_facts import ShellFacts, parse_cores
from ._ssh import SshConnection
from ._tool import Start, Tool, UnreadableError, Written
from ._tool_bench import ToolBench, ToolBenches
from ._tool_device import ToolDevice
from ._tool_file import FileTool, read_tool
from ._tool_network import ToolNetwork
from ._tool_runtime import ToolRuntime
from ._tool_trtexec import tensorrt_node
from ._tools import tool_of

__all__ = [
    "AdbConnection",
    "Completed",
    "Connection",
    "DeviceBench",
    "DeviceBenches",
    "DeviceCheck",
    "DeviceError",
    "DevicePlace",
    "DeviceRuntime",
    "FileTool",
    "KnownDevice",
    "PythonConnection",
    "Session",
    "ShellFacts",
    "SshConnection",
    "Start",
    "Tool",
    "ToolBench",
    "ToolBenches",
    "ToolDevice",
    "ToolNetwork",
    "ToolRuntime",
    "UnreadableError",
    "Written",
    "check_device",
    "check_devices",
    "devices_file",
    "parse_cores",
    "read_devices",
    "read_tool",
    "tensorrt_node",
    "tool_of",
]
