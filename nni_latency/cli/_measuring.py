# SPDX-License-Identifier: Apache-2.0
"""Measuring: the options of commands that measure, and the progress that they show."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

import click

import nni_latency.devices as devices
import nni_latency.loading as loading
import nni_latency.measurement as measurement
import nni_latency.measurement.runtimes as runtimes
import nni_latency.tables as tables
from nni_latency.cli._console import interrupted, progress, remarks, time_left
from nni_latency.cli._option import DURATION, fields_option, option, with_fields
from nni_latency.errors import InvalidValueError, MeasurementError, MismatchError
from nni_latency.platforms import PRECISIONS, Platform, measure_speeds
from nni_latency.plugins import Registration, load_registry
from nni_latency.units import number_of

#: What is kept of measurements that are interrupted.
RESUMABLE = "Run the same command again to resume: the database keeps what was measured."

device_option = partial(
    option,
    "Device: cpu, cuda or cuda:N of this machine, or another one: ssh:USER@HOST, adb, python:PATH or a name.",
    default="cpu",
)

threads_option = partial(option, "Number of CPU threads.", type=click.IntRange(1), default=1)

runtime_option = partial(
    fields_option,
    "Options of the runtime, such as channels_last=true, or of another device: python=PATH.",
    "--runtime-option",
)

database_option = partial(
    option,
    "Where measurements are kept.  [default: the user's own database]",
    metavar="URL|FILE",
    envvar="NNI_LATENCY_DATABASE",
)


@dataclass(frozen=True)
class PlatformOptions:
    """Where something is measured.

    Parameters
    ----------
    device : str
        Such as ``cpu`` or ``cuda:0``.
    runtime : str
        Name of the runtime that executes the networks.
    runtime_options : tuple of (str, Any)
        Names and values of further arguments of the runtime.
    precision : str
        Numeric precision, such as ``fp32``.
    threads : int
        Number of CPU threads.
    """

    device: str = device_option()
    runtime: str = option(
        "Runtime that executes the networks; 'nni-latency plugins' lists all, and which run on other devices.",
        default="torch",
    )
    runtime_options: tuple[tuple[str, Any], ...] = runtime_option(rare=True)
    precision: str = option("Numeric precision.", type=click.Choice(PRECISIONS), default="fp32")
    threads: int = threads_option(rare=True)


@dataclass(frozen=True)
class DeviceOptions:
    """Where something is measured, if runtime, precision and threads are those of a table."""

    device: str = device_option()
    runtime_options: tuple[tuple[str, Any], ...] = runtime_option(rare=True)

    def of(self, platform: Platform) -> PlatformOptions:
        """Return the options with runtime, precision and threads of a platform."""
        facts = platform.facts
        allocator = facts.get("runtime.allocator")
        # Runtimes of this machine do not take cores.
        takes_cores = "runtime.tool" in facts or loading.connection_of(self.device) is not None
        cores = facts.get("runtime.cores") if takes_cores else None
        known = [(name, value) for name, value in (("allocator", allocator), ("cores", cores)) if value]
        runtime = str(facts.get("runtime.tool", platform.runtime))
        return PlatformOptions(
            self.device, runtime, (*known, *self.runtime_options), platform.precision, platform.threads
        )


def check_known(platform: Platform) -> None:
    """Raise `MismatchError` if numbers do not say where they hold, as those of a table by hand may."""
    if platform.runtime == "unknown" and platform.device != "unknown":
        raise MismatchError(
            f"The numbers hold for {platform.device}, with a runtime that is not known, so nothing that is measured "
            "can be compared with them."
        )
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
    protocol_fields: tuple[tuple[str, Any], ...] = fields_option(
        "Fields of the protocol, such as rounds=5,half_width=0.01.", "--protocol", rare=True
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
        budget = usual.time_budget if self.budget is None else self.budget
        fixed = ("threads", "seed", "time_budget")
        changed = with_fields(usual, self.protocol_fields, "field of the protocol", fixed=fixed)
        return dataclasses.replace(changed, time_budget=budget, threads=threads, seed=seed)


@dataclass(frozen=True)
class StoreOptions:
    """Where measurements are kept, and what those of earlier runs are good for."""

    fresh: bool = option("Measure again what the database already holds.", default=False, rare=True)
    database: str | None = database_option(rare=True)


@dataclass(frozen=True)
class MeterOptions:
    """What reads energy and power."""

    meter: str | None = option(
        "Meter of energy: rapl, nvml, zeus, csv:FILE, http:URL, constant:WATTS or that of a plugin.  "
        "[default: nvml or rapl, by the device, where energy or power is asked for]",
        metavar="NAME[:ARGUMENT]",
        rare=True,
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


def make_runtime(options: PlatformOptions) -> runtimes.Runtime:
    """Make the runtime that the options name.

    Parameters
    ----------
    options : PlatformOptions
        Runtime, device, precision and threads.

    Returns
    -------
    Runtime
        With its ``platform``.

    Raises
    ------
    UnknownNameError
        If there is no such runtime, or this machine has no such device.
    InvalidValueError
        If the runtime does not have an option, or its value is of another type.
    DeviceError
        If another device cannot be reached, or lacks what is needed there.
    """
    registration = loading.find_runtime(options.runtime, options.device)
    given = dict(options.runtime_options)
    _check_options(registration, given, options.device)
    runtime = loading.make_runtime(
        options.runtime,
        options.device,
        threads=options.threads,
        precision=options.precision,
        on_wait=_print_sentence,
        **given,
    )
    # A benchmark binary of this machine sends nothing anywhere.
    if isinstance(runtime, devices.DeviceRuntime) and loading.connection_of(options.device) is not None:
        runtime.on_send = _print_sentence
    return runtime


def has_runtime(name: str) -> bool:
    """Whether a runtime of this name is registered."""
    return name in load_registry().runtimes


def _print_sentence(sentence: str) -> None:
    """Print that a device is waited for, or what is sent to it."""
    remarks().print(sentence, markup=False)


def is_elsewhere(runtime: runtimes.Runtime) -> bool:
    """Whether a runtime is that of another device."""
    return isinstance(runtime, devices.DeviceRuntime)


def speeds_of(runtime: runtimes.Runtime, device: str) -> dict[str, float]:
    """Measure what the device of a runtime computes and moves, see `nni_latency.platforms.measure_speeds`."""
    if isinstance(runtime, devices.DeviceRuntime):
        return runtime.speeds()
    return measure_speeds(device, runtime.platform.threads)


def _check_options(registration: Registration, given: dict[str, Any], device: str) -> None:
    runtime, factory, parameters = registration.name, registration.imported(), registration.parameters()
    fixed = {
        "device",
        "threads",
        "precision",
        "place",
        "connection",
        "on_wait",
        *(factory.keywords if isinstance(factory, partial) else ()),
    }
    known = {
        name: parameter.default
        for name, parameter in parameters.items()
        if name not in fixed and parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    }
    if "connection" not in parameters and loading.connection_of(device) is not None:
        known = dict.fromkeys(loading.DEVICE_OPTIONS) | known
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


class Measuring:
    """A context in which something is measured behind a progress bar; Ctrl-C says how to resume.

    Parameters
    ----------
    what : str
        What is measured.
    runtime : Runtime
        Where.
    store : StoreOptions
        Where the measurements are kept.
    meters : tuple of Meter, default=()
        What is read besides the clock.
    """

    def __init__(
        self,
        what: str,
        runtime: runtimes.Runtime,
        store: StoreOptions,
        meters: tuple[measurement.Meter, ...] = (),
    ) -> None:
        self._what, self._runtime = what, runtime
        #: Further arguments of the functions that measure.
        self.how = tables.MeasuringOptions(
            store=store.database,
            fresh=store.fresh,
            on_progress=self.on_progress,
            on_step=self.on_step,
            on_start=self.on_start,
            meters=meters,
        )
        self._console = remarks()
        self._resumed = 0
        self._has_measured = False
        self._bar = progress(self._console)
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Measuring:
        """Get ready; nothing is shown yet."""
        self._task = self._bar.add_task("warming up", total=1.0, left="")
        return self

    def on_start(self, rounds: int) -> None:
        """Show the bar: only now is everything checked, so an error appears without a bar before it."""
        self._resumed = rounds
        resumed = f", resuming after {number_of(rounds, 'round')}" if rounds else ""
        self._console.print(f"Measuring {self._what} on {self._runtime.platform.id}{resumed}", markup=False)
        self._open.enter_context(self._bar)

    def on_progress(self, state: measurement.Progress) -> None:
        """Move the bar."""
        self._has_measured = True
        wide = f", {number_of(state.unsettled, 'interval')} still wide" if state.unsettled else ""
        self._bar.update(
            self._task, completed=state.share, description=f"round {state.rounds}{wide}", left=_time_left(state)
        )

    def on_step(self, state: measurement.Progress, what: str) -> None:
        """Move the bar inside of a round; what is done is shown until a first round shows how long the others take."""
        self._bar.update(self._task, completed=state.share, left=_time_left(state) if self._has_measured else what)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        self._open.close()
        if error is None and self._resumed and not self._has_measured:
            self._console.print(
                "The database holds all that the budget allows: nothing was measured. Give a larger --budget to "
                "measure more, or --fresh to measure again."
            )
        if isinstance(error, measurement.CoarseMeterError):
            needed = math.ceil(error.needed)
            raise MeasurementError(f"{error} Here that is --protocol max_measure_execution_time={needed}") from error
        if isinstance(error, KeyboardInterrupt):
            raise interrupted(RESUMABLE) from None


def _time_left(state: measurement.Progress) -> str:
    return f"at most {time_left(state.remaining)}"
