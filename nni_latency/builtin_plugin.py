# SPDX-License-Identifier: Apache-2.0
"""What the package itself registers, through the same hooks as a stranger's plugin."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import nni_latency.estimators as estimators
import nni_latency.kernels as kernels
import nni_latency.loading as loading
import nni_latency.measurement.meters as meters
import nni_latency.measurement.runtimes as runtimes
import nni_latency.spaces as spaces
import nni_latency.tables as tables
import nni_latency.validation as validation
from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.files import is_file, split_sources
from nni_latency.plugins import Register, hookimpl


@hookimpl
def register_estimators(register: Register) -> None:
    """Register the estimators that read files, ``table:FILE`` and ``acts:FILE``, and those that measure on demand.

    ``kernels:PREDICTORS,RULES`` adds up kernels, ``energy:MODEL,DEVICE`` predicted operators, and
    ``graph-network:PREDICTOR,PLATFORM`` predicts whole networks; PREDICTOR may be ``pretrained``.
    ``fallback:TABLE,ESTIMATOR`` and ``ensemble:ESTIMATOR,ESTIMATOR`` combine others,
    ``weighted:WEIGHT*TABLE,WEIGHT*TABLE`` adds up tables of several metrics.
    ``table`` also takes the name of a table that ships; ``module``, ``graph`` and ``network`` take a device, ``cpu`` if
    none is given.
    """
    register("table", _read_table)
    register("acts", _read_acts)
    register("kernels", loading.load_kernels)
    register("energy", loading.load_energy)
    register("graph-network", "nni_latency.graphs:GraphNetworkEstimator.of")
    register("fallback", loading.load_fallback)
    register("ensemble", _load_ensemble)
    register("weighted", loading.load_weighted)
    register("module", partial(_measuring, "ModuleEstimator"))
    register("graph", partial(_measuring, "GraphEstimator"))
    register("network", partial(_measuring, "MeasuredNetworkEstimator"))


@hookimpl
def register_runtimes(register: Register) -> None:
    """Register the runtimes of torch, with ``-nhwc`` with the channels last in memory, and benchmark binaries.

    A binary takes the option ``binary``, its path on the device; ``tool`` takes ``file``, which describes one.
    """
    for name, kind in {"torch": "TorchEager", "torchscript": "TorchScript", "torch-compile": "TorchCompile"}.items():
        register(name, partial(_torch_runtime, kind))
        register(f"{name}-nhwc", partial(_torch_runtime, kind, channels_last=True))
    for name in ("benchmark_model", "benchncnn", "onnxruntime_perf_test", "trtexec", "benchmark_app"):
        register(name, partial(loading.load_tool, name, file=None), on_devices=True)
    register(loading.OWN_TOOL, partial(loading.load_tool, loading.OWN_TOOL), on_devices=True)


@hookimpl
def register_meters(register: Register) -> None:
    """Register the meters of energy, each with what it takes behind a colon.

    ``rapl:DOMAIN`` and ``nvml:WAY`` read processors and NVIDIA GPUs, ``zeus`` Jetson and Apple silicon, ``csv:FILE``
    and ``http:URL`` external meters; ``constant:WATTS`` assumes a power.
    """
    for name in ("rapl", "nvml", "zeus", "csv", "constant"):
        register(name, f"nni_latency.measurement.meters:{name.title()}Meter.of")
    for scheme in ("http", "https"):
        register(scheme, partial(_http_meter, scheme))


@hookimpl
def register_spaces(register: Register) -> None:
    """Register the space ``fbnet`` and those of NNI's hub."""
    register("fbnet", "nni_latency.spaces:fbnet_space")
    for name in spaces.HUB_SPACES:
        register(name, partial(_hub_space, name))


@hookimpl
def register_kernels(register: Register) -> None:
    """Register the kernels that are measured unless others are named."""
    for name in kernels.USUAL_KERNELS:
        register(name, partial(_kernel_type, name))


@hookimpl
def register_connections(register: Register) -> None:
    """Register connections to devices: ``ssh:USER@HOST``, ``adb:SERIAL``, and ``python:PATH`` of this machine."""
    for name in ("ssh", "adb", "python"):
        register(name, f"nni_latency.devices:{name.title()}Connection")


def _read_table(argument: str) -> Any:
    return loading.load_estimator(tables.find_table(argument))


def _load_ensemble(argument: str) -> Any:
    """Make an ensemble of estimators separated by commas; tables with a validation are weighed by it."""
    names = [name for name in split_sources(argument) if name]
    members = [loading.load_estimator(name) for name in names]
    found = {name: validation.read_summary(path) for name in names if (path := _validation_of(name)) is not None}
    if found and len(found) < len(names):
        lacking = ", ".join(name for name in names if name not in found)
        raise InvalidValueError(
            f"Some members of the ensemble have a validation beside them, and these have none: {lacking}. Make it with "
            "'nni-latency validate', or give weights to nni_latency.estimators.make_ensemble in Python."
        )
    weights = [1 / max(found[name].scores.rmspe, 1e-3) ** 2 for name in names] if found else None
    return estimators.make_ensemble(members, weights)


def _validation_of(name: str) -> Path | None:
    """Return the validation that lies beside a table, if it is a table and has one."""
    try:
        path = tables.validation_path(tables.find_table(name.removeprefix("table:")))
    except UnknownNameError:
        return None
    return path if is_file(path) else None


def _read_acts(argument: str) -> Any:
    return estimators.ActsEstimator.load(loading.needed(argument, "acts:FILE"))


def _measuring(kind: str, device: str) -> Any:
    if loading.connection_of(device) is not None:
        raise InvalidValueError(
            f"{kind} measures in eager torch, which runs on this machine alone. In Python, make it with "
            f"runtime=load_runtime('onnxruntime', {device!r})."
        )
    return getattr(estimators, kind)(runtime=runtimes.TorchEager(device or "cpu"))


def _torch_runtime(
    kind: str,
    device: str = "cpu",
    *,
    threads: int = 1,
    precision: str = "fp32",
    channels_last: bool = False,
    allocator: str = "kept",
) -> Any:
    options = {"threads": threads, "precision": precision, "channels_last": channels_last, "allocator": allocator}
    return getattr(runtimes, kind)(device, **options)


def _http_meter(scheme: str, device: str, argument: str = "") -> Any:
    return meters.HttpMeter.of(scheme, device, argument)


def _hub_space(name: str, /, **arguments: Any) -> Any:
    return spaces.hub_space(name, **arguments)


def _kernel_type(name: str) -> Any:
    return kernels.kernel_types()[name]
