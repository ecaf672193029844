"""`load_estimator`: an estimator from whatever a ``latency_estimator=`` argument may be."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import nni_latency.devices as devices
import nni_latency.documents as documents
import nni_latency.energy as energy
import nni_latency.estimators as estimators
import nni_latency.fusion as fusion
import nni_latency.graphs as graphs
import nni_latency.kernels as kernels
import nni_latency.measurement as measurement
import nni_latency.tables as tables
from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.files import is_file, naming, split_sources
from nni_latency.measurement.runtimes import Runtime
from nni_latency.platforms import PRECISIONS
from nni_latency.plugins import load_registry

#: Ends the argument of a fallback whose second estimator may be of another platform.
ACROSS = ",across-platforms"

EstimatorSource: TypeAlias = "estimators.Estimator | tables.LookupTable | str | os.PathLike[str]"


def load_estimator(source: EstimatorSource, *, missing: estimators.Missing | None = None) -> estimators.Estimator:
    """Return an estimator.

    Parameters
    ----------
    source : Estimator, LookupTable, str or path
        An estimator, which is returned as it is; a table; the path of a saved table or predictor; the name of
        a table that ships with the package, or ``"pretrained"`` for the predictor that ships; or the name of a
        registered plugin, ``"name"`` or ``"name:argument"``. A path that exists is a path, whatever it looks like.
    missing : {"error", "nearest", "predict"}, optional
        What a table does about candidates and operators without an entry; see
        `nni_latency.estimators.TableEstimator`.

    Raises
    ------
    InvalidValueError
        If the source is of another type, or a file of several platforms, of which one must be named.
    UnknownNameError
        If it is neither a file nor the name of a shipped table or of a plugin.
    FileFormatError
        If it is a file that cannot be read.
    PluginError
        If the plugin fails to make an estimator.

    Examples
    --------
    >>> from nni_latency import LookupTable
    >>> table = LookupTable.from_latencies({"a": ["x", "y"]}, {"a": {"x": 0.001, "y": 0.002}})
    >>> load_estimator(table).predict([[1]])
    array([0.002])
    """
    if isinstance(source, estimators.Estimator):
        return source.resolve()
    if isinstance(source, tables.LookupTable):
        return estimators.TableEstimator(source, missing=missing)
    if not isinstance(source, (str, os.PathLike)):
        raise InvalidValueError(
            "The 'latency_estimator' must be an Estimator, a LookupTable, the path of a saved one, or the name of a "
            f"plugin ('name' or 'name:argument'). Got {type(source).__name__}."
        )
    path = file_of(source)
    if path is None:
        return _from_plugin(str(source), missing)
    with naming(path):
        return _from_file(documents.SavedFile(path), os.fspath(source), missing)


def list_estimators() -> list[str]:
    """Return every name that `load_estimator` knows: shipped tables, the shipped predictor, and plugins.

    Most plugins want an argument, as in ``"acts:model.json"``; ``nni-latency plugins`` says which plugin each is from.

    Examples
    --------
    >>> "ensemble" in list_estimators()
    True
    """
    predictor = [graphs.PRETRAINED] if graphs.shipped_predictor() is not None else []
    return [*tables.shipped_tables(), *predictor, *load_registry().estimators]


def _from_file(file: documents.SavedFile, name: str, missing: estimators.Missing | None) -> estimators.Estimator:
    if file.kind == "nni_latency.graph_predictor":
        return graphs.GraphNetworkEstimator.of(name)
    found = documents.load(file, _ESTIMATORS)
    if isinstance(found, tables.LookupTable):
        return estimators.TableEstimator(found, missing=missing)
    if isinstance(found, estimators.Estimator):
        return found.resolve()
    if isinstance(found, kernels.KernelPredictors):
        return _kernel_estimator(found, name)
    return _portable_estimator(found, name)


def load_table(source: str | os.PathLike[str]) -> tables.LookupTable:
    """Return the table that a name stands for: a file, a shipped table or a plugin, as for `load_estimator`.

    Raises
    ------
    InvalidValueError
        If it is an estimator without a table.
    LatencyError
        Whatever `load_estimator` raises.
    """
    path = file_of(source)
    if path is not None:
        table: tables.LookupTable = documents.load(tables.find_table(path), _TABLES)
        return table
    found = load_estimator(source)
    if not isinstance(found, estimators.TableEstimator):
        raise InvalidValueError(f"{str(source)!r} is {found!r}, which is no table. Name a table.")
    return found.table


def load_fallback(argument: str) -> estimators.Estimator:
    """Make an estimator of ``TABLE,ESTIMATOR`` or ``TABLE,ESTIMATOR,across-platforms``, the argument of ``fallback``.

    Parameters
    ----------
    argument : str
        A table, by file or name, and what is asked for the entries that it lacks: whatever `load_estimator` takes. With
        ``across-platforms`` that may be of another platform, and is scaled to the table.

    Raises
    ------
    InvalidValueError
        If it is not of this form, or the first is no table.
    LatencyError
        Whatever `load_estimator` raises for one of them.
    """
    first, second = _two_sources(argument)
    behind = second.removesuffix(ACROSS)
    if not (first and behind.strip()):
        raise InvalidValueError(
            "The estimator 'fallback' takes a table and what is asked where it lacks entries, as in "
            f"'fallback:table.json,roofline:100,20{ACROSS}'. Got {argument!r}."
        )
    table, other = load_estimator(first), load_estimator(behind.strip())
    if not isinstance(table, estimators.TableEstimator):
        raise InvalidValueError(f"The first of a fallback must be a table. Got {table!r} for {first!r}.")
    return estimators.with_fallback(table, other, across_platforms=second.endswith(ACROSS))


def load_weighted(argument: str) -> estimators.Estimator:
    """Make an estimator of ``WEIGHT*TABLE,WEIGHT*TABLE``, the argument of ``weighted``.

    Parameters
    ----------
    argument : str
        Tables of several metrics, each with its weight in one over the SI unit of the metric; see
        `nni_latency.tables.weigh_tables`.

    Raises
    ------
    InvalidValueError
        If it is not of this form, or one is no table of candidates.
    LatencyError
        Whatever `load_table` and `nni_latency.tables.weigh_tables` raise.
    """
    weights, found = [], []
    for part in split_sources(argument):
        weight, star, source = part.partition("*")
        try:
            weights.append(float(weight))
        except ValueError:
            star = ""
        table = load_table(source.strip()) if star else None
        if table is None:
            raise InvalidValueError(
                "The estimator 'weighted' takes tables of candidates with weights, as in "
                f"'weighted:100*latency.json,20*energy.json'. Got {part!r}."
            )
        found.append(table)
    return estimators.TableEstimator.weighted(found, weights)


def load_kernels(argument: str) -> estimators.Estimator:
    """Make an estimator of ``PREDICTORS`` or ``PREDICTORS,RULES``, the argument of ``kernels``.

    Parameters
    ----------
    argument : str
        A file of ``nni-latency learn kernels``, and one of ``nni-latency learn kernels --fusion all``; without the
        second, the file ``fusion.PLATFORM.json`` beside the first.

    Raises
    ------
    InvalidValueError
        If there are no rules.
    MismatchError
        If the rules are those of another runtime.
    FileFormatError
        If a file cannot be read.
    """
    first, second = _two_sources(needed(argument, "kernels:PREDICTORS"))
    return _kernel_estimator(load_kernel_predictors(first), first, second)


def _kernel_estimator(predictors: kernels.KernelPredictors, first: str, second: str = "") -> estimators.Estimator:
    costs = kernels.PredictedKernels(predictors)
    rules = Path(second) if second else Path(first).with_name(f"fusion.{costs.platform.id}.json")
    if not is_file(rules):
        runtime = costs.platform.runtime
        raise InvalidValueError(
            f"There is no file {str(rules)!r} with the rules by which {runtime} makes kernels. Find them out with "
            f"'nni-latency learn kernels --fusion all', or name them: kernels:{first},RULES"
        )
    return estimators.KernelEstimator(fusion.read_rules(rules, costs.platform), costs, constant=costs.constant)


def load_energy(argument: str) -> estimators.Estimator:
    """Make an estimator of ``MODEL,DEVICE,metric=NAME``, the argument of ``energy``.

    Parameters
    ----------
    argument : str
        A file of ``nni-latency learn energy``; one of its devices, which may be left out where there is one alone, or
        the facts of another one, as in ``flops=1e13,bandwidth=6e11,power=165,rest=30,launch=1e-5``; and what is
        estimated, ``metric=energy``, which is the default, or ``metric=latency``.

    Raises
    ------
    InvalidValueError
        If it is not of this form, or the model does not know the device.
    FileFormatError
        If the file cannot be read.
    """
    path, *parts = split_sources(needed(argument, "energy:MODEL,DEVICE"))
    given = dict(part.partition("=")[::2] for part in parts if "=" in part)
    return _portable_estimator(
        energy.PortableModel.load(path), path, [part for part in parts if "=" not in part], given
    )


def _portable_estimator(
    model: energy.PortableModel, path: str, parts: Sequence[str] = (), facts: Mapping[str, str] = MappingProxyType({})
) -> estimators.Estimator:
    names, given = list(filter(None, parts)), dict(facts)
    metric = given.pop("metric", "energy")
    if given and not names:
        return energy.PortableEstimator(model, _device_facts(given), metric=metric)  # type: ignore[arg-type]
    names = names or list(model.devices_)
    if len(names) != 1 or given:
        known = ", ".join(model.devices_) or "none, so give facts"
        raise InvalidValueError(
            f"The estimator 'energy' takes a file and one device, or its facts: energy:{path},DEVICE. "
            f"It knows: {known}."
        )
    return energy.PortableEstimator(model, names[0], metric=metric)  # type: ignore[arg-type]


def _device_facts(given: Mapping[str, str]) -> energy.DeviceFacts:
    try:
        return energy.DeviceFacts(**{name: float(number) for name, number in given.items()})
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidValueError):
            raise
        raise InvalidValueError(
            "The facts of a device are flops, bandwidth, power, rest and launch, each with a number in SI units, as in "
            f"flops=1e13,bandwidth=6e11,power=165,rest=30,launch=1e-5. Got {', '.join(given)}."
        ) from error


def needed(argument: str, form: str) -> str:
    """Return the argument of an estimator that does nothing without one; `InvalidValueError` where there is none."""
    if not argument.strip():
        raise InvalidValueError(f"The estimator {form.partition(':')[0]!r} needs to know which file. Write {form}.")
    return argument


def _two_sources(argument: str) -> tuple[str, str]:
    first, *rest = split_sources(argument, 2)
    return first, "".join(rest)


#: Kinds of files that are tables, and those of which an estimator is made.
_TABLES = ("nni_latency.lookup_table",)
_ESTIMATORS = (
    *_TABLES,
    "nni_latency.acts",
    "nni_latency.transfer",
    "nni_latency.kernels",
    "nni_latency.energy",
)


def load_kernel_predictors(path: str | Path) -> kernels.KernelPredictors:
    """Load predictors of kernels, those of plugins too.

    Raises
    ------
    FileFormatError
        As for `nni_latency.kernels.KernelPredictors.load`.
    PluginError
        As for `load_kernel_types`.
    """
    return kernels.KernelPredictors.load(path, types=load_kernel_types())


def load_kernel_types() -> Mapping[str, kernels.KernelType]:
    """Return every kernel type by name: those of the catalogue, and those of plugins.

    Raises
    ------
    PluginError
        If a plugin fails to make one, or makes something else.
    """
    found = dict(kernels.kernel_types())
    for name, registration in load_registry().kernels.items():
        found[name] = registration.make()
    return found


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


def make_runtime(
    name: str, device: str, *, on_wait: Callable[[str], None] = lambda _sentence: None, **options: Any
) -> Runtime:
    """Make a registered runtime for this machine or for a device.

    Parameters
    ----------
    name, device, on_wait
        As for `load_runtime`.
    **options
        Threads, precision, and further arguments of the runtime.

    Raises
    ------
    LatencyError
        As for `load_runtime`.
    """
    registration = load_registry().find("runtime", name)
    connection = connection_of(device)
    if "connection" in registration.parameters():
        # A benchmark binary of this machine is reached as those of others are.
        where = "cpu" if connection is not None else device
        tool: Runtime = registration.make(where, connection=connection, on_wait=on_wait, **options)
        return tool
    if connection is None:
        made: Runtime = registration.make(device, **options)
        return made
    if "place" not in registration.parameters():
        raise InvalidValueError(
            f"The runtime {name!r} runs on this machine alone: it has no adapter for a device such as {device!r}. Take "
            "another one, such as onnxruntime."
        )
    return devices.DeviceRuntime(
        lambda place: registration.make("cpu", place=place, **options), connection, on_wait=on_wait
    )


def load_tool(
    name: str,
    device: str = "cpu",
    *,
    threads: int = 1,
    precision: str = "fp32",
    binary: Any = None,
    cores: Any = None,
    connection: devices.Connection | None = None,
    on_wait: Callable[[str], None] = lambda _sentence: None,
) -> Runtime:
    """Return the runtime of a benchmark binary, of this machine or of a device without Python.

    Parameters
    ----------
    name : str
        Name of the binary, such as ``benchncnn``.
    device : str, default="cpu"
        ``cpu``.
    threads, precision
        As for `load_runtime`.
    binary : str
        Its path on the device.
    cores : str or int, optional
        Processors of the device that compute, such as ``4-7``.
    connection : Connection, optional
        How the device is reached; this machine by default.
    on_wait : callable
        Called with a sentence when the device is waited for.

    Raises
    ------
    InvalidValueError
        If the path is missing, or an option is none.
    DeviceError
        If the device cannot be reached, or cannot run the binary.
    """
    tool = devices.tool_of(name)
    return _tool_runtime(tool, device, binary, cores, threads, precision, connection, on_wait)


def load_own_tool(
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
    """Return the runtime of a benchmark binary that a TOML file describes.

    Parameters
    ----------
    device, threads, precision, binary, cores, connection, on_wait
        As for `load_tool`. The file may hold the path of the binary as well.
    file : str
        The file.

    Raises
    ------
    LatencyError
        As for `load_tool`, and if the file cannot be read or lacks something.
    """
    if file is None:
        raise InvalidValueError(
            "The runtime 'tool' needs the TOML file that describes it. Give its option 'file', as in file=TOOL.toml."
        )
    tool = devices.read_tool(str(file))
    return _tool_runtime(tool, device, binary or tool.binary, cores, threads, precision, connection, on_wait)


def _tool_runtime(
    tool: devices.Tool,
    device: str,
    binary: Any,
    cores: Any,
    threads: int,
    precision: str,
    connection: devices.Connection | None,
    on_wait: Callable[[str], None],
) -> Runtime:
    if device != "cpu":
        raise InvalidValueError(
            f"The tool {tool.name} runs on the cpu or on a device such as ssh:USER@HOST. Got the device {device!r}."
        )
    if binary is None:
        raise InvalidValueError(
            f"The path of {tool.name} on the device is missing. Give the option 'binary' of the runtime, as in "
            f"binary=/data/local/tmp/{tool.name}."
        )
    where = connection or devices.PythonConnection(sys.executable)
    numbers = devices.parse_cores(cores) or where.cores
    on_device = devices.ToolDevice(
        where, tool, str(binary), threads=threads, precision=precision, cores=numbers, on_wait=on_wait
    )
    if tool.plugin is None:
        return devices.ToolRuntime(on_device)
    plugin = load_registry().find("runtime", tool.plugin)
    return devices.ToolRuntime(
        on_device, lambda place: plugin.make("cpu", threads=threads, precision=precision, place=place)
    )


def connection_of(device: str) -> devices.Connection | None:
    """Return the connection to a device; None for ``cpu``, ``cuda``, ``cuda:N``, and what names no connection.

    Raises
    ------
    LatencyError
        As for `load_connection`.

    Examples
    --------
    >>> connection_of("ssh:pi@raspberrypi").description
    'ssh:pi@raspberrypi'
    >>> connection_of("cuda:0") is None
    True
    """
    name = device.partition(":")[0]
    if name in ("cpu", "cuda"):
        return None
    if name in load_registry().connections or device in devices.read_devices():
        return load_connection(device)
    return None


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


def load_remote(source: str, on_wait: Callable[[str], None] = lambda _sentence: None) -> measurement.Remote:
    """Reach other machines that measure or fit.

    Parameters
    ----------
    source : str
        The name of what reaches them and their address, such as ``farm:tcp://127.0.0.1:8786``.
    on_wait : callable, optional
        Called with a sentence when a machine is waited for.

    Raises
    ------
    InvalidValueError
        If it is not of this form.
    UnknownNameError
        If no plugin registers the name.
    RemoteError
        If nobody answers at the address.
    """
    name, _, address = source.partition(":")
    if not (name and address):
        raise InvalidValueError(
            f"Other machines are given as NAME:ADDRESS, such as farm:tcp://127.0.0.1:8786. Got {source!r}."
        )
    made: measurement.Remote = load_registry().find("remote", name).make(address, on_wait)
    return made


def load_connection(source: str) -> devices.Connection:
    """Make the connection to a device. Nothing is opened before it is used.

    Parameters
    ----------
    source : str
        The name of a registered connection and an address, such as ``ssh:pi@raspberrypi``, ``adb`` or
        ``python:/opt/other/bin/python``; or a name of the file `nni_latency.devices.devices_file`.

    Raises
    ------
    InvalidValueError
        If the address is none.
    UnknownNameError
        If there is no connection and no device of that name.
    FileFormatError
        If the file of devices cannot be read.
    PluginError
        If a plugin fails to make it.

    Examples
    --------
    >>> load_connection("ssh:pi@raspberrypi").description
    'ssh:pi@raspberrypi'
    """
    registered = load_registry().connections
    name, _, address = source.partition(":")
    if name in registered:
        made: devices.Connection = registered[name].make(address)
        return made
    known = devices.read_devices()
    if source not in known:
        names = ", ".join(known) or "none so far"
        raise UnknownNameError(
            f"There is no device {source!r}. A device is ssh:USER@HOST, adb, adb:SERIAL, python:PATH, or a name of "
            f"{str(devices.devices_file())!r}: {names}."
        )
    device = known[source]
    with naming(devices.devices_file()):
        if device.connection.partition(":")[0] not in registered:
            raise InvalidValueError(
                f"The device {source!r} must have a connection such as ssh:pi@raspberrypi, with one of "
                f"{', '.join(registered)} in front. Got {device.connection!r}."
            )
        connection = load_connection(device.connection)
    if device.python:
        connection.python = device.python
    connection.cores = device.cores
    return connection


def file_of(source: str | os.PathLike[str]) -> Path | None:
    """Return the file that the source means: one that exists, one that ships, or what looks like a path.

    Raises
    ------
    UnknownNameError
        If it is ``pretrained``, and no predictor ships with this installation.
    """
    text = os.fspath(source)
    name = text.partition(":")[0]
    if is_file(text):
        return Path(text)
    shipped = graphs.shipped_predictor() if text == graphs.PRETRAINED else tables.shipped_table(text)
    looks_like_path = text.endswith((".json", ".safetensors")) or os.sep in name or not isinstance(source, str)
    return Path(text) if shipped is None and looks_like_path and name not in load_registry().estimators else shipped


def _from_plugin(source: str, missing: estimators.Missing | None) -> estimators.Estimator:
    name, _, argument = source.partition(":")
    try:
        registration = load_registry().find("estimator", name)
    except UnknownNameError as error:
        raise UnknownNameError(
            f"{error} There is no file {source!r} and no shipped table of that name either. {tables.LIST_SHIPPED}"
        ) from error
    estimator: estimators.Estimator = registration.make(argument)
    if missing is not None and isinstance(estimator, estimators.TableEstimator):
        if estimator.addends:
            weights, parts = zip(*estimator.addends, strict=True)
            return estimators.TableEstimator.weighted([part.table for part in parts], weights, missing=missing)
        return estimators.TableEstimator(estimator.table, missing=missing)
    return estimator
