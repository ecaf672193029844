# SPDX-License-Identifier: Apache-2.0
"""`load_runtime` and `load_meter`: what runs and reads networks on this machine or on a device."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import nni_latency.devices as devices
import nni_latency.measurement as measurement
from nni_latency.errors import InvalidValueError
from nni_latency.loading._connections import connection_of
from nni_latency.measurement.runtimes import Runtime
from nni_latency.platforms import PRECISIONS
from nni_latency.plugins import Registration, load_registry

#: The runtime of a benchmark binary that a file describes.
OWN_TOOL = "tool"

#: Options that runtimes have on a device with Python; they override those of ``devices.toml``.
DEVICE_OPTIONS = ("python", "cores")


def load_runtime(
    source: str,
    device: str = "cpu",
    *,
    threads: int = 1,
    on_wait: Callable[[str], None] = lambda _sentence: None,
) -> Runtime:
    """Return a runtime of this machine, or of a device.

    Parameters
    ----------
    source : str
        The name of a registered one, or ``NAME:PRECISION``, such as ``onnxruntime`` or ``openvino:bf16``.
    device : str, default="cpu"
        Where it runs: ``cpu``, ``cuda`` or ``cuda:N`` of this machine, or another device, as for `load_connection`.
    threads : int, default=1
        Threads that compute one network.
    on_wait : callable
        Called with a sentence when a device is waited for.

    Raises
    ------
    UnknownNameError
        If there is no runtime of that name, or no such device.
    InvalidValueError
        If there is no such precision, or the runtime does not run on devices.
    DeviceError
        If a device cannot be reached, or lacks what is needed there.

    Examples
    --------
    >>> load_runtime("torch").platform.id.endswith(".torch.fp32.t1")
    True
    """
    name, precision = split_runtime(source)
    return make_runtime(name, device, threads=threads, precision=precision, on_wait=on_wait)


def find_runtime(name: str, device: str = "cpu") -> Registration:
    """Return the registration of a runtime.

    Parameters
    ----------
    name : str
        Its name.
    device : str, default="cpu"
        Where it is to run.

    Raises
    ------
    UnknownNameError
        If there is none; the message lists those that run on the device.
    """
    registry = load_registry()
    if name in registry.runtimes or connection_of(device) is None:
        return registry.find("runtime", name)
    return registry.find("runtime", name, registry.runtimes_on_devices)


def make_runtime(
    name: str, device: str, *, on_wait: Callable[[str], None] = lambda _sentence: None, **options: Any
) -> Runtime:
    """Make a registered runtime for this machine or for a device.

    Parameters
    ----------
    name, device, on_wait
        As for `load_runtime`.
    **options
        Threads, precision, and further arguments of the runtime; for a device with Python `DEVICE_OPTIONS`, too.

    Raises
    ------
    LatencyError
        As for `load_runtime`.
    """
    registration = find_runtime(name, device)
    connection = connection_of(device)
    if "connection" in registration.parameters():
        # A benchmark binary of this machine is reached as those of others are.
        where = "cpu" if connection is not None else device
        tool: Runtime = registration.make(where, connection=connection, on_wait=on_wait, **options)
        return tool
    if connection is None:
        made: Runtime = registration.make(device, **options)
        return made
    if not registration.on_devices:
        raise InvalidValueError(
            f"The runtime {name!r} runs on this machine alone: it has no adapter for a device such as {device!r}. "
            f"These run on devices: {', '.join(load_registry().runtimes_on_devices)}."
        )
    connection.python = str(options.pop("python", connection.python))
    connection.cores = devices.parse_cores(options.pop("cores", None)) or connection.cores
    return devices.DeviceRuntime(
        lambda place: registration.make("cpu", place=place, **options), connection, on_wait=on_wait
    )


def split_runtime(source: str) -> tuple[str, str]:
    """Return name and precision of a runtime that is written as ``NAME`` or ``NAME:PRECISION``.

    Raises
    ------
    InvalidValueError
        If there is no such precision.
    """
    name, colon, precision = source.partition(":")
    if colon and precision not in PRECISIONS:
        raise InvalidValueError(
            f"The platform {source!r} must be a runtime, or a runtime and one of the precisions "
            f"{', '.join(PRECISIONS)}, such as onnxruntime:int8. Got the precision {precision!r}."
        )
    return name, precision or "fp32"


def load_tool(
    name: str,
    device: str = "cpu",
    *,
    threads: int = 1,
    precision: str = "fp32",
    file: Any = None,
    binary: Any = None,
    cores: Any = None,
    connection: devices.Connection | None = None,
    on_wait: Callable[[str], None] = lambda _sentence: None,
) -> Runtime:
    """Return the runtime of a benchmark binary, of this machine or of a device without Python.

    Parameters
    ----------
    name : str
        Name of the binary, such as ``benchncnn``; ``tool`` for one that a file describes.
    device : str, default="cpu"
        ``cpu``.
    threads, precision
        As for `load_runtime`.
    file : str
        The TOML file that describes ``tool``.
    binary : str
        Its path on the device; the file may hold it as well.
    cores : str or int, optional
        Processors of the device that compute, such as ``4-7``.
    connection : Connection, optional
        How the device is reached; this machine by default.
    on_wait : callable
        Called with a sentence when the device is waited for.

    Raises
    ------
    InvalidValueError
        If the path or the file is missing, or an option is none.
    FileFormatError
        If the file cannot be read or lacks something.
    DeviceError
        If the device cannot be reached, or cannot run the binary.
    """
    tool = _described_tool(file) if name == OWN_TOOL else devices.tool_of(name)
    if device != "cpu":
        raise InvalidValueError(
            f"The tool {tool.name} runs on the cpu or on a device such as ssh:USER@HOST. Got the device {device!r}."
        )
    path = binary or (tool.binary if isinstance(tool, devices.FileTool) else None)
    if path is None:
        raise InvalidValueError(
            f"The path of {tool.name} on the device is missing. Give the option 'binary' of the runtime, as in "
            f"binary=/data/local/tmp/{tool.name}."
        )
    where = connection or devices.PythonConnection(sys.executable)
    numbers = devices.parse_cores(cores) or where.cores
    on_device = devices.ToolDevice(
        where, tool, str(path), threads=threads, precision=precision, cores=numbers, on_wait=on_wait
    )
    if tool.plugin is None:
        return devices.ToolRuntime(on_device)
    plugin = load_registry().find("runtime", tool.plugin)
    return devices.ToolRuntime(
        on_device, lambda place: plugin.make("cpu", threads=threads, precision=precision, place=place)
    )


def _described_tool(file: Any) -> devices.FileTool:
    if file is None:
        raise InvalidValueError(
            "The runtime 'tool' needs the TOML file that describes it. Give its option 'file', as in file=TOOL.toml."
        )
    return devices.read_tool(str(file))


def load_meter(source: measurement.Meter | str, device: str = "cpu") -> measurement.Meter:
    """Return a meter.

    Parameters
    ----------
    source : Meter or str
        A meter, which is returned as it is; or the name of a registered one, ``"name"`` or ``"name:argument"``, such as
        ``rapl`` or ``constant:15``. An empty name is ``nvml`` for a GPU and ``rapl`` for a processor.
    device : str, default="cpu"
        What it reads.

    Raises
    ------
    UnknownNameError
        If there is no meter of that name.
    InvalidValueError
        If its argument is not one, or it takes none.
    PluginError
        If a plugin fails to make it.

    Examples
    --------
    >>> load_meter("constant:15").description
    'constant:15'
    """
    if isinstance(source, measurement.Meter):
        return source
    name, colon, argument = (source or ("nvml" if device.startswith("cuda") else "rapl")).partition(":")
    registration = load_registry().find("meter", name)
    if colon and len(registration.parameters()) < 2:
        raise InvalidValueError(f"The meter {name!r} takes no argument. Got {argument!r}.")
    made: measurement.Meter = registration.make(device, argument) if colon else registration.make(device)
    return made
