"""The options of commands that measure: where, with which runtime, for how long, and what earlier runs are good for."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

import nni_latency.loading as loading
import nni_latency.measurement as measurement
import nni_latency.measurement.runtimes as runtimes
import nni_latency.tables as tables
from nni_latency.cli._option import ASSIGNMENT, DURATION, option, with_fields
from nni_latency.errors import InvalidValueError, MismatchError
from nni_latency.platforms import PRECISIONS, Platform
from nni_latency.plugins import Registration, load_registry

_device_option = partial(option, "Device: cpu, cuda or cuda:N.", default="cpu")
_runtime_options = partial(
    option,
    "Option of the runtime, such as channels_last=true; repeat for several.",
    "--runtime-option",
    type=ASSIGNMENT,
    multiple=True,
)

database_option = partial(
    option,
    "Where measurements are kept.  [default: the user's own database]",
    metavar="URL|FILE",
    envvar="NNI_LATENCY_DATABASE",
)


@dataclass(frozen=True)
class PlatformOptions:
    """Where something is measured."""

    device: str = _device_option()
    runtime: str = option("Runtime that executes the networks.", default="torch")
    runtime_options: tuple[tuple[str, Any], ...] = _runtime_options()
    precision: str = option("Numeric precision.", type=click.Choice(PRECISIONS), default="fp32")
    threads: int = option("Number of CPU threads.", type=click.IntRange(1), default=1)
    allocator: str = option(
        "Freed memory is kept for the next run, or left to the system as in a plain script.",
        type=click.Choice(["kept", "system"]),
        default="kept",
    )


@dataclass(frozen=True)
class DeviceOptions:
    """Where something is measured, if runtime, precision and threads are those of a table."""

    device: str = _device_option()
    runtime_options: tuple[tuple[str, Any], ...] = _runtime_options()

    def of(self, platform: Platform) -> PlatformOptions:
        """Return the options with runtime, precision and threads of a platform."""
        return PlatformOptions(
            self.device,
            platform.runtime,
            self.runtime_options,
            platform.precision,
            platform.threads,
            str(platform.facts.get("runtime.allocator", "kept")),
        )


def check_known(platform: Platform) -> None:
    """Raise `MismatchError` if numbers do not say where they hold, as those of a table by hand may."""
    if platform.runtime == "unknown":
        raise MismatchError(
            "The estimator does not say on which device and runtime its numbers hold, so nothing that is measured can "
            "be compared with them. Make the table with a platform, as in LookupTable.from_latencies(..., "
            "platform=nni_latency.platforms.Platform.current())."
        )


@dataclass(frozen=True)
class ProtocolOptions:
    """When measuring ends, and how visits are made."""

    budget: float | None = option(
        "Maximum time spent measuring, such as 30s or 5min. Starting and loading come on top.", type=DURATION
    )
    protocol_fields: tuple[tuple[str, Any], ...] = option(
        "Field of the protocol, such as rounds=5 or half_width=0.01; repeat for several.",
        "--protocol",
        type=ASSIGNMENT,
        multiple=True,
    )

    def of(self, usual: measurement.Protocol, threads: int, seed: int = 0) -> measurement.Protocol:
        """Return the usual protocol of a command with what the options change.

        Raises
        ------
        UnknownNameError
            If a protocol has no such field.
        InvalidValueError
            If a value is outside its range.
        """
        fixed = ("threads", "seed", "time_budget")
        changed = with_fields(usual, self.protocol_fields, "field of the protocol", fixed=fixed)
        budget = usual.time_budget if self.budget is None else self.budget
        return dataclasses.replace(changed, time_budget=budget, threads=threads, seed=seed)


@dataclass(frozen=True)
class StoreOptions:
    """Where measurements are kept, and what those of earlier runs are good for."""

    fresh: bool = option("Measure again what the database already holds.", default=False)
    database: str | None = database_option()


@dataclass(frozen=True)
class MeterOptions:
    """What reads energy and power."""

    meter: str | None = option(
        "Meter of energy: rapl, nvml, zeus, csv:FILE, http:URL, constant:WATTS or that of a plugin.  "
        "[default: nvml or rapl, by the device, where energy or power is asked for]",
        metavar="NAME[:ARGUMENT]",
    )
    max_window: float | None = option(
        "Longest window of a meter. How long it has to be is found out.  [default: 10s]", type=DURATION
    )

    def meters(self, metric: str, device: str) -> tuple[measurement.Meter, ...]:
        """Return the meters that a metric needs: none unless energy or power is asked for, or a meter is named.

        Raises
        ------
        MeasurementError
            If the meter cannot be read here; it is opened once, so that it is told before anything is measured.
        """
        if self.meter is None and metric not in tables.METERED:
            return ()
        meter = loading.load_meter(self.meter or "", device)
        with meter.session():
            return (meter,)

    def protocol(self, protocol: measurement.Protocol) -> measurement.Protocol:
        """Return a protocol with windows as long as they may be."""
        if self.max_window is None:
            return protocol
        return dataclasses.replace(protocol, max_measure_execution_time=self.max_window)


def make_runtime(options: PlatformOptions) -> runtimes.Runtime:
    """Make the runtime that the options name.

    Raises
    ------
    UnknownNameError
        If there is no such runtime, or this machine has no such device.
    InvalidValueError
        If the runtime does not have an option, or its value is of another type.
    """
    registration = load_registry().find("runtime", options.runtime)
    given = dict(options.runtime_options)
    if options.allocator != "kept":
        given["allocator"] = options.allocator
    _check_options(registration, given)
    made: runtimes.Runtime = registration.make(
        options.device, threads=options.threads, precision=options.precision, **given
    )
    return made


def _check_options(registration: Registration, given: dict[str, Any]) -> None:
    runtime, factory, parameters = registration.name, registration.factory, registration.parameters()
    fixed = {"device", "threads", "precision", *(factory.keywords if isinstance(factory, partial) else ())}
    known = {
        name: parameter.default
        for name, parameter in parameters.items()
        if name not in fixed and parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    }
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name, value in given.items():
        if name in fixed or (name not in known and not open_ended):
            raise InvalidValueError(
                f"The runtime {runtime!r} has no option {name!r}. Its options: {', '.join(known) or 'none'}."
            )
        usual = known.get(name)
        if isinstance(usual, (bool, int, float, str)) and type(value) is not type(usual):
            raise InvalidValueError(
                f"The option {name!r} of the runtime {runtime!r} must be a {type(usual).__name__}, such as "
                f"{name}={str(usual).lower()}. Got {value!r}."
            )
