"""The options of commands that measure on a farm, and of those that run one."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import click
from click.core import ParameterSource

import nni_latency.farm as farm
import nni_latency.loading as loading
import nni_latency.measurement as measurement
import nni_latency.measurement.runtimes as runtimes
import nni_latency.tables as tables
from nni_latency.cli._console import remarks
from nni_latency.cli._measuring_options import MeterOptions, PlatformOptions, make_runtime
from nni_latency.cli._option import option
from nni_latency.errors import FarmError, InvalidValueError, MismatchError
from nni_latency.platforms import Platform
from nni_latency.units import number_of

#: Variables by which clients of a farm that can be reached from other machines are trusted.
TOKEN, CERT, KEY, CA = (f"NNI_LATENCY_FARM_{name}" for name in ("TOKEN_FILE", "TLS_CERT", "TLS_KEY", "TLS_CA"))

#: The meter that assumes a power, and needs no machine.
_ASSUMED = "constant"

#: Options that say with what a machine measures: said once, when it joins.
_SAID_BY_WORKERS = ("device", "runtime_options", "allocator")


@dataclass(frozen=True)
class SecurityOptions:
    """Who may speak to a farm."""

    token_file: Path | None = option("File of the secret that all machines of the farm have.", envvar=TOKEN)
    tls_cert: Path | None = option("File of the TLS certificate, in PEM.", envvar=CERT)
    tls_key: Path | None = option("File of its private key.", envvar=KEY)
    tls_ca: Path | None = option(
        "File of the certificate that signed all others.  [default: the certificate itself]", envvar=CA
    )

    def made(self) -> farm.FarmSecurity:
        """Return them as the library takes them."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidValueError("TLS needs a certificate and its private key: give --tls-cert and --tls-key.")
        return farm.FarmSecurity(self.tls_cert, self.tls_key, self.tls_ca, self.token_file)


@dataclass(frozen=True)
class FarmOptions:
    """Whether something is measured on a farm, and on which of its platforms."""

    farm: str | None = option(
        "Measure on a farm instead of this machine; of several platforms the one that is named.",
        metavar="URL[#PLATFORM]",
        envvar="NNI_LATENCY_FARM",
    )

    def runtime(self, options: PlatformOptions) -> runtimes.Runtime:
        """Return the runtime that the options name: of this machine, or of the farm.

        Raises
        ------
        FarmError
            If no farm answers, or it has no worker that measures so.
        MismatchError
            If it has several such platforms, or the options contradict the platform that is named.
        LatencyError
            As `make_runtime` does.
        """
        if self.farm is None:
            return make_runtime(options)
        given = _refuse_what_workers_say()
        named = farm.FarmAddress.parse(self.farm).platform
        if named:
            wanted = Platform.parse(named)
            asked = {name: getattr(options, name) for name in ("runtime", "precision", "threads") if name in given}
            for name, value in asked.items():
                if value != getattr(wanted, name):
                    raise MismatchError(
                        f"--{name} {value} contradicts --farm, whose platform {named} has {getattr(wanted, name)}."
                    )
            return _client(self.farm).runtime(named)
        return _client(self.farm).runtime(_choose(_client(self.farm), options))

    def runtime_like(self, platform: Platform, here: PlatformOptions) -> runtimes.Runtime:
        """Return the runtime of a platform that is known: of this machine as the options say, or of the farm."""
        if self.farm is None:
            return make_runtime(here)
        _refuse_what_workers_say()
        named = farm.FarmAddress.parse(self.farm).platform
        return _client(self.farm).runtime(named or platform)

    def meters(
        self, metered: MeterOptions, metric: str, device: str, runtime: runtimes.Runtime
    ) -> tuple[measurement.Meter, ...]:
        """Return the meters that a metric needs, of this machine or of the workers that measure.

        Raises
        ------
        MeasurementError
            If the meter cannot be read here, or not all workers of the platform have it.
        """
        if not isinstance(runtime, farm.FarmRuntime):
            return metered.meters(metric, device)
        if metered.meter is None and metric not in tables.METERED:
            return ()
        wanted = metered.meter or ""
        if wanted.partition(":")[0] == _ASSUMED:
            return (loading.load_meter(wanted),)
        return (runtime.meter(wanted),)


@dataclass(frozen=True)
class FitFarmOptions:
    """Whether predictors are fitted on a farm."""

    # Not by the variable that names the farm for measuring: such a farm may have no worker that fits.
    farm: str | None = option("Fit on the workers of 'nni-latency farm fit' instead of this machine.", metavar="URL")

    def fitting(self) -> contextlib.AbstractContextManager[None]:
        """Return what has everything fitted where it is to be fitted.

        Raises
        ------
        FarmError
            If no farm answers, or it has no worker that fits.
        """
        if self.farm is None:
            return contextlib.nullcontext()
        if farm.FarmAddress.parse(self.farm).platform:
            raise InvalidValueError("Fits belong to no platform. Give --farm its address alone.")
        return _client(self.farm).fitting()


def open_farm(address: str, security: farm.FarmSecurity) -> farm.Farm:
    """Open the client of a farm, which is closed when the command ends."""
    opened: farm.Farm = click.get_current_context().with_resource(
        farm.Farm(address, security, on_wait=lambda sentence: remarks().print(sentence, markup=False))
    )
    return opened


_META = "nni_latency.farm"


def _client(address: str) -> farm.Farm:
    """Return the client of a farm, one for the whole command."""
    context = click.get_current_context()
    if _META not in context.meta:
        context.meta[_META] = open_farm(address, security_of_environment())
    client: farm.Farm = context.meta[_META]
    return client


def security_of_environment() -> farm.FarmSecurity:
    """Return who may speak to a farm, as variables of the environment say.

    Raises
    ------
    InvalidValueError
        If there is a certificate without a key, or the other way round.
    """
    token, cert, key, ca = (Path(os.environ[name]) if os.environ.get(name) else None for name in (TOKEN, CERT, KEY, CA))
    if (cert is None) != (key is None):
        raise InvalidValueError(f"TLS needs a certificate and its private key: set {CERT} and {KEY}.")
    return farm.FarmSecurity(cert, key, ca, token)


def _choose(client: farm.Farm, options: PlatformOptions) -> Platform:
    platforms = [item.platform for item in client.platforms()]
    if not platforms:
        raise FarmError(f"The farm has no workers. Start one on each machine: nni-latency farm join {client.address}")
    wanted = (options.runtime, options.precision, options.threads)
    found = [item for item in platforms if (item.runtime, item.precision, item.threads) == wanted]
    known = ", ".join(sorted({item.id for item in platforms}))
    if not found:
        raise FarmError(
            f"No worker of the farm measures with the runtime {options.runtime!r} in {options.precision} on "
            f"{number_of(options.threads, 'thread')}. It has: {known}."
        )
    if len({item.id for item in found}) > 1:
        raise MismatchError(
            f"The farm has several platforms of this kind: {', '.join(sorted({item.id for item in found}))}. "
            f"Name one: --farm {client.address}#{found[0].id}"
        )
    if len(found) > 1:
        # Of the same id: the client says in what they differ.
        client.find(found[0].id)
    return found[0]


def _refuse_what_workers_say() -> set[str]:
    """Return the options that were given; raise `InvalidValueError` if one of them is said when a machine joins."""
    given = _given()
    for name in _SAID_BY_WORKERS:
        if name in given:
            raise InvalidValueError(
                f"--{name.replace('_options', '-option')} is said when a machine joins the farm. Omit it here."
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
