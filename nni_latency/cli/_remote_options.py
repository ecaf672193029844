# SPDX-License-Identifier: Apache-2.0
"""The options of commands that measure or fit on other machines."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import click
from click.core import ParameterSource

import nni_latency.loading as loading
import nni_latency.measurement as measurement
import nni_latency.measurement.runtimes as runtimes
import nni_latency.tables as tables
from nni_latency.cli._console import remarks
from nni_latency.cli._measuring import MeterOptions, PlatformOptions, is_elsewhere, make_runtime
from nni_latency.cli._option import option
from nni_latency.errors import InvalidValueError, MeasurementError, MismatchError, RemoteError
from nni_latency.platforms import Platform
from nni_latency.units import number_of

#: The variable that names the machines on which everything is measured.
REMOTE_VARIABLE = "NNI_LATENCY_REMOTE"

#: The meter that assumes a power, and needs no machine.
_ASSUMED = "constant"

#: Options that say with what a machine measures: set where it starts.
_SET_THERE = ("device", "runtime_options")


@dataclass(frozen=True)
class RemoteOptions:
    """Whether something is measured on other machines, and on which of their platforms."""

    remote: str | None = option(
        "Measure on other machines, such as farm:tcp://HOST:8786, instead of this one; of several platforms the one "
        "that is named.",
        metavar="NAME:ADDRESS[#PLATFORM]",
        envvar=REMOTE_VARIABLE,
        rare=True,
    )

    def runtime(self, options: PlatformOptions) -> runtimes.Runtime:
        """Return the runtime that the options name: of this machine, or of the others.

        Raises
        ------
        RemoteError
            If nobody answers, or none of the machines measures so.
        MismatchError
            If they have several such platforms, or the options contradict the platform that is named.
        LatencyError
            As `make_runtime` does.
        """
        if self.remote is None:
            return make_runtime(options)
        given = _refuse_what_is_set_there()
        address, named = _split(self.remote)
        if not named:
            return _choose(_client(address), address, options)
        wanted = Platform.parse(named)
        asked = {name: getattr(options, name) for name in ("runtime", "precision", "threads") if name in given}
        for name, value in asked.items():
            if value != getattr(wanted, name):
                raise MismatchError(
                    f"--{name} {value} contradicts --remote, whose platform {named} has {getattr(wanted, name)}."
                )
        return _client(address).runtime(named)

    def runtime_like(self, platform: Platform, here: PlatformOptions) -> runtimes.Runtime:
        """Return the runtime of a platform that is known: of this machine as the options say, or of the others."""
        if self.remote is None:
            return make_runtime(here)
        _refuse_what_is_set_there()
        address, named = _split(self.remote)
        return _client(address).runtime(named or platform)

    def meters(
        self, metered: MeterOptions, metric: str, device: str, runtime: runtimes.Runtime
    ) -> tuple[measurement.Meter, ...]:
        """Return the meters that a metric needs, of this machine or of those that measure.

        Raises
        ------
        MeasurementError
            If the meter cannot be read here, or not all machines of the platform have it.
        """
        if self.remote is None:
            if is_elsewhere(runtime) and (metered.meter is not None or metric in tables.METERED):
                raise MeasurementError(
                    f"Energy and power are read on this machine alone, and {device} is another one. Measure the "
                    "latency, or run the command there."
                )
            return metered.meters(metric, device)
        if metered.meter is None and metric not in tables.METERED:
            return ()
        wanted = metered.meter or ""
        if wanted.partition(":")[0] == _ASSUMED:
            return (loading.load_meter(wanted),)
        return (_client(_split(self.remote)[0]).meter(runtime.platform, wanted),)


@dataclass(frozen=True)
class FitRemoteOptions:
    """Whether predictors are fitted on other machines."""

    # Not by the variable that names the machines for measuring: they may have none that fits.
    remote: str | None = option(
        "Fit on other machines, such as farm:tcp://HOST:8786, instead of this one.", metavar="NAME:ADDRESS", rare=True
    )

    def fitting(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which predictors are fitted on this machine or on the others.

        Raises
        ------
        RemoteError
            If nobody answers, or none of the machines fits.
        """
        if self.remote is None:
            return contextlib.nullcontext()
        address, named = _split(self.remote)
        if named:
            raise InvalidValueError(f"Fits belong to no platform. Give --remote {address} alone.")
        return _client(address).fitting()


def _split(remote: str) -> tuple[str, str]:
    """Return the machines, and the platform of theirs that is meant; empty for any."""
    address, _, platform = remote.partition("#")
    return address, platform


_META = "nni_latency.remote"


def _client(address: str) -> measurement.Remote:
    """Return what reaches the machines, one for the whole command, which closes it when it ends."""
    context = click.get_current_context()
    if _META not in context.meta:
        context.meta[_META] = context.with_resource(
            loading.load_remote(address, lambda sentence: remarks().print(sentence, markup=False))
        )
    client: measurement.Remote = context.meta[_META]
    return client


def _choose(client: measurement.Remote, address: str, options: PlatformOptions) -> runtimes.Runtime:
    known = client.runtimes()
    if not known:
        raise RemoteError(f"No machine of the {client.description} measures. {client.advice}".rstrip())
    wanted = (options.runtime, options.precision, options.threads)
    found = [
        item for item in known if (item.platform.runtime, item.platform.precision, item.platform.threads) == wanted
    ]
    if not found:
        available = ", ".join(sorted({item.platform.id for item in known}))
        raise RemoteError(
            f"No machine of the {client.description} measures with the runtime {options.runtime!r} in "
            f"{options.precision} on {number_of(options.threads, 'thread')}. Available: {available}."
        )
    names = sorted({item.platform.id for item in found})
    if len(names) > 1:
        raise MismatchError(
            f"The {client.description} has several platforms of this kind: {', '.join(names)}. "
            f"Name one: --remote {address}#{names[0]}"
        )
    # Of the same id there may be several: they say in what they differ.
    return client.runtime(names[0]) if len(found) > 1 else found[0]


def _refuse_what_is_set_there() -> set[str]:
    """Return the options that were given; raise `InvalidValueError` if one of them is set where a machine starts."""
    given = _given()
    for name in _SET_THERE:
        if name in given:
            raise InvalidValueError(
                f"--{name.replace('_options', '-option')} is set where the other machines start. Omit it here."
            )
    return given


def _given() -> set[str]:
    """Return the options that were given, and not left at their defaults."""
    context = click.get_current_context()
    return {
        name
        for name in context.params
        if context.get_parameter_source(name) in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    }
