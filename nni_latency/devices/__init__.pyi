from ._connection import Completed, Connection, DeviceError, PythonConnection
from ._device_bench import DeviceBench, DeviceBenches
from ._device_runtime import DeviceRuntime
from ._session import Session
from ._shell_facts import ShellFacts, parse_cores
from ._tool import Start, Tool, UnreadableError, Written
from ._tool_bench import ToolBench, ToolBenches
from ._tool_device import ToolDevice
from ._tool_file import FileTool, read_tool
from ._tool_network import ToolNetwork
from ._tool_runtime import ToolRuntime
from ._tools import tool_of

__all__ = [
    "Completed",
    "Connection",
    "DeviceBench",
    "DeviceBenches",
    "DeviceError",
    "DeviceRuntime",
    "FileTool",
    "PythonConnection",
    "Session",
    "ShellFacts",
    "Start",
    "Tool",
    "ToolBench",
    "ToolBenches",
    "ToolDevice",
    "ToolNetwork",
    "ToolRuntime",
    "UnreadableError",
    "Written",
    "parse_cores",
    "read_tool",
    "tool_of",
]
